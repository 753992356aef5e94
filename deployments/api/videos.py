"""The routes of the OpenAI Videos resource: create, retrieve, list, content, stream, delete, remix.

A route validates, talks to the job store and the artifact store, and answers; it never waits for the work.
Edits, extensions and characters are part of the resource but not offered: they answer 501 and say so.
"""

import asyncio
import dataclasses
import hashlib
import json
import logging
import re
import reprlib
from collections.abc import Mapping
from typing import Annotated, Final, Literal

from fastapi import APIRouter, Depends, Header, Query, Request, Response
from fastapi.responses import StreamingResponse

from actors.messages import ClipRequest
from deployments.api.artifacts import VIDEO_ID, Variant
from deployments.api.auth import Caller, caller_of, tenant_of
from deployments.api.body import read_body
from deployments.api.content import send_file
from deployments.api.description import ErrorAnswer
from deployments.api.errors import Conflict, InvalidRequest, NotBuilt, NotFound
from deployments.api.facts import ReuseFacts, effective_parameters
from deployments.api.mask import draw_mask
from deployments.api.resources import VideoDeleted, VideoList, VideoObject, body_schema, video_object
from deployments.api.schema import VideoCreate, VideoRemix, draw_seed, read_prompt, restrict_reuse, to_clip_request
from deployments.api.services import ApiServices, services_of
from deployments.api.stream import stream_fragments
from deployments.api.video_job import Idempotency, VideoJob, VideoStatus, lane_of
from reprise.chorus.plan import ReuseMode

logger = logging.getLogger(__name__)

POLL_HEADER: Final = "openai-poll-after-ms"
_MAX_KEY_CHARACTERS: Final = 255
_TRACEPARENT: Final = re.compile(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}")
"""The W3C header that names the caller's span; any other text is no reason to refuse a job."""

router = APIRouter(prefix="/v1/videos", tags=["videos"])

Services = Annotated[ApiServices, Depends(services_of)]
Tenant = Annotated[str, Depends(tenant_of)]
Requester = Annotated[Caller, Depends(caller_of)]
IdempotencyKey = Annotated[str | None, Header()]


@router.post("", openapi_extra=body_schema(VideoCreate))
async def create_video(
    request: Request, response: Response, services: Services, caller: Requester, idempotency_key: IdempotencyKey = None
) -> VideoObject:
    """Queue a clip and give its job at once."""
    settings = services.settings
    body = await read_body(VideoCreate, request, max_bytes=settings.max_body_bytes)
    clip = restrict_reuse(to_clip_request(body, settings.limits), caller.limits, is_named=body.reuse is not None)
    if clip.source is not None:
        await _check_source(services, caller.tenant, clip.source)
    print_of_body = _fingerprint({"path": "create", **body.model_dump(mode="json")})
    job = await _submit(
        request, services, caller.tenant, clip, idempotency_key, print_of_body, deadline_s=body.deadline_s
    )
    return _show(services, job, response)


@router.post("/edits", status_code=501, include_in_schema=False)
@router.post("/extensions", status_code=501, include_in_schema=False)
@router.post("/characters", status_code=501, include_in_schema=False)
@router.get("/characters/{character_id}", status_code=501, include_in_schema=False)
async def refuse_unbuilt(request: Request) -> None:
    """Say that an endpoint of the resource is not offered."""
    raise NotBuilt(
        f"{request.method} {request.url.path} is not implemented; to start from an existing video, "
        "use POST /v1/videos/{video_id}/remix"
    )


@router.get("")
async def list_videos(
    services: Services,
    tenant: Tenant,
    after: Annotated[str | None, Query()] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    order: Annotated[Literal["asc", "desc"], Query()] = "desc",
) -> VideoList:
    """List jobs by creation time; a cursor stays valid when its video is deleted."""
    if after is not None and not VIDEO_ID.fullmatch(after):
        raise InvalidRequest(f"after must be the id of a video, got {reprlib.repr(after)}", param="after")
    page = await services.jobs.page(tenant, after=after, limit=limit, order=order)
    videos = [video_object(job) for job in page.jobs]
    return VideoList(
        data=videos,
        first_id=videos[0].id if videos else None,
        last_id=videos[-1].id if videos else None,
        has_more=page.has_more,
    )


