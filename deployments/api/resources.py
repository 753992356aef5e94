"""The objects that the Videos API answers with, field by field those of the official client's models.

Our own facts sit under the one key `reuse`. Knows nothing about storage.
"""

from typing import Literal

from pydantic import BaseModel

from deployments.api.facts import JobError, ReuseFacts
from deployments.api.video_job import VideoJob, VideoStatus


class VideoObject(BaseModel):
    """One video job."""

    id: str
    object: Literal["video"] = "video"
    created_at: int
    completed_at: int | None
    expires_at: int | None
    """When record and files go; known once the job is final."""
    status: VideoStatus
    progress: int
    model: str
    prompt: str
    seconds: str
    size: str
    remixed_from_video_id: str | None
    error: JobError | None
    reuse: ReuseFacts


class VideoList(BaseModel):
    """One page of jobs."""

    object: Literal["list"] = "list"
    data: list[VideoObject]
    first_id: str | None
    last_id: str | None
    has_more: bool


class VideoDeleted(BaseModel):
    """Confirms a deletion."""

    id: str
    object: Literal["video.deleted"] = "video.deleted"
    deleted: Literal[True] = True


def video_object(job: VideoJob) -> VideoObject:
    """Show a stored job to its caller."""
    return VideoObject(
        id=job.id,
        created_at=int(job.created_at),
        completed_at=None if job.completed_at is None else int(job.completed_at),
        expires_at=int(job.expires_at) if job.status.is_final else None,
        status=job.status,
        progress=job.progress,
        model=job.model,
        prompt=job.request.prompt,
        seconds=job.seconds,
        size=job.size,
        remixed_from_video_id=job.request.remix_of,
        error=job.error,
        reuse=job.reuse,
    )


def body_schema(kind: type[BaseModel]) -> dict[str, object]:
    """Describe a body for the OpenAPI page, since the routes read it themselves."""
    schema = {"schema": kind.model_json_schema(ref_template="#/components/schemas/{model}")}
    return {"requestBody": {"required": True, "content": {"application/json": schema, "multipart/form-data": schema}}}
