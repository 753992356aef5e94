"""What crosses a process: frozen dataclasses of plain values, nothing that holds a handle or a file.

The request as validated at the edge, the plan the router made for it, and what the denoiser reports back.
"""

import dataclasses
import enum


class ReuseMode(enum.StrEnum):
    """What the caller allows: `on` may start from another request's latents, `off` never does."""

    ON = "on"
    OFF = "off"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClipRequest:
    """A clip as the caller wants it, every default filled in and every limit checked."""

    prompt: str
    negative_prompt: str
    seed: int
    num_inference_steps: int
    guidance_scale: float
    width: int
    """Width the model generates at, pixels."""
    height: int
    num_frames: int
    fps: int
    canvas_width: int
    """Width of the delivered file, pixels; the picture is scaled by a whole number and centred on it."""
    canvas_height: int
    reuse: ReuseMode = ReuseMode.ON
    remix_of: str | None = None
    """Video whose latents must be the source; set by a remix."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepDone:
    """One denoising step has finished; `step` counts from 1 up to `num_steps`, skipped steps included."""

    step: int
    num_steps: int
