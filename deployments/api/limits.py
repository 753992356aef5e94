"""What one served model accepts: sizes, lengths and ranges, with the checks that name the field at fault.

Filled by the caller from the model's preset; knows nothing about HTTP beyond the error it raises.
"""

import dataclasses
import itertools
import reprlib
from collections.abc import Mapping
from typing import Final

from deployments.api.errors import InvalidRequest

FRAME_STRIDE: Final = 4
"""A video autoencoder of the Wan family makes one latent from the first frame and one from each four after it."""

MAX_SEED: Final = 2**63 - 1


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LongLimits:
    """What a video longer than a clip may ask for."""

    max_num_frames: int
    num_inference_steps: int
    """The stages that the causal model was trained for, and no others."""
    guidance_scale: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ApiLimits:
    """The limits and defaults of one served model."""

    model: str
    sizes: Mapping[str, tuple[int, int]]
    """Size in the API ("720x1280", width first) -> (width, height) at which the model generates for it."""
    default_size: str
    default_fps: int
    min_fps: int
    max_fps: int
    default_num_frames: int
    min_num_frames: int
    max_num_frames: int
    """Of a clip; more frames make a long video, where there are any."""
    default_num_inference_steps: int
    min_num_inference_steps: int
    max_num_inference_steps: int
    default_guidance_scale: float
    min_guidance_scale: float
    max_guidance_scale: float
    min_tau: float
    """Least matching score that the model's stage map reuses at; a request may ask for more."""
    max_prompt_characters: int
    max_sequence_length: int
    """Tokens that the text encoder reads; only echoed, since a longer prompt is cut with a warning."""
    max_deadline_s: float = 24 * 3600.0
    """Longest time that a request may name for its own completion."""
    long: LongLimits | None = None

    def __post_init__(self) -> None:
        if self.default_size not in self.sizes:
            raise ValueError(f"default_size {self.default_size!r} is not among sizes {sorted(self.sizes)}")
        for size, (width, height) in self.sizes.items():
            canvas_width, canvas_height = canvas_of(size)
            if canvas_width % 2 or canvas_height % 2 or width > canvas_width or height > canvas_height:
                raise ValueError(f"size {size!r} must be even and hold the generated {width}x{height}")
        for name in ("default_num_frames", "min_num_frames", "max_num_frames"):
            if getattr(self, name) % FRAME_STRIDE != 1:
                raise ValueError(f"{name} must be {FRAME_STRIDE}k + 1, got {getattr(self, name)}")
        for name in ("fps", "num_frames", "num_inference_steps", "guidance_scale"):
            low, default, high = (getattr(self, f"{bound}_{name}") for bound in ("min", "default", "max"))
            if not low <= default <= high:
                raise ValueError(f"default_{name} {default} is not between min_{name} {low} and max_{name} {high}")

    @property
    def most_frames(self) -> int:
        """Give the frames of the longest video."""
        return self.max_num_frames if self.long is None else max(self.max_num_frames, self.long.max_num_frames)

    def check_size(self, size: str) -> str:
        """Give the size back, or say which ones there are."""
        if size not in self.sizes:
            raise InvalidRequest(
                f"size must be one of {', '.join(sorted(self.sizes))}; got {reprlib.repr(size)}", param="size"
            )
        return size

    def check_num_frames(self, num_frames: int) -> int:
        """Give the frame count back, or name the nearest valid ones."""
        low, high = self.min_num_frames, self.most_frames
        if low <= num_frames <= high and num_frames % FRAME_STRIDE == 1:
            return num_frames
        below = (min(max(num_frames, low), high) - 1) // FRAME_STRIDE * FRAME_STRIDE + 1
        nearest = [below] if num_frames <= low or num_frames >= high else [below, below + FRAME_STRIDE]
        raise InvalidRequest(
            f"num_frames must be {FRAME_STRIDE}k + 1 between {low} and {high}, got {num_frames}; "
            f"nearest valid: {' or '.join(map(str, nearest))}",
            param="num_frames",
        )

    def frames_of_seconds(self, seconds: int, *, fps: int) -> int:
        """Give the frame count of a whole number of seconds, or say which seconds are possible at this rate."""
        possible = [
            (num_frames - 1) // fps
            for num_frames in range(self.min_num_frames, self.most_frames + 1, FRAME_STRIDE)
            if num_frames > 1 and (num_frames - 1) % fps == 0
        ]
        if seconds in possible:
            return seconds * fps + 1
        choice = _choice(possible) if possible else "left out (give num_frames instead)"
        raise InvalidRequest(
            f"seconds must be {choice} at {fps} frames per second with {self.model}, got {seconds}", param="seconds"
        )


def _choice(values: list[int]) -> str:
    """Name the values, or a long even row of them by its ends."""
    steps = {after - before for before, after in itertools.pairwise(values)}
    if len(values) > 8 and len(steps) == 1:
        return f"from {values[0]} to {values[-1]} in steps of {steps.pop()}"
    return f"one of {', '.join(map(str, values))}"


def canvas_of(size: str) -> tuple[int, int]:
    """Give width and height in pixels of an API size."""
    width, _, height = size.partition("x")
    return int(width), int(height)


def within(name: str, value: int | float, low: int | float, high: int | float) -> None:
    """Raise an error that names the field unless the value lies in the closed range."""
    if not low <= value <= high:
        raise InvalidRequest(f"{name} must be between {low} and {high}, got {value}", param=name)
