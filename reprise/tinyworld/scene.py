"""What a tiny-world video shows, as a value: objects with four attributes over a patterned background.

The vocabulary of the world and the split into training and held-out scenes live here. Knows nothing
about words (grammar.py) or pixels (render.py, score.py).
"""

import dataclasses
import zlib
from collections.abc import Iterable
from typing import Final

import numpy as np

SHAPES: Final = ("circle", "square", "triangle", "star")
COLOURS: Final = {
    "red": (230, 35, 35),
    "green": (40, 205, 60),
    "blue": (60, 95, 245),
    "yellow": (245, 225, 45),
    "purple": (180, 60, 225),
    "orange": (250, 135, 25),
    "cyan": (40, 220, 230),
    "white": (245, 245, 245),
}
"""Object colours, RGB in 0..255. Every one has a channel above 200, every background stays below 150."""
SIZES: Final = {"small": (9.5, 10.5), "medium": (12.5, 13.5), "large": (16.0, 17.0)}
"""Radius range in pixels."""
MOTIONS: Final = {"left": (-1, 0), "right": (1, 0), "up": (0, -1), "down": (0, 1), "still": (0, 0)}
"""Direction on the screen, x to the right and y down."""
BACKGROUNDS: Final = {
    "black": (12, 12, 16),
    "gray": (95, 95, 100),
    "green": (25, 85, 40),
    "blue": (25, 40, 105),
    "red": (100, 25, 30),
    "purple": (75, 30, 95),
}
PATTERNS: Final = ("plain", "striped", "gradient")


@dataclasses.dataclass(frozen=True, slots=True)
class ObjectSpec:
    """One moving object; every field is a key of the tables above."""

    shape: str
    colour: str
    size: str
    motion: str


@dataclasses.dataclass(frozen=True, slots=True)
class SceneSpec:
    """One or two objects of different colours over a background."""

    objects: tuple[ObjectSpec, ...]
    background: str
    pattern: str


def sample_object(rng: np.random.Generator) -> ObjectSpec:
    """Draw an object with independent uniform attributes."""

    def draw(names: Iterable[str]) -> str:
        options = tuple(names)
        return options[int(rng.integers(len(options)))]

    return ObjectSpec(draw(SHAPES), draw(COLOURS), draw(SIZES), draw(MOTIONS))


def sample_scene(rng: np.random.Generator, *, num_objects: int | None = None) -> SceneSpec:
    """Draw a scene; without `num_objects`, three in four scenes have a single object."""
    count = num_objects if num_objects is not None else (1 if rng.random() < 0.75 else 2)
    objects = [sample_object(rng)]
    while len(objects) < count:
        other = sample_object(rng)
        if all(other.colour != known.colour for known in objects):
            objects.append(other)
    background = tuple(BACKGROUNDS)[int(rng.integers(len(BACKGROUNDS)))]
    return SceneSpec(tuple(objects), background, PATTERNS[int(rng.integers(len(PATTERNS)))])


def change_one(scene: SceneSpec, rng: np.random.Generator) -> SceneSpec:
    """Change one attribute of the scene or of its first object, each equally likely."""
    tables = {"shape": SHAPES, "colour": tuple(COLOURS), "size": tuple(SIZES), "motion": tuple(MOTIONS)}
    places = {"background": tuple(BACKGROUNDS), "pattern": PATTERNS}
    name = (*tables, *places)[int(rng.integers(len(tables) + len(places)))]
    first, *others = scene.objects
    owner: ObjectSpec | SceneSpec = first if name in tables else scene
    taken = {getattr(owner, name)} | ({item.colour for item in others} if name == "colour" else set())
    options = [value for value in {**tables, **places}[name] if value not in taken]
    value = options[int(rng.integers(len(options)))]
    if name == "background":
        return dataclasses.replace(scene, background=value)
    if name == "pattern":
        return dataclasses.replace(scene, pattern=value)
    return dataclasses.replace(scene, objects=(dataclasses.replace(first, **{name: value}), *others))


def is_held_out(scene: SceneSpec) -> bool:
    """Tell whether training must never see this combination of attributes (one scene in ten)."""
    words = [scene.background, scene.pattern]
    for item in sorted(scene.objects, key=lambda item: item.colour):
        words += [item.shape, item.colour, item.size, item.motion]
    return zlib.crc32(" ".join(words).encode()) % 10 == 0