@router.get("/{video_id}")
async def retrieve_video(video_id: str, response: Response, services: Services, tenant: Tenant) -> VideoObject:
    """Give a job as it stands; a failed job is a normal answer with an `error` in it."""
    return _show(services, await _find(services, tenant, video_id), response)


@router.head("/{video_id}/content", include_in_schema=False)
@router.get(
    "/{video_id}/content",
    response_class=Response,
    responses={206: {"description": "A part"}, 416: {"model": ErrorAnswer, "description": "No such part"}},
)
async def download_video(
    video_id: str,
    request: Request,
    services: Services,
    tenant: Tenant,
    variant: Annotated[Variant, Query()] = Variant.VIDEO,
) -> Response:
    """Send a finished file, whole or in part; 409 before the job has completed."""
    _require_completed(await _find(services, tenant, video_id), "has no content")
    return await send_file(request, services.artifacts, tenant=tenant, video_id=video_id, variant=variant)


@router.get("/{video_id}/stream", response_class=StreamingResponse)
async def stream_video(video_id: str, services: Services, tenant: Tenant) -> StreamingResponse:
    """Send a long video as a fragmented MP4 while it is being made; it plays at once, from its beginning."""
    job = await _find(services, tenant, video_id)
    if not job.request.is_long:
        raise InvalidRequest(
            f"{video_id} is a clip, which is made in one piece; get its content", param="video_id", code="not_streamed"
        )
    if job.status is VideoStatus.FAILED:
        _require_completed(job, "cannot be streamed")
    pieces = stream_fragments(services.jobs, services.artifacts, tenant=tenant, video_id=video_id)
    return StreamingResponse(pieces, media_type=Variant.VIDEO.media_type, headers={"cache-control": "no-store"})


@router.get("/{video_id}/mask", response_class=Response)
async def get_mask(
    video_id: str, services: Services, tenant: Tenant, phrase: Annotated[str, Query(max_length=200)]
) -> Response:
    """Send where an object is in a finished clip, as one PNG: the masks of its frames, one below the other."""
    job = await _find(services, tenant, video_id)
    stored = None if services.find_mask is None else await services.find_mask(tenant, video_id, phrase)
    if stored is None:
        raise NotFound(f"{job.id} has no mask of {reprlib.repr(phrase)}", param="phrase", code="mask_not_found")
    mask = await asyncio.to_thread(draw_mask, stored)
    return Response(mask.png, media_type="image/png", headers={"x-mask-frames": str(mask.num_frames)})


@router.delete("/{video_id}")
async def delete_video(video_id: str, services: Services, tenant: Tenant) -> VideoDeleted:
    """Remove a job in any status with its files and what could be reused of it; work on it stops at the next step."""
    if not VIDEO_ID.fullmatch(video_id) or not await services.jobs.delete(tenant, video_id):
        raise _unknown(video_id)
    await asyncio.to_thread(services.artifacts.delete, tenant, video_id)
    try:
        await services.forget_source(tenant, video_id)
        await services.jobs.leftovers.purged(tenant, video_id)
    except Exception:  # whatever it was, the video itself is gone, and the sweep tries again
        logger.exception("%s is deleted, its latents are not yet", video_id)
    return VideoDeleted(id=video_id)


