"""What crosses a process: frozen dataclasses of plain values, nothing that holds a handle or a file.

The request as validated at the edge, the plan the router made for it, and what the denoiser reports back.
"""

import dataclasses
from collections.abc import Mapping
from typing import Any

from reprise.chorus.plan import ReuseMode, ReusePlan
from reprise.chorus.work import WorkDone
from reprise.flashforward.schedule import Placement
from reprise.wan.long_presets import LongPreset


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
    reuse: ReuseMode = ReuseMode.CHORUS
    tau: float | None = None
    """Least matching score that is reused, where the caller asks for more than the model's own."""
    source: str | None = None
    """Video whose latents must be the source, or none."""
    remix_of: str | None = None
    """Video that this is a remix of, and so its source."""
    is_long: bool = False
    """Longer than the clip model's window: the causal model makes it, chunk by chunk."""

    @property
    def forced_source(self) -> str | None:
        """Give the one video that may be the source, None where any may."""
        return self.source if self.remix_of is None else self.remix_of


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StepDone:
    """One denoising step has finished; `step` counts from 1 up to `num_steps`, skipped steps included."""

    step: int
    num_steps: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class DenoiseRequest:
    """One clip to make by plan; `tenant` and `video_id` name what is stored of it."""

    tenant: str
    video_id: str
    clip: ClipRequest
    plan: ReusePlan


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClipDone:
    """A finished clip: its files by variant and what making them took."""

    plan: ReusePlan
    """As it was run: a source that had gone by then has turned the hit into a miss."""
    files: Mapping[str, bytes] = dataclasses.field(repr=False)
    work: WorkDone
    num_tokens: int
    num_tokens_dropped: int
    fetch_s: float
    decode_s: float
    encode_s: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrajectoryStored:
    """The latents of a miss are in the latent store; sent after `ClipDone`, so that no caller waits for it."""

    steps: tuple[int, ...]
    """Steps whose entering latent was kept; empty when the store refused."""
    num_bytes: int
    frames_FHWC: Any = dataclasses.field(repr=False)
    """The clip, uint8 (F, H, W, 3), to make masks from; a reference to it once it has left the worker."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LongRequest:
    """One long video to make."""

    video_id: str
    clip: ClipRequest


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ChunkDone:
    """Latents are finished and can be shown; in order."""

    latents_done: int
    """Of `num_latents`, so far."""
    num_latents: int
    fragment: bytes = dataclasses.field(repr=False)
    """The next bytes of the video as a fragmented MP4."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LongWork:
    """How a long video was made."""

    method: str
    placement: str
    forwards: Mapping[str, int]
    """Forwards run, by role."""
    rounds: int
    """Rounds of the schedule; the same number on any machine."""
    workers: int
    wait_s: Mapping[str, float]
    """Seconds that each worker was idle between its first and last forward, by its number; empty for one worker."""
    peak_kv_bytes: int
    """Most bytes of KV held on one worker."""
    render_s: float
    """First forward to last latent; on one worker with the decoding between them."""
    first_latents_s: float
    """First forward to first finished chunk."""
    first_frame_s: float
    """Taken up to first frames encoded, prompt and decoding included."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LongDone:
    """A finished long video."""

    files: Mapping[str, bytes] = dataclasses.field(repr=False)
    work: LongWork
    num_tokens: int
    num_tokens_dropped: int
    prompt_s: float
    decode_s: float
    encode_s: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LongRendererConfig:
    """Which model makes long videos, and on how many workers."""

    preset: LongPreset
    placement: Placement = Placement.ONE_WORKER
    device: str = "cpu"
    num_threads: int = 1
    """Threads of one worker's CPU kernels."""
    num_cpus: float = 1.0
    """Of each of several workers, as is num_gpus."""
    num_gpus: float = 0.0


LongEvent = ChunkDone | LongDone
DenoiseEvent = StepDone | ClipDone | TrajectoryStored
