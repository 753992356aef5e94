"""Request bodies of the Videos API and their conversion into a `ClipRequest`.

The OpenAI fields plus our documented extensions (seed, num_inference_steps, guidance_scale, negative_prompt,
num_frames, fps, reuse, deadline_s). Types are checked here strictly, ranges by `ApiLimits`; nothing is rounded or
replaced.
"""

import dataclasses
import reprlib
import secrets
import unicodedata
from typing import Annotated, Final, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Discriminator, Field, Tag, ValidationError
from pydantic_core import PydanticCustomError

from actors.messages import ClipRequest
from deployments.api.errors import InvalidRequest
from deployments.api.limits import MAX_SEED, ApiLimits, canvas_of, within
from deployments.api.tenants import TenantLimits
from reprise.chorus.plan import ReuseMode

_BLANK_LETTERS: Final = frozenset("\u034f\u115f\u1160\u17b4\u17b5\u2800\u3164\uffa0")
"""Characters that show nothing although Unicode counts them as letters, marks or symbols."""

_MAX_PARAM_CHARACTERS: Final = 100
"""An unknown field's name is the caller's text; no more of it is sent back."""

NO_INPUT_REFERENCE: Final = "input_reference is not supported by this model yet; leave it out"


def _read_seconds(value: object) -> object:
    """Take "4" like 4: the official client sends a string, many others a number."""
    if isinstance(value, str) and value.isascii() and value.isdigit() and len(value) <= 6:
        return int(value)
    return value


def _refuse_reference(value: object) -> None:
    if value is not None:
        raise PydanticCustomError("unsupported", NO_INPUT_REFERENCE)


Int64 = Annotated[int, Field(ge=-(2**63), lt=2**63)]
"""Every whole number: one with thousands of digits would fail later, even in the text of an error."""


