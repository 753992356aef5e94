"""What a job says about itself beyond the OpenAI fields: what was reused, what ran, and why it failed.

All of it appears under the one key `reuse` of a video object, except a failure, which is the object's `error`.
Plain frozen values with a JSON form; knows nothing about Redis or HTTP.
"""

import dataclasses
import enum
import json
from collections.abc import Mapping

from actors.messages import ClipRequest
from reprise.chorus.plan import ReuseMode


class FailureCode(enum.StrEnum):
    """Every code that `error.code` of a failed job can have; nothing else ever appears there."""

    INVALID_INPUT = "invalid_input"
    """The request passed the edge, but a later part found it impossible."""
    OUT_OF_MEMORY = "out_of_memory"
    NUMERICAL_ERROR = "numerical_error"
    """The model produced NaN or infinity; no black video is ever delivered."""
    INTERRUPTED = "interrupted"
    """The job was started as often as allowed and no run reached the end."""
    STORAGE_FAILED = "storage_failed"
    """The finished file could not be written."""
    WORKER_LOST = "worker_lost"
    """One of the workers that made a long video together ended; its video cannot go on without it."""
    DEADLINE_EXCEEDED = "deadline_exceeded"
    """The job was not done by the time that its caller named."""
    INTERNAL_ERROR = "internal_error"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class JobError:
    """Why a job failed: a code from the closed list and a sentence for a person."""

    code: FailureCode
    message: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EffectiveParameters:
    """The values the clip is made with, defaults filled in."""

    num_inference_steps: int
    guidance_scale: float
    width: int
    height: int
    num_frames: int
    fps: int
    seed: int
    max_sequence_length: int
    """Tokens of the prompt that the text encoder reads; more are cut, and a warning says so."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PromptWarning:
    """Part of the prompt did not reach an encoder."""

    code: str
    """`prompt_truncated` is the only code so far."""
    encoder: str
    used: int
    """Tokens that the encoder read."""
    dropped: int
    """Tokens that it did not."""


def truncation_warnings(*, used: int, dropped: int) -> tuple[PromptWarning, ...]:
    """Give the warning that the text encoder did not read the whole prompt, or none."""
    if not dropped:
        return ()
    return (PromptWarning(code="prompt_truncated", encoder="text_encoder", used=used, dropped=dropped),)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StageSeconds:
    """Wall time of a finished job by stage; None where the stage did not run."""

    embed: float | None = None
    lookup: float | None = None
    diff: float | None = None
    """Asking the diff engine, where one other than the aligner is configured."""
    fetch: float | None = None
    """Reading the source's latent from the store."""
    prompt: float | None = None
    """Encoding the prompt and preparing the run; part of `denoise`."""
    region: float | None = None
    """Steps k1 to k2; part of `denoise`."""
    dense: float | None = None
    """The steps after them; part of `denoise`."""
    denoise: float | None = None
    first_frame: float | None = None
    """Of a long video, from the worker's begin until its first frames could be watched."""
    decode: float | None = None
    encode: float | None = None
    """Writing the frames as MP4, thumbnail and sprite sheet."""
    store: float | None = None
    """Putting the files where they are served from."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ScheduleFacts:
    """How a long video's forwards were run."""

    method: str
    placement: str
    workers: int
    rounds: int
    """Rounds of the schedule, in each of which a worker runs one forward at most."""
    forwards: Mapping[str, int]
    """By role: planner, extraction, renderer, re_encode."""
    wait_s: Mapping[str, float]
    """Seconds that each worker was idle between its first and last forward, by its number."""
    peak_kv_bytes: int
    first_latents_s: float
    """From the first forward to the first finished chunk."""
    render_s: float
    """From the first forward to the last latent."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ReuseFacts:
    """What one job reused. Until the job is planned only `effective` is known and `hit` is None."""

    effective: EffectiveParameters
    hit: bool | None = None
    source_id: str | None = None
    matching_score: float | None = None
    k1: int | None = None
    k2: int | None = None
    steps_computed: int | None = None
    steps_skipped: int | None = None
    reason: str | None = None
    """Why nothing was reused, or why less than the score allows."""
    change_kinds: tuple[str, ...] = ()
    """What the words that differ from the source's change, strictest first; on a miss, from the best candidate's."""
    is_lowered: bool | None = None
    """Whether those words allowed fewer steps than the matching score."""
    words_added: tuple[str, ...] = ()
    """Of the prompt, and not of the source's, on a hit."""
    words_removed: tuple[str, ...] = ()
    region_phrase: str | None = None
    """The object of the source inside which steps k1 to k2 worked."""
    region_reason: str | None = None
    """Why a hit has k2 equal to k1, where words differ."""
    edit_share: float | None = None
    """Share of the picture, as the model sees it, that was denoised in those steps."""
    see_share: float | None = None
    """And of what took part in the computation."""
    steps_cached: int | None = None
    """Of the computed steps, those at which TeaCache left the model's blocks out."""
    token_share: float | None = None
    """Tokens that went through the model's blocks, as a share of those of a run in full."""
    schedule: ScheduleFacts | None = None
    """Of a long video."""
    seconds: StageSeconds = StageSeconds()
    warnings: tuple[PromptWarning, ...] = ()

    def to_json(self) -> str:
        """Write the facts as one JSON object."""
        return json.dumps(dataclasses.asdict(self), allow_nan=False)


def facts_from_json(text: str) -> ReuseFacts:
    """Read what `ReuseFacts.to_json` wrote."""
    fields = json.loads(text)
    fields["effective"] = EffectiveParameters(**fields["effective"])
    fields["seconds"] = StageSeconds(**fields["seconds"])
    if fields.get("schedule") is not None:
        fields["schedule"] = ScheduleFacts(**fields["schedule"])
    for name in ("change_kinds", "words_added", "words_removed"):
        fields[name] = tuple(fields[name])
    fields["warnings"] = tuple(PromptWarning(**warning) for warning in fields["warnings"])
    return ReuseFacts(**fields)


def error_to_json(error: JobError) -> str:
    """Write a failure as one JSON object."""
    return json.dumps(dataclasses.asdict(error))


def error_from_json(text: str) -> JobError:
    """Read what `error_to_json` wrote."""
    fields: Mapping[str, str] = json.loads(text)
    return JobError(code=FailureCode(fields["code"]), message=fields["message"])


def request_to_json(request: ClipRequest) -> str:
    """Write a clip request as one JSON object."""
    return json.dumps(dataclasses.asdict(request), allow_nan=False)


def request_from_json(text: str) -> ClipRequest:
    """Read what `request_to_json` wrote."""
    fields = json.loads(text)
    return ClipRequest(**{**fields, "reuse": ReuseMode(fields["reuse"])})


def effective_parameters(request: ClipRequest, *, max_sequence_length: int) -> EffectiveParameters:
    """Give the part of a request that is echoed to the caller."""
    return EffectiveParameters(
        num_inference_steps=request.num_inference_steps,
        guidance_scale=request.guidance_scale,
        width=request.width,
        height=request.height,
        num_frames=request.num_frames,
        fps=request.fps,
        seed=request.seed,
        max_sequence_length=max_sequence_length,
    )
