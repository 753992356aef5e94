"""Pixels of a tiny-world scene with ground-truth object masks; deterministic for a generator.

Motion is linear on a torus, so any number of frames is well defined. Frames are drawn inside a window
around each object, which is what makes training data cheap. Knows nothing about prompts.

Shape letters: T frames, H height, W width, C colour channels, K objects.
"""

import dataclasses
from typing import Final

import numpy as np
from numpy.typing import NDArray

from reprise.tinyworld.scene import BACKGROUNDS, COLOURS, MOTIONS, SIZES, SceneSpec

FRAME_SIZE: Final = 64
STRIPE_PERIOD: Final = 16
_WINDOW: Final = 42
"""Side of the square an object can touch; a star of the largest size reaches 19 pixels from its centre."""

FloatArray = NDArray[np.float32]


@dataclasses.dataclass(frozen=True, slots=True)
class Rendering:
    """Frames (T, H, W, C) uint8 and, per object of the scene, its visible pixels (K, T, H, W) bool."""

    frames_THWC: NDArray[np.uint8]
    masks_KTHW: NDArray[np.bool_]


def signed_distance(shape: str, dx: FloatArray, dy: FloatArray, radius: float) -> FloatArray:
    """Give the signed distance in pixels to the edge of a shape centred at the origin, negative inside."""
    if shape == "circle":
        return np.asarray(np.hypot(dx, dy) - radius, np.float32)
    if shape == "square":
        return np.asarray(np.maximum(np.abs(dx), np.abs(dy)) - 0.88 * radius, np.float32)
    if shape == "triangle":
        slope = np.float32(np.sqrt(3) / 2)
        edges = np.maximum(np.maximum(slope * dx - 0.5 * dy, -slope * dx - 0.5 * dy), dy)
        return np.asarray(edges - 0.55 * radius, np.float32)
    assert shape == "star", shape
    # Fold the plane into one of the star's ten half-points, then measure to that half-point's edge.
    outer, inner, step = 1.1 * radius, 0.46 * radius, 2 * np.pi / 5
    angle = np.abs((np.arctan2(dx, -dy) + step / 2) % step - step / 2)
    distance = np.hypot(dx, dy)
    edge_x, edge_y = inner * np.cos(step / 2) - outer, inner * np.sin(step / 2)
    normal_x, normal_y = edge_y / np.hypot(edge_x, edge_y), -edge_x / np.hypot(edge_x, edge_y)
    return np.asarray((distance * np.cos(angle) - outer) * normal_x + distance * np.sin(angle) * normal_y, np.float32)


def coverage(shape: str, dx: FloatArray, dy: FloatArray, radius: float) -> FloatArray:
    """Give each pixel's share inside the shape, 0 to 1, with one pixel of smoothing at the edge."""
    return np.asarray(np.clip(0.5 - signed_distance(shape, dx, dy, radius), 0, 1), np.float32)


def draw_background(background: str, pattern: str, *, phase: float = 0.0) -> FloatArray:
    """Draw an empty background (H, W, C) in 0..1; `phase` shifts the stripes by pixels."""
    base = np.asarray(BACKGROUNDS[background], np.float32) / 255
    is_black = bool(base.max() < 0.2)
    centre = np.arange(FRAME_SIZE, dtype=np.float32) + 0.5
    if pattern == "plain":
        return np.broadcast_to(base, (FRAME_SIZE, FRAME_SIZE, 3)).astype(np.float32)
    if pattern == "striped":
        half = STRIPE_PERIOD / 2
        band = np.clip(np.abs((centre + phase) % STRIPE_PERIOD - half) - half / 2 + 0.5, 0, 1)[:, None, None]
        dark = base + 0.16 if is_black else base * 0.45
        return np.broadcast_to(base * (1 - band) + dark * band, (FRAME_SIZE, FRAME_SIZE, 3)).astype(np.float32)
    ramp = 1 - (centre / FRAME_SIZE)[None, :, None]
    shaded = base + 0.22 * ramp if is_black else base * (0.25 + 0.95 * ramp)
    return np.broadcast_to(shaded, (FRAME_SIZE, FRAME_SIZE, 3)).astype(np.float32)


def _start_positions(scene: SceneSpec, rng: np.random.Generator) -> list[tuple[float, float]]:
    """Place one object near the middle; place two half a frame apart, across the first one's motion."""
    first = rng.uniform(14, FRAME_SIZE - 14, 2)
    if len(scene.objects) == 1:
        return [(float(first[0]), float(first[1]))]
    second = first + rng.uniform(-6, 6, 2)
    across = 0 if scene.objects[0].motion in ("up", "down") else 1
    second[across] = first[across] + FRAME_SIZE / 2 + rng.uniform(-2, 2)
    return [(float(x), float(y)) for x, y in (first, second)]


def render_scene(scene: SceneSpec, num_frames: int, rng: np.random.Generator) -> Rendering:
    """Draw a scene at a random position, speed and stripe phase; later objects cover earlier ones."""
    still = draw_background(scene.background, scene.pattern, phase=float(rng.uniform(0, STRIPE_PERIOD)))
    video = np.broadcast_to(still * 255, (num_frames, *still.shape)).astype(np.float32)
    masks = np.zeros((len(scene.objects), num_frames, FRAME_SIZE, FRAME_SIZE), np.bool_)
    frame = np.arange(num_frames, dtype=np.float32)
    rows = np.arange(num_frames)[:, None, None]
    offset = np.arange(_WINDOW, dtype=np.float32) + 0.5
    for index, ((x0, y0), item) in enumerate(zip(_start_positions(scene, rng), scene.objects, strict=True)):
        radius, speed = float(rng.uniform(*SIZES[item.size])), float(rng.uniform(1.8, 2.8))
        along_x, along_y = MOTIONS[item.motion]
        x, y = x0 + speed * along_x * frame, y0 + speed * along_y * frame
        left, top = np.floor(x).astype(int) - _WINDOW // 2, np.floor(y).astype(int) - _WINDOW // 2
        dx = ((left - x)[:, None, None] + offset[None, None, :]).astype(np.float32)
        dy = ((top - y)[:, None, None] + offset[None, :, None]).astype(np.float32)
        square = (num_frames, _WINDOW, _WINDOW)
        alpha = coverage(item.shape, np.broadcast_to(dx, square), np.broadcast_to(dy, square), radius)
        pixel_y = ((top[:, None] + np.arange(_WINDOW)) % FRAME_SIZE)[:, :, None]
        pixel_x = ((left[:, None] + np.arange(_WINDOW)) % FRAME_SIZE)[:, None, :]
        under = video[rows, pixel_y, pixel_x]
        ink = np.asarray(COLOURS[item.colour], np.float32)
        video[rows, pixel_y, pixel_x] = under + (ink - under) * alpha[..., None]
        inside = alpha > 0.5
        masks[:index, rows, pixel_y, pixel_x] &= ~inside
        masks[index, rows, pixel_y, pixel_x] |= inside
    return Rendering((video + 0.5).astype(np.uint8), masks)