class Body(BaseModel):
    """What a caller sends: strict types, no unknown fields."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class ReuseOptions(Body):
    """What a request lets the server reuse."""

    mode: ReuseMode = ReuseMode.CHORUS
    tau: float | None = None
    source: str | None = None


_MODE, _OBJECT = "<mode>", "<object>"
Reuse = Annotated[
    Annotated[ReuseMode, Tag(_MODE)] | Annotated[ReuseOptions, Tag(_OBJECT)],
    Discriminator(lambda value: _MODE if isinstance(value, str) else _OBJECT),
]
"""The mode alone, or an object; the tags are in the place that pydantic names of a fault, and not in the input."""


class VideoCreate(Body):
    """Body of `POST /v1/videos`, as JSON or multipart form."""

    prompt: str
    model: str | None = None
    seconds: Annotated[Int64 | None, BeforeValidator(_read_seconds)] = None
    size: str | None = None
    input_reference: Annotated[object, BeforeValidator(_refuse_reference)] = None
    seed: Int64 | None = None
    num_inference_steps: Int64 | None = None
    guidance_scale: float | None = None
    negative_prompt: str | None = None
    num_frames: Int64 | None = None
    fps: Int64 | None = None
    reuse: Reuse | None = None
    deadline_s: float | None = None


class VideoRemix(Body):
    """Body of `POST /v1/videos/{id}/remix`; the seed is drawn, everything else is taken from the source."""

    prompt: str


BodyT = TypeVar("BodyT", bound=Body)
FormValue = str | dict[str, str]


def read_json_body(kind: type[BodyT], raw: bytes) -> BodyT:
    """Read a JSON body, or raise the 400 that names the field at fault."""
    try:
        return kind.model_validate_json(raw)
    except ValidationError as error:
        raise _first_fault(kind, error) from None


def read_form_body(kind: type[BodyT], fields: dict[str, FormValue]) -> BodyT:
    """Read the fields of a form, in which every value is text."""
    try:
        return kind.model_validate_strings(fields)
    except ValidationError as error:
        raise _first_fault(kind, error) from None


def _first_fault(kind: type[Body], error: ValidationError) -> InvalidRequest:
    fault = error.errors(include_url=False)[0]
    place = [str(part) for part in fault["loc"] if part not in (_MODE, _OBJECT)]
    param = ".".join(place) if place else None
    if fault["type"] == "extra_forbidden":
        known = ReuseOptions if len(place) > 1 else kind
        message = f"unknown field {reprlib.repr(param)}; known fields: {', '.join(known.model_fields)}"
        param = param and param[:_MAX_PARAM_CHARACTERS]
    elif fault["type"] == "missing":
        message = f"{param} is required"
    elif fault["type"] == "unsupported":
        message = fault["msg"]
    elif param is None:
        message = f"the body must be one JSON object: {fault['msg']}"
    else:
        message = f"{param}: {fault['msg']}, got {reprlib.repr(fault['input'])}"
    return InvalidRequest(message, param=param)


def normalise_text(text: str) -> str:
    """Compose characters (NFC) and strip what shows nothing from both ends; inside, nothing changes."""
    text = unicodedata.normalize("NFC", text)
    visible = [index for index, letter in enumerate(text) if not _is_blank(letter)]
    return text[visible[0] : visible[-1] + 1] if visible else ""


def _is_blank(letter: str) -> bool:
    # Cc, Cf: control and format (zero-width) characters; Zs, Zl, Zp: spaces. Variation selectors are marks.
    is_selector = "\ufe00" <= letter <= "\ufe0f" or "\U000e0100" <= letter <= "\U000e01ef"
    return letter in _BLANK_LETTERS or is_selector or unicodedata.category(letter) in {"Cc", "Cf", "Zs", "Zl", "Zp"}


def _text(name: str, text: str, limits: ApiLimits) -> str:
    text = normalise_text(text)
    if len(text) > limits.max_prompt_characters:
        raise InvalidRequest(
            f"{name} must have at most {limits.max_prompt_characters} characters, got {len(text)}", param=name
        )
    for letter in text:
        if unicodedata.category(letter) == "Cc" and letter not in "\t\n\r":
            raise InvalidRequest(f"{name} has the control character U+{ord(letter):04X}; remove it", param=name)
    return text


def read_prompt(prompt: str, limits: ApiLimits) -> str:
    """Give the prompt as the model gets it; its length is measured on the text that is checked for emptiness."""
    text = _text("prompt", prompt, limits)
    if not text:
        raise InvalidRequest("prompt must have at least one visible character", param="prompt")
    return text


def draw_seed() -> int:
    """Draw a seed, so that each clip is another one; it is echoed, so that the clip can be made again."""
    return secrets.randbelow(2**32)


def to_clip_request(body: VideoCreate, limits: ApiLimits) -> ClipRequest:
    """Fill in the defaults and check every limit; the first fault raises `InvalidRequest`."""
    if body.model is not None and body.model != limits.model:
        raise InvalidRequest(
            f"model must be {limits.model!r}, the one served here; got {reprlib.repr(body.model)}",
            param="model",
            code="model_not_found",
        )
    prompt = read_prompt(body.prompt, limits)
    size = limits.check_size(limits.default_size if body.size is None else body.size)
    fps = limits.default_fps if body.fps is None else body.fps
    within("fps", fps, limits.min_fps, limits.max_fps)
    num_frames = _num_frames(body, limits, fps=fps)
    is_long = num_frames > limits.max_num_frames
    steps, guidance_scale = _long_sampling(body, limits) if is_long else _sampling(body, limits)
    seed = draw_seed() if body.seed is None else body.seed
    within("seed", seed, 0, MAX_SEED)
    if body.deadline_s is not None:
        within("deadline_s", body.deadline_s, 1, limits.max_deadline_s)
    reuse = _checked_reuse(body.reuse, limits)
    if is_long and (reuse.source is not None or reuse.tau is not None):
        raise InvalidRequest(
            "a long video reuses no other's latents; leave reuse.source and reuse.tau out", param="reuse"
        )
    width, height = limits.sizes[size]
    canvas_width, canvas_height = canvas_of(size)
    return ClipRequest(
        prompt=prompt,
        negative_prompt=_text("negative_prompt", body.negative_prompt or "", limits),
        seed=seed,
        num_inference_steps=steps,
        guidance_scale=guidance_scale,
        width=width,
        height=height,
        num_frames=num_frames,
        fps=fps,
        canvas_width=canvas_width,
        canvas_height=canvas_height,
        reuse=reuse.mode,
        tau=reuse.tau,
        source=reuse.source,
        is_long=is_long,
    )


def restrict_reuse(clip: ClipRequest, limits: TenantLimits, *, is_named: bool) -> ClipRequest:
    """Hold a request to what its tenant may reuse; a mode that was named and is not allowed is an error."""
    modes = limits.reuse_modes
    if clip.reuse not in modes:
        if is_named:
            raise InvalidRequest(
                f"reuse.mode must be one of {', '.join(modes)} for you, got {clip.reuse}", param="reuse"
            )
        return dataclasses.replace(clip, reuse=modes[0])
    if limits.min_tau is None or clip.reuse not in (ReuseMode.CHORUS, ReuseMode.NIRVANA):
        return clip
    return dataclasses.replace(clip, tau=max(limits.min_tau, clip.tau or 0.0))


def _sampling(body: VideoCreate, limits: ApiLimits) -> tuple[int, float]:
    """Give a clip's steps and guidance."""
    steps = limits.default_num_inference_steps if body.num_inference_steps is None else body.num_inference_steps
    within("num_inference_steps", steps, limits.min_num_inference_steps, limits.max_num_inference_steps)
    guidance_scale = limits.default_guidance_scale if body.guidance_scale is None else body.guidance_scale
    within("guidance_scale", guidance_scale, limits.min_guidance_scale, limits.max_guidance_scale)
    return steps, guidance_scale


