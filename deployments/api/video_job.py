"""The record of one video job, its four statuses, the table of moves between them, and the lease to make them.

What the OpenAI video object needs is derived from the request, never stored twice. Knows nothing about HTTP;
of Redis only that a record comes back as a flat map of strings.
"""

import dataclasses
import enum
from collections.abc import Mapping
from typing import Final

from actors.messages import ClipRequest
from deployments.api.facts import (
    JobError,
    ReuseFacts,
    error_from_json,
    facts_from_json,
    request_from_json,
)


class VideoStatus(enum.StrEnum):
    """The statuses of the OpenAI Videos resource; there are no others."""

    QUEUED = "queued"
    IN_PROGRESS = "in_progress"
    COMPLETED = "completed"
    FAILED = "failed"

    @property
    def is_final(self) -> bool:
        """Tell whether the job will never change again."""
        return self in (VideoStatus.COMPLETED, VideoStatus.FAILED)


class JobEvent(enum.Enum):
    """What a router reports about a job."""

    START = "start"
    """The first denoise step begins; again when another run takes over."""
    PROGRESS = "progress"
    FINISH = "finish"
    FAIL = "fail"


TRANSITIONS: Final[Mapping[JobEvent, tuple[frozenset[VideoStatus], VideoStatus]]] = {
    JobEvent.START: (frozenset({VideoStatus.QUEUED, VideoStatus.IN_PROGRESS}), VideoStatus.IN_PROGRESS),
    JobEvent.PROGRESS: (frozenset({VideoStatus.IN_PROGRESS}), VideoStatus.IN_PROGRESS),
    JobEvent.FINISH: (frozenset({VideoStatus.IN_PROGRESS}), VideoStatus.COMPLETED),
    JobEvent.FAIL: (frozenset({VideoStatus.QUEUED, VideoStatus.IN_PROGRESS}), VideoStatus.FAILED),
}
"""Event -> (statuses it is allowed in, status it leads to). Deletion is no status: the record goes."""


class Lane(enum.StrEnum):
    """Queues of jobs for different workers; none waits for another's."""

    CLIPS = "clips"
    LONG = "long"


def lane_of(request: ClipRequest) -> Lane:
    """Tell in which queue a request waits."""
    return Lane.LONG if request.is_long else Lane.CLIPS


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class VideoJob:
    """One job as stored at the moment it was read."""

    id: str
    tenant: str
    status: VideoStatus
    progress: int
    """Per cent, 0 to 100; never falls."""
    attempts: int
    """Runs begun so far."""
    created_at: float
    """Unix seconds, as are the other times."""
    started_at: float | None
    """When the first denoising step began."""
    ended_at: float | None
    """When the job became final."""
    expires_at: float
    """When record and files go; moves on with each write until the job is final."""
    model: str
    request: ClipRequest
    reuse: ReuseFacts
    error: JobError | None
    traceparent: str | None = None
    """The caller's span, where it named one."""
    num_fragments: int = 0
    """Pieces of a long video that can be shown already."""

    @property
    def completed_at(self) -> float | None:
        """Give when the video was there."""
        return self.ended_at if self.status is VideoStatus.COMPLETED else None

    @property
    def lane(self) -> Lane:
        """Give the queue that the job waited in."""
        return lane_of(self.request)

    @property
    def seconds(self) -> str:
        """Give the clip's length as the API writes it: the first frame takes no time."""
        return f"{(self.request.num_frames - 1) / self.request.fps:g}"

    @property
    def size(self) -> str:
        """Give the delivered size as the API writes it."""
        return f"{self.request.canvas_width}x{self.request.canvas_height}"


class WriteOutcome(enum.StrEnum):
    """What became of a router's write; only `APPLIED` changed anything."""

    APPLIED = "applied"
    STALE = "stale"
    """Another run has taken the job over."""
    ILLEGAL = "illegal"
    """The table of transitions does not allow the event in the job's status."""
    DELETED = "deleted"
    LATE = "late"
    """The job was past its deadline, and has failed for that."""
    GONE = "gone"
    """The record has expired."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Idempotency:
    """A caller's Idempotency-Key and the fingerprint of the body it came with."""

    key: str
    fingerprint: str


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class JobLease:
    """The right to write one run of one job."""

    tenant: str
    video_id: str
    attempt: int
    entry: str
    """Id of the job's stream entry."""
    consumer: str
    lane: Lane = Lane.CLIPS


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClaimedJob:
    """A job to run and the lease to run it under."""

    lease: JobLease
    job: VideoJob


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class JobPage:
    """One page of a tenant's list."""

    jobs: tuple[VideoJob, ...]
    has_more: bool


def job_from_fields(fields: Mapping[str, str]) -> VideoJob:
    """Read a record from its stored fields."""
    return VideoJob(
        id=fields["id"],
        tenant=fields["tenant"],
        status=VideoStatus(fields["status"]),
        progress=int(fields["progress"]),
        attempts=int(fields["attempts"]),
        created_at=int(fields["created_us"]) / 1_000_000,
        started_at=int(fields["started_ms"]) / 1000 if "started_ms" in fields else None,
        ended_at=int(fields["ended_ms"]) / 1000 if "ended_ms" in fields else None,
        expires_at=int(fields["expires_ms"]) / 1000,
        model=fields["model"],
        request=request_from_json(fields["request"]),
        reuse=facts_from_json(fields["reuse"]),
        error=error_from_json(fields["error"]) if "error" in fields else None,
        traceparent=fields.get("traceparent"),
        num_fragments=int(fields.get("num_fragments", 0)),
    )
