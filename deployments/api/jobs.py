"""The job store: every job lives in Redis before it is scheduled, survives restarts and finishes exactly once.

A run of a job is a lease numbered by `attempt`; a router that lost its lease cannot write any more. Where what lies in
Redis is in job_keys.py. Knows nothing about routes, Ray or where files are.
"""

import dataclasses
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, Self, cast

from redis.asyncio import Redis

from actors.messages import ClipRequest
from deployments.api import job_scripts, queue_scripts
from deployments.api.errors import DeadlineOutOfReach, IdempotencyConflict, Overloaded, QueueFull, TenantFull
from deployments.api.facts import FailureCode, JobError, ReuseFacts, error_to_json, request_to_json
from deployments.api.job_keys import (
    CLOCK,
    DEADLINES,
    ENDED,
    EXPIRY,
    GROUP,
    PREFIX,
    PURGES,
    idempotency_key,
    job_key,
    lane_key,
    list_key,
    member_of,
    queue_key,
    tombstone_key,
)
from deployments.api.job_leftovers import JobLeftovers
from deployments.api.redis_client import connect_async
from deployments.api.video_job import (
    TRANSITIONS,
    ClaimedJob,
    Idempotency,
    JobEvent,
    JobLease,
    JobPage,
    Lane,
    VideoJob,
    VideoStatus,
    WriteOutcome,
    job_from_fields,
    lane_of,
)

_STAMP: Final = slice(len("video_"), len("video_") + 16)
_LATE: Final = JobError(code=FailureCode.DEADLINE_EXCEEDED, message="the job was not done by its deadline")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class JobStoreConfig:
    """How long things are kept and when a run counts as dead."""

    retention_s: float = 24 * 3600.0
    """Life of record and files after the job's last write."""
    lease_timeout_s: float = 30.0
    """A claimed job that is not renewed for so long is given to another router."""
    max_unfinished_jobs: int = 1000
    """Jobs of all tenants that may wait or run in one lane at a time; more are refused at once."""
    max_unfinished_jobs_per_tenant: int = 1000
    """And of one tenant, where it has no limit of its own."""
    max_wait_s: float = 0.0
    """A job that would wait longer for its turn is refused at once; 0 refuses none for that."""
    workers: Mapping[Lane, int] = dataclasses.field(default_factory=lambda: dict.fromkeys(Lane, 1))
    """Jobs of a lane that run at a time."""
    max_attempts: int = 3
    """Runs of one job before it fails as `interrupted`."""
    tombstone_s: float = 3600.0
    """Longer than any run can go on after its job was deleted."""