def _long_sampling(body: VideoCreate, limits: ApiLimits) -> tuple[int, float]:
    """Give a long video's stages and guidance, which are those of its model."""
    assert limits.long is not None, "more frames than a clip's have passed their check"
    fixed = {
        "num_inference_steps": (body.num_inference_steps, limits.long.num_inference_steps),
        "guidance_scale": (body.guidance_scale, limits.long.guidance_scale),
    }
    for name, (given, only) in fixed.items():
        if given is not None and given != only:
            raise InvalidRequest(
                f"{name} must be {only:g} for a video of more than {limits.max_num_frames} frames, got {given}; "
                "leave it out",
                param=name,
            )
    return limits.long.num_inference_steps, limits.long.guidance_scale


def _checked_reuse(given: ReuseMode | ReuseOptions | None, limits: ApiLimits) -> ReuseOptions:
    reuse = given if isinstance(given, ReuseOptions) else ReuseOptions(mode=given or ReuseMode.CHORUS)
    if reuse.tau is not None:
        if reuse.mode not in (ReuseMode.CHORUS, ReuseMode.NIRVANA):
            raise InvalidRequest(f"reuse.tau has no meaning in mode {reuse.mode}; leave it out", param="reuse.tau")
        within("reuse.tau", reuse.tau, limits.min_tau, 1.0)
    if reuse.source is not None and reuse.mode is ReuseMode.OFF:
        raise InvalidRequest("reuse.source has no meaning in mode off; leave one of them out", param="reuse.source")
    return reuse


def _num_frames(body: VideoCreate, limits: ApiLimits, *, fps: int) -> int:
    if body.num_frames is None:
        return limits.default_num_frames if body.seconds is None else limits.frames_of_seconds(body.seconds, fps=fps)
    num_frames = limits.check_num_frames(body.num_frames)
    if body.seconds is not None and body.seconds * fps + 1 != num_frames:
        raise InvalidRequest(
            f"seconds {body.seconds} at {fps} frames per second is {body.seconds * fps + 1} frames, "
            f"but num_frames is {num_frames}; give only one of the two",
            param="num_frames",
        )
    return num_frames
