"""Read a tiny-world video back into attributes from its pixels alone, and compare with a scene.

No learned part: objects are the bright pixels, split by colour; shape is the best template overlap,
motion the median step of the centroid on the torus, background the nearest drawn background. Exact on
rendered scenes; on generated video it is the project's CLIP-score. Knows nothing about prompts.

Shape letters: T frames, H height, W width, C colour channels, P template pixels.
"""

import dataclasses
import functools
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reprise.tinyworld.render import FRAME_SIZE, STRIPE_PERIOD, coverage, draw_background
from reprise.tinyworld.scene import BACKGROUNDS, COLOURS, MOTIONS, PATTERNS, SHAPES, SIZES, ObjectSpec, SceneSpec

_WINDOW: Final = 42
_MIN_AREA: Final = 40.0
"""Pixels below which a coloured patch is noise; the smallest object, a small star, covers about 130."""
_SECOND_OBJECT_SHARE: Final = 0.2
"""A second colour is an object when it covers at least this share of the first one's area."""
_STILL_SPEED: Final = 0.7
"""Pixels per frame below which an object rests; moving objects make at least 1.8."""

FloatArray = NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True)
class VideoReading:
    """What the pixels show, largest object first. `motion` is "none" for fewer than two frames."""

    objects: tuple[ObjectSpec, ...]
    background: str
    pattern: str


@dataclasses.dataclass(frozen=True, slots=True)
class AttributeScore:
    """Which attributes of a scene its video shows; with two objects, an attribute needs both right."""

    shape: bool
    colour: bool
    size: bool
    motion: bool
    background: bool
    pattern: bool
    count: bool

    def found(self) -> list[str]:
        """List the attributes that are right."""
        return [field.name for field in dataclasses.fields(self) if getattr(self, field.name)]


@functools.cache
def _shape_templates() -> tuple[list[tuple[str, float]], FloatArray]:
    """Draw every shape at every radius, centred on its centroid: labels and (n, P) pixels."""
    centre = np.arange(_WINDOW, dtype=np.float32) + 0.5 - _WINDOW / 2
    dx, dy = np.meshgrid(centre, centre)
    labels, images = [], []
    for shape in SHAPES:
        for radius in np.arange(8.0, 18.1, 0.5):
            mask = coverage(shape, dx, dy, float(radius))
            shift_x, shift_y = (mask * dx).sum() / mask.sum(), (mask * dy).sum() / mask.sum()
            labels.append((shape, float(radius)))
            images.append(coverage(shape, dx + shift_x, dy + shift_y, float(radius)).ravel())
    return labels, np.stack(images)


@functools.cache
def _background_templates() -> tuple[list[tuple[str, str]], FloatArray]:
    labels, images = [], []
    for background in BACKGROUNDS:
        for pattern in PATTERNS:
            for phase in range(STRIPE_PERIOD) if pattern == "striped" else (0,):
                labels.append((background, pattern))
                images.append(draw_background(background, pattern, phase=phase))
    return labels, np.stack(images)


def _read_background(video_THWC: FloatArray, bright_THW: FloatArray) -> tuple[str, str]:
    """Find the nearest drawn background over pixels that no object covers in most frames."""
    free_THW = bright_THW < 0.1
    share_HW = free_THW.mean(0)
    weight_HW = (share_HW > 0.3).astype(np.float32)
    if weight_HW.sum() < 64:
        weight_HW = np.ones_like(weight_HW)
    total = np.maximum(free_THW.sum(0), 1)[..., None]
    still_HWC = (video_THWC * free_THW[..., None]).sum(0) / total
    labels, images = _background_templates()
    error = (((images - still_HWC) ** 2).sum(-1) * weight_HW).sum((1, 2))
    return labels[int(error.argmin())]


def _colour_masks(video_THWC: FloatArray, bright_THW: FloatArray) -> list[tuple[str, FloatArray]]:
    """Split the bright pixels by nearest colour and keep the one or two largest patches."""
    inks = np.asarray(list(COLOURS.values()), np.float32) / 255
    solid_THW = bright_THW > 0.6
    nearest = ((video_THWC[solid_THW][:, None] - inks) ** 2).sum(-1).argmin(-1)
    order = np.bincount(nearest, minlength=len(inks)).argsort()[::-1]
    area = np.bincount(nearest, minlength=len(inks)) / len(video_THWC)
    names = list(COLOURS)
    if area[order[0]] < _MIN_AREA:
        return []
    if area[order[1]] < max(_MIN_AREA, _SECOND_OBJECT_SHARE * area[order[0]]):
        return [(names[order[0]], bright_THW)]
    # Two objects share the picture: every bright pixel goes to the nearer of the two colours.
    pair = inks[order[:2]]
    side_THW = ((video_THWC[..., None, :] - pair) ** 2).sum(-1).argmin(-1)
    return [(names[order[k]], bright_THW * (side_THW == k)) for k in (0, 1)]