class JobStore:
    """Jobs in Redis; any number of API replicas and routers share one. Bound to the event loop it is first used on."""

    def __init__(self, redis: Redis, config: JobStoreConfig) -> None:
        self._redis = redis
        self._config = config
        self._retention_ms = int(config.retention_s * 1000)
        script = redis.register_script
        self._create = script(job_scripts.CREATE)
        self._has_room = script(job_scripts.HAS_ROOM)
        self._name = script(job_scripts.NAME)
        self._add = script(job_scripts.ADD)
        self._claim = script(queue_scripts.CLAIM)
        self._advance = script(queue_scripts.ADVANCE)
        self._renew = script(queue_scripts.RENEW)
        self._expire_waiting = script(queue_scripts.EXPIRE_WAITING)
        self._delete = script(queue_scripts.DELETE)
        self._page = script(job_scripts.PAGE)
        self.leftovers = JobLeftovers(redis)

    @classmethod
    def connect(cls, url: str, config: JobStoreConfig | None = None, *, timeout_s: float = 5.0) -> Self:
        """Make a store on a Redis URL (`redis://`, `rediss://`, `unix://`); connects on first use."""
        return cls(connect_async(url, timeout_s=timeout_s), config or JobStoreConfig())

    async def ping(self) -> None:
        """Raise redis' connection error if the server does not answer."""
        await self._redis.ping()

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def create(
        self,
        tenant: str,
        request: ClipRequest,
        *,
        model: str,
        reuse: ReuseFacts,
        idempotency: Idempotency | None = None,
        work_s: float = 0.0,
        deadline_s: float | None = None,
        traceparent: str = "",
    ) -> VideoJob:
        """Store a queued job and schedule it in one step, or give the job that the same key and body made before.

        `work_s` is what a worker is predicted to spend on it, 0 where nobody can tell. Raises an ApiError that says
        when to try again where the job would wait too long.
        """
        digest = hashlib.sha256(idempotency.key.encode()).hexdigest() if idempotency else ""
        lane, config = lane_of(request), self._config
        outcome, *found = await self._create(
            keys=[
                CLOCK,
                list_key(tenant),
                queue_key(lane, tenant),
                EXPIRY,
                idempotency_key(tenant, digest),
                lane_key(lane, "turns"),
                lane_key(lane, "virtual"),
                lane_key(lane, "work"),
                lane_key(lane, "bell"),
                DEADLINES,
            ],
            args=[
                PREFIX,
                tenant,
                secrets.token_hex(8),
                idempotency.fingerprint if idempotency else "",
                self._retention_ms,
                self._retention_ms,
                model,
                request_to_json(request),
                reuse.to_json(),
                queue_key(lane, ""),
                GROUP,
                config.max_unfinished_jobs,
                config.max_unfinished_jobs_per_tenant,
                f"{work_s:.3f}",
                config.max_wait_s,
                config.workers[lane],
                "" if deadline_s is None else int(1000 * deadline_s),
                traceparent,
            ],
        )
        match outcome:
            case "conflict":
                raise IdempotencyConflict(found[0])
            case "tenant_full":
                raise TenantFull(int(found[0]))
            case "full":
                raise QueueFull(config.max_unfinished_jobs)
            case "overloaded":
                raise Overloaded(float(found[0]), config.max_wait_s)
            case "too_late":
                assert deadline_s is not None
                raise DeadlineOutOfReach(float(found[0]), deadline_s)
        return _job(found[0])

    async def has_room(self, tenant: str, lane: Lane) -> bool:
        """Tell whether a job would be taken if it were no work; cheap, and nothing is promised."""
        config = self._config
        found = await self._has_room(
            keys=[queue_key(lane, tenant), lane_key(lane, "work")],
            args=[
                PREFIX,
                tenant,
                queue_key(lane, ""),
                config.max_unfinished_jobs,
                config.max_unfinished_jobs_per_tenant,
                config.max_wait_s,
                config.workers[lane],
            ],
        )
        return bool(found)

    async def add_finished(
        self,
        tenant: str,
        request: ClipRequest,
        *,
        model: str,
        reuse: ReuseFacts,
        put_files: Callable[[str], Awaitable[None]],
    ) -> VideoJob:
        """Add a video that exists already; its record appears, whole, once its files are stored under its id."""
        video_id: str = await self._name(keys=[CLOCK], args=[secrets.token_hex(8)])
        await put_files(video_id)
        fields = await self._add(
            keys=[job_key(tenant, video_id), list_key(tenant), EXPIRY],
            args=[
                tenant,
                video_id,
                video_id[_STAMP],
                self._retention_ms,
                model,
                request_to_json(request),
                reuse.to_json(),
                VideoStatus.COMPLETED.value,
            ],
        )
        return _job(fields)

    async def get(self, tenant: str, video_id: str) -> VideoJob | None:
        """Give a tenant's job, None if there is none (any more)."""
        fields = cast(dict[str, str], await self._redis.hgetall(job_key(tenant, video_id)))
        return job_from_fields(fields) if fields else None

    async def page(self, tenant: str, *, after: str | None, limit: int, order: Literal["asc", "desc"]) -> JobPage:
        """Give jobs by creation time that follow the id `after`, which itself may have been deleted meanwhile."""
        found = await self._page(
            keys=[list_key(tenant)],
            args=[f"{PREFIX}:job:{tenant}:", after[_STAMP] if after else "", order, limit],
        )
        return JobPage(jobs=tuple(_job(fields) for fields in found[:limit]), has_more=len(found) > limit)

    async def claim(self, consumer: str, *, count: int, block_s: float, lane: Lane = Lane.CLIPS) -> list[ClaimedJob]:
        """Lease up to `count` jobs: first those of dead routers, then new ones; waits up to `block_s` for the first."""
        claimed = await self._claim_now(consumer, count, lane)
        if not claimed and await self._redis.blpop([lane_key(lane, "bell")], timeout=block_s):
            claimed = await self._claim_now(consumer, count, lane)
        return claimed

    async def _claim_now(self, consumer: str, count: int, lane: Lane) -> list[ClaimedJob]:
        limit = self._config.max_attempts
        spent = JobError(
            code=FailureCode.INTERRUPTED,
            message=f"all {limit} runs were cut off by a lost worker; send the request again",
        )
        taken = await self._claim(
            keys=[
                lane_key(lane, "turns"),
                lane_key(lane, "virtual"),
                lane_key(lane, "work"),
                EXPIRY,
                DEADLINES,
                ENDED,
            ],
            args=[
                f"{PREFIX}:job:",
                queue_key(lane, ""),
                GROUP,
                consumer,
                count,
                int(self._config.lease_timeout_s * 1000),
                limit,
                error_to_json(spent),
                self._retention_ms,
            ],
        )
        return [_claimed(entry, _job(fields), consumer, lane) for _, entry, fields in taken]

    async def expire_waiting(self, *, limit: int = 100) -> int:
        """Fail up to `limit` jobs that wait beyond their deadline; gives their number."""
        return int(
            await self._expire_waiting(
                keys=[DEADLINES, EXPIRY, ENDED],
                args=[f"{PREFIX}:job:", GROUP, error_to_json(_LATE), self._retention_ms, limit],
            )
        )

    async def mark_started(self, lease: JobLease) -> WriteOutcome:
        """Report that the first denoise step begins."""
        return await self._write(lease, JobEvent.START, stamp="started_ms")

    async def set_progress(self, lease: JobLease, progress: int) -> WriteOutcome:
        """Report progress in per cent; a lower one than before changes nothing, and 100 is kept for `finish`."""
        return await self._write(lease, JobEvent.PROGRESS, progress=min(progress, 99))

    async def set_fragments(self, lease: JobLease, count: int, *, progress: int) -> WriteOutcome:
        """Report how many pieces of a long video are stored, and the progress in per cent."""
        fields = {"num_fragments": str(count)}
        return await self._write(lease, JobEvent.PROGRESS, progress=min(progress, 99), fields=fields)

    async def finish(self, lease: JobLease, reuse: ReuseFacts) -> WriteOutcome:
        """Complete the job; its files must be stored before. Remove them if the outcome is not `APPLIED`."""
        return await self._write(lease, JobEvent.FINISH, progress=100, fields={"reuse": reuse.to_json()})

    async def fail(self, lease: JobLease, code: FailureCode, message: str) -> WriteOutcome:
        """Fail the job for a reason that a person can read."""
        if not message.strip():
            raise ValueError(f"a failed job needs a message, got {message!r} with code {code}")
        error = JobError(code=code, message=message)
        return await self._write(lease, JobEvent.FAIL, fields={"error": error_to_json(error)})

    async def _write(
        self,
        lease: JobLease,
        event: JobEvent,
        *,
        progress: int = 0,
        stamp: str = "",
        fields: Mapping[str, str] | None = None,
    ) -> WriteOutcome:
        allowed, target = TRANSITIONS[event]
        sources = "".join(f" {status} " for status in VideoStatus if status in allowed)
        flat = [text for pair in (fields or {}).items() for text in pair]
        of_job = (lease.tenant, lease.video_id)
        move: list[str | int] = [lease.attempt, target, sources, progress, self._retention_ms, member_of(*of_job)]
        is_final = "1" if target.is_final else ""
        outcome = await self._advance(
            keys=[
                job_key(*of_job),
                tombstone_key(*of_job),
                queue_key(lease.lane, lease.tenant),
                EXPIRY,
                lane_key(lease.lane, "work"),
                DEADLINES,
                ENDED,
            ],
            args=[*move, is_final, GROUP, lease.entry, stamp, error_to_json(_LATE), *flat],
        )
        return WriteOutcome(outcome)

    async def renew(self, leases: Sequence[JobLease]) -> frozenset[str]:
        """Keep leases alive; gives the ids of those that are lost. Call it well within `lease_timeout_s`."""
        lost = set()
        for lease in leases:
            of_job = (lease.tenant, lease.video_id)
            held = await self._renew(
                keys=[job_key(*of_job), queue_key(lease.lane, lease.tenant), EXPIRY],
                args=[GROUP, lease.consumer, lease.entry, lease.attempt, self._retention_ms, member_of(*of_job)],
            )
            if not held:
                lost.add(lease.video_id)
        return frozenset(lost)

    async def is_cancelled(self, tenant: str, video_ids: Sequence[str]) -> frozenset[str]:
        """Give those of the ids whose record is gone: nobody can fetch their result any more."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for video_id in video_ids:
                pipe.exists(job_key(tenant, video_id))
            found: list[Any] = await pipe.execute()
        return frozenset(video_id for video_id, exists in zip(video_ids, found, strict=True) if not exists)

    async def delete(self, tenant: str, video_id: str) -> bool:
        """Remove a job in any status; False if there is none.

        Its files, and what could be reused of it, are the caller's to remove; `leftovers.purged` is to follow.
        """
        removed = await self._delete(
            keys=[
                job_key(tenant, video_id),
                tombstone_key(tenant, video_id),
                list_key(tenant),
                EXPIRY,
                DEADLINES,
                PURGES,
            ],
            args=[video_id, member_of(tenant, video_id), int(self._config.tombstone_s * 1000), GROUP],
        )
        return bool(removed)


def _job(flat: Sequence[str]) -> VideoJob:
    return job_from_fields(dict(zip(flat[::2], flat[1::2], strict=True)))


def _claimed(entry: str, job: VideoJob, consumer: str, lane: Lane) -> ClaimedJob:
    lease = JobLease(
        tenant=job.tenant, video_id=job.id, attempt=job.attempts, entry=entry, consumer=consumer, lane=lane
    )
    return ClaimedJob(lease=lease, job=job)