@router.post("/{video_id}/remix", openapi_extra=body_schema(VideoRemix))
async def remix_video(
    video_id: str,
    request: Request,
    response: Response,
    services: Services,
    caller: Requester,
    idempotency_key: IdempotencyKey = None,
) -> VideoObject:
    """Queue a clip that starts from a finished video's latents; only prompt and seed differ."""
    settings = services.settings
    body = await read_body(VideoRemix, request, max_bytes=settings.max_body_bytes)
    prompt = read_prompt(body.prompt, settings.limits)
    source = await _find(services, caller.tenant, video_id)
    _require_completed(source, "cannot be remixed")
    _require_clip(source, "video_id")
    if source.model != settings.limits.model:
        raise InvalidRequest(
            f"{video_id} was made by {source.model}, which {settings.limits.model} cannot continue; create a new video",
            param="video_id",
            code="model_mismatch",
        )
    if ReuseMode.CHORUS not in caller.limits.reuse_modes:
        raise InvalidRequest("a remix starts from latents of another video, which you may not reuse", param="video_id")
    # With the source's own seed an unchanged prompt would give its own video again.
    clip = dataclasses.replace(
        source.request,
        prompt=prompt,
        seed=draw_seed(),
        reuse=ReuseMode.CHORUS,
        tau=None,
        source=None,
        remix_of=video_id,
    )
    print_of_body = _fingerprint({"path": f"remix {video_id}", **body.model_dump(mode="json")})
    job = await _submit(request, services, caller.tenant, clip, idempotency_key, print_of_body)
    return _show(services, job, response)


async def _submit(
    request: Request,
    services: ApiServices,
    tenant: str,
    clip: ClipRequest,
    key: str | None,
    print_of_body: str,
    *,
    deadline_s: float | None = None,
) -> VideoJob:
    limits = services.settings.limits
    if key is not None and not 0 < len(key) <= _MAX_KEY_CHARACTERS:
        raise InvalidRequest(
            f"Idempotency-Key must have 1 to {_MAX_KEY_CHARACTERS} characters, got {len(key)}", param="Idempotency-Key"
        )
    traceparent = request.headers.get("traceparent", "")
    facts = ReuseFacts(effective=effective_parameters(clip, max_sequence_length=limits.max_sequence_length))
    idempotency = None if key is None else Idempotency(key=key, fingerprint=print_of_body)
    # A look-up that only helps to refuse would cost the most when there is the least to spare.
    has_room = await services.jobs.has_room(tenant, lane_of(clip))
    return await services.jobs.create(
        tenant,
        clip,
        model=limits.model,
        reuse=facts,
        idempotency=idempotency,
        work_s=await services.predict_work(tenant, clip) if has_room else 0.0,
        deadline_s=deadline_s,
        traceparent=traceparent if _TRACEPARENT.fullmatch(traceparent) else "",
    )


def _fingerprint(body: Mapping[str, object]) -> str:
    """Give the same text for equal bodies and another for any other."""
    return hashlib.sha256(json.dumps(body, sort_keys=True).encode()).hexdigest()


async def _find(services: ApiServices, tenant: str, video_id: str) -> VideoJob:
    job = await services.jobs.get(tenant, video_id) if VIDEO_ID.fullmatch(video_id) else None
    if job is None:
        raise _unknown(video_id)
    return job


async def _check_source(services: ApiServices, tenant: str, video_id: str) -> None:
    job = await services.jobs.get(tenant, video_id) if VIDEO_ID.fullmatch(video_id) else None
    if job is None or job.status is not VideoStatus.COMPLETED:
        state = "no such video" if job is None else job.status
        raise InvalidRequest(
            f"reuse.source must be a completed video, got {reprlib.repr(video_id)}: {state}", param="reuse.source"
        )
    _require_clip(job, "reuse.source")


def _require_clip(job: VideoJob, param: str) -> None:
    if job.request.is_long:
        raise InvalidRequest(
            f"{job.id} is a long video, whose latents are not kept; only a clip can be continued", param=param
        )


def _unknown(video_id: str) -> NotFound:
    return NotFound(
        f"there is no video {reprlib.repr(video_id)}; it may have been deleted or expired", param="video_id"
    )


def _require_completed(job: VideoJob, lacks: str) -> None:
    if job.status is VideoStatus.COMPLETED:
        return
    code = "video_failed" if job.status is VideoStatus.FAILED else "video_not_ready"
    wait = "" if job.status.is_final else "; wait until its status is completed"
    raise Conflict(f"{job.id} is {job.status} and {lacks}{wait}", param="video_id", code=code)


def _show(services: ApiServices, job: VideoJob, response: Response) -> VideoObject:
    if not job.status.is_final:
        response.headers[POLL_HEADER] = str(services.settings.poll_after_ms)
    return video_object(job)