def _centroid(mask_HW: FloatArray) -> tuple[float, float]:
    """Give the centroid on the torus, in pixels: circular mean, then a linear mean around it."""
    angle = 2 * np.pi * (np.arange(FRAME_SIZE) + 0.5) / FRAME_SIZE

    def along(profile: FloatArray) -> float:
        rough = np.angle((profile * np.exp(1j * angle)).sum()) / (2 * np.pi) * FRAME_SIZE
        start = round(float(rough)) - _WINDOW // 2
        window = profile[(start + np.arange(_WINDOW)) % FRAME_SIZE]
        return float(start + (window * (np.arange(_WINDOW) + 0.5)).sum() / (window.sum() + 1e-6))

    return along(mask_HW.sum(0)), along(mask_HW.sum(1))


def _read_shape(mask_THW: FloatArray, path: list[tuple[float, float]]) -> tuple[str, str]:
    """Vote over a few frames for the template with the largest intersection over union: shape and size."""
    labels, images = _shape_templates()
    votes = np.zeros(len(labels), np.float32)
    for t in np.unique(np.linspace(0, len(mask_THW) - 1, 5).round().astype(int)):
        left, top = (round(value) - _WINDOW // 2 for value in path[t])
        index = np.arange(_WINDOW)
        patch = mask_THW[t][np.ix_((top + index) % FRAME_SIZE, (left + index) % FRAME_SIZE)].ravel()
        votes += np.minimum(images, patch).sum(1) / (np.maximum(images, patch).sum(1) + 1e-6)
    shape, radius = labels[int(votes.argmax())]
    return shape, min(SIZES, key=lambda name: abs(sum(SIZES[name]) / 2 - radius))


def _read_motion(path: list[tuple[float, float]]) -> str:
    if len(path) < 2:
        return "none"
    step = (np.diff(np.asarray(path), axis=0) + FRAME_SIZE / 2) % FRAME_SIZE - FRAME_SIZE / 2
    mean_x, mean_y = np.median(step, axis=0)
    if np.hypot(mean_x, mean_y) < _STILL_SPEED:
        return "still"
    return max(MOTIONS, key=lambda name: MOTIONS[name][0] * mean_x + MOTIONS[name][1] * mean_y)


def read_video(frames_THWC: NDArray[np.uint8]) -> VideoReading:
    """Read objects and background from frames (T, 64, 64, 3) uint8."""
    video_THWC = frames_THWC.astype(np.float32) / np.float32(255)
    bright_THW = np.asarray(np.clip((video_THWC.max(-1) - 0.5) / 0.25, 0, 1), np.float32)
    objects = []
    for colour, mask_THW in _colour_masks(video_THWC, bright_THW):
        visible = mask_THW[mask_THW.sum((1, 2)) > _MIN_AREA / 2]
        if len(visible):
            path = [_centroid(mask_HW) for mask_HW in visible]
            shape, size = _read_shape(visible, path)
            objects.append(ObjectSpec(shape, colour, size, _read_motion(path)))
    return VideoReading(tuple(objects), *_read_background(video_THWC, bright_THW))


def score_video(frames_THWC: NDArray[np.uint8], scene: SceneSpec) -> AttributeScore:
    """Compare what the frames show with the scene; objects are matched by colour, then by order."""
    reading = read_video(frames_THWC)
    by_colour = {item.colour: item for item in reading.objects}
    spare = [item for item in reading.objects if item.colour not in {want.colour for want in scene.objects}]
    pairs = [(want, by_colour.get(want.colour) or (spare.pop(0) if spare else None)) for want in scene.objects]

    def all_match(field: str) -> bool:
        return all(seen is not None and getattr(seen, field) == getattr(want, field) for want, seen in pairs)

    return AttributeScore(
        shape=all_match("shape"),
        colour=all_match("colour"),
        size=all_match("size"),
        motion=all_match("motion"),
        background=reading.background == scene.background,
        pattern=reading.pattern == scene.pattern,
        count=len(reading.objects) == len(scene.objects),
    )
