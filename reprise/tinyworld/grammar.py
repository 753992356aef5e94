"""Prompts of the tiny world: a scene to one of its many wordings, and any such wording back to a scene.

The grammar varies synonyms, an optional opening, and the order of clauses. `read_prompt` is its inverse
and also copes with prompts typed by hand. Knows nothing about pixels or tokenizers.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from reprise.tinyworld.scene import ObjectSpec, SceneSpec

SHAPE_WORDS: Final = {
    "circle": ("circle", "disc", "ball"),
    "square": ("square", "box"),
    "triangle": ("triangle",),
    "star": ("star",),
}
COLOUR_WORDS: Final = {
    "red": ("red", "scarlet"),
    "green": ("green",),
    "blue": ("blue",),
    "yellow": ("yellow",),
    "purple": ("purple", "violet"),
    "orange": ("orange",),
    "cyan": ("cyan", "turquoise"),
    "white": ("white",),
}
SIZE_WORDS: Final = {
    "small": ("small", "little", "tiny"),
    "medium": ("", "medium", "medium-sized"),
    "large": ("large", "big", "huge"),
}
MOTION_WORDS: Final = {
    "left": ("moves left", "slides to the left", "drifts left", "is moving left"),
    "right": ("moves right", "slides to the right", "drifts right", "is moving right"),
    "up": ("moves up", "rises", "drifts up", "is moving up"),
    "down": ("moves down", "falls", "drifts down", "is moving down"),
    "still": ("stays still", "rests", "does not move", "is still"),
}
BACKGROUND_WORDS: Final = {
    "black": ("black",),
    "gray": ("gray", "grey"),
    "green": ("green", "dark green"),
    "blue": ("blue", "dark blue", "navy"),
    "red": ("red", "dark red"),
    "purple": ("purple", "dark purple"),
}
PATTERN_WORDS: Final = {
    "plain": ("{colour} background", "plain {colour} background", "{colour} backdrop"),
    "striped": ("striped {colour} background", "{colour} background with stripes", "striped {colour} backdrop"),
    "gradient": ("gradient {colour} background", "{colour} background with a gradient", "{colour} gradient backdrop"),
}
PREPOSITIONS: Final = ("over", "on", "in front of", "against")
OPENINGS: Final = ("", "", "", "a video of ", "an animation of ")


def _pick(rng: np.random.Generator | None, options: Sequence[str]) -> str:
    """Take the first wording without a generator, a random one with it."""
    return options[0] if rng is None else options[int(rng.integers(len(options)))]


def _noun_phrase(item: ObjectSpec, rng: np.random.Generator | None) -> str:
    words = [
        _pick(rng, SIZE_WORDS[item.size]),
        _pick(rng, COLOUR_WORDS[item.colour]),
        _pick(rng, SHAPE_WORDS[item.shape]),
    ]
    phrase = " ".join(word for word in words if word)
    return f"{'an' if phrase[0] in 'aeiou' else 'a'} {phrase}"


def write_prompt(scene: SceneSpec, rng: np.random.Generator | None = None) -> str:
    """Word a scene: the canonical prompt without `rng`, one of its paraphrases with it.

    >>> write_prompt(SceneSpec((ObjectSpec("star", "red", "large", "up"),), "blue", "striped"))
    'a large red star moves up over a striped blue background'
    """
    clauses = [(_noun_phrase(item, rng), _pick(rng, MOTION_WORDS[item.motion])) for item in scene.objects]
    colour = _pick(rng, BACKGROUND_WORDS[scene.background])
    backdrop = _pick(rng, PATTERN_WORDS[scene.pattern]).format(colour=colour)
    place = f"{_pick(rng, PREPOSITIONS)} {'an' if backdrop[0] in 'aeiou' else 'a'} {backdrop}"
    action = _pick(rng, (" and ", " while ")).join(f"{noun} {verb}" for noun, verb in clauses)
    order = 0 if rng is None else int(rng.integers(4))
    if order == 1:
        return f"{place}, {action}"
    if order == 2 and len(clauses) == 1:
        return f"{clauses[0][0]} {place} {clauses[0][1]}"
    return f"{_pick(rng, OPENINGS)}{action} {place}"


_PLACE = re.compile(
    r"\b(?:over|on|in front of|against)\s+an?\s+"
    r"((?:[\w-]+\s+){0,4}(?:background|backdrop)(?:\s+with\s+(?:stripes|a\s+gradient))?)"
)
_MOTION_PATTERNS = {
    "left": r"\bleft\b",
    "right": r"\bright\b",
    "up": r"\bup\b|\brises\b",
    "down": r"\bdown\b|\bfalls\b",
    "still": r"\bstill\b|\brests\b|\bnot move\b",
}


def _find(text: str, table: Mapping[str, tuple[str, ...]], default: str | None = None) -> str | None:
    for name, words in table.items():
        if any(re.search(rf"\b{re.escape(word)}\b", text) for word in words if word):
            return name
    return default


def _read_object(text: str) -> ObjectSpec | None:
    shape, colour = _find(text, SHAPE_WORDS), _find(text, COLOUR_WORDS)
    motion = next((name for name, pattern in _MOTION_PATTERNS.items() if re.search(pattern, text)), "still")
    if shape is None or colour is None:
        return None
    return ObjectSpec(shape, colour, _find(text, SIZE_WORDS, "medium") or "medium", motion)


def read_prompt(prompt: str) -> SceneSpec | None:
    """Read a prompt back into its scene, or None when it does not name one object and a background.

    An unnamed size reads as medium, an unnamed pattern as plain, an unnamed motion as still.
    """
    text = " ".join(prompt.lower().split())
    place = _PLACE.search(text)
    if place is None:
        return None
    background = _find(place[1], BACKGROUND_WORDS)
    pattern = "striped" if "stripe" in place[1] else "gradient" if "gradient" in place[1] else "plain"
    rest = text[: place.start()] + text[place.end() :]
    parts = re.split(r"\b(?:and|while)\s+(?=an?\b)", rest)
    objects = tuple(item for item in map(_read_object, parts) if item is not None)
    if background is None or not objects or len(objects) != len(parts):
        return None
    return SceneSpec(objects, background, pattern)
