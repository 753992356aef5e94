"""The job store: every job lives in Redis before it is scheduled, survives restarts and finishes exactly once.

Layout, all under `reprise:{jobs}` (one hash tag, so that a script may touch several keys on a cluster):

    :job:<tenant>:<id>             hash, the record; expires by itself at `expires_ms`
    :list:<tenant>                 sorted set of ids by creation, microseconds that strictly rise over all replicas
    :idempotency:<tenant>:<hash>   hash (id, fingerprint of the body) of an Idempotency-Key
    :tombstone:<tenant>:<id>       set for a while after a delete: late writers are told, nothing is resurrected
    :stream:<lane>                 stream of (tenant, id), read by the consumer group `routers`; an entry stays until
                                   its job is final or deleted, so its length is jobs waiting plus jobs running
    :expiry                        sorted set of `<tenant>/<id>` by the time when files are to be removed
    :clock                         the newest creation stamp

A run of a job is a lease numbered by `attempt`; a router that lost its lease cannot write any more.
Knows nothing about routes, Ray or where files are.
"""

import dataclasses
import hashlib
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, Literal, Self, cast

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ResponseError

from actors.messages import ClipRequest
from deployments.api import job_scripts
from deployments.api.errors import IdempotencyConflict, QueueFull
from deployments.api.facts import FailureCode, JobError, ReuseFacts, error_to_json, request_to_json
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

_PREFIX: Final = "reprise:{jobs}"
_STREAMS: Final = {lane: f"{_PREFIX}:stream:{lane}" for lane in Lane}
_EXPIRY: Final = f"{_PREFIX}:expiry"
_CLOCK: Final = f"{_PREFIX}:clock"
_GROUP: Final = "routers"
_STAMP: Final = slice(len("video_"), len("video_") + 16)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class JobStoreConfig:
    """How long things are kept and when a run counts as dead."""

    retention_s: float = 24 * 3600.0
    """Life of record and files after the job's last write."""
    lease_timeout_s: float = 30.0
    """A claimed job that is not renewed for so long is given to another router."""
    max_unfinished_jobs: int = 1000
    """Jobs of all tenants that may wait or run in one queue at a time; more are refused at once."""
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
        self._name = script(job_scripts.NAME)
        self._add = script(job_scripts.ADD)
        self._take = script(job_scripts.TAKE)
        self._advance = script(job_scripts.ADVANCE)
        self._renew = script(job_scripts.RENEW)
        self._delete = script(job_scripts.DELETE)
        self._page = script(job_scripts.PAGE)
        self._due = script(job_scripts.DUE)
        self._forget = script(job_scripts.FORGET)

    @classmethod
    def connect(cls, url: str, config: JobStoreConfig | None = None, *, timeout_s: float = 5.0) -> Self:
        """Make a store on a Redis URL (`redis://`, `rediss://`, `unix://`); connects on first use."""
        # Without a socket timeout a paused server would hold a request for ever. A lost call is not repeated: its
        # script may have run, and only the caller's Idempotency-Key tells a repeat from a second request.
        redis = Redis.from_url(
            url,
            decode_responses=True,
            protocol=2,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 0),
        )
        return cls(redis, config or JobStoreConfig())

    async def start(self) -> None:
        """Make the consumer groups if they are not there."""
        for stream in _STREAMS.values():
            try:
                await self._redis.xgroup_create(stream, _GROUP, id="0", mkstream=True)
            except ResponseError as error:
                if "BUSYGROUP" not in str(error):
                    raise

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
    ) -> VideoJob:
        """Store a queued job and schedule it in one step, or give the job that the same key and body made before."""
        digest = hashlib.sha256(idempotency.key.encode()).hexdigest() if idempotency else ""
        outcome, *found = await self._create(
            keys=[
                _CLOCK,
                _list_key(tenant),
                _STREAMS[lane_of(request)],
                _EXPIRY,
                f"{_PREFIX}:idempotency:{tenant}:{digest}",
            ],
            args=[
                _PREFIX,
                tenant,
                secrets.token_hex(8),
                idempotency.fingerprint if idempotency else "",
                self._retention_ms,
                self._retention_ms,
                model,
                request_to_json(request),
                reuse.to_json(),
                self._config.max_unfinished_jobs,
            ],
        )
        if outcome == "full":
            raise QueueFull(self._config.max_unfinished_jobs)
        if outcome == "conflict":
            raise IdempotencyConflict(found[0])
        return _job(found[0])

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
        video_id: str = await self._name(keys=[_CLOCK], args=[secrets.token_hex(8)])
        await put_files(video_id)
        fields = await self._add(
            keys=[_job_key(tenant, video_id), _list_key(tenant), _EXPIRY],
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
        fields = cast(dict[str, str], await self._redis.hgetall(_job_key(tenant, video_id)))
        return job_from_fields(fields) if fields else None

    async def page(self, tenant: str, *, after: str | None, limit: int, order: Literal["asc", "desc"]) -> JobPage:
        """Give jobs by creation time that follow the id `after`, which itself may have been deleted meanwhile."""
        found = await self._page(
            keys=[_list_key(tenant)],
            args=[f"{_PREFIX}:job:{tenant}:", after[_STAMP] if after else "", order, limit],
        )
        return JobPage(jobs=tuple(_job(fields) for fields in found[:limit]), has_more=len(found) > limit)

    async def claim(self, consumer: str, *, count: int, block_s: float, lane: Lane = Lane.CLIPS) -> list[ClaimedJob]:
        """Lease up to `count` jobs: first those of dead routers, then new ones; waits up to `block_s` for the first."""
        stream = _STREAMS[lane]
        idle_ms = int(self._config.lease_timeout_s * 1000)
        try:
            reclaimed: Any = await self._redis.xautoclaim(stream, _GROUP, consumer, idle_ms, count=count)
            entries = reclaimed[1]
            if not entries:
                # Redis reads a block of 0 as for ever.
                block_ms = max(1, int(block_s * 1000))
                streams: Any = await self._redis.xreadgroup(
                    _GROUP, consumer, {stream: ">"}, count=count, block=block_ms
                )
                entries = streams[0][1] if streams else []
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            await self.start()  # The server lost its data; jobs made from now on are served.
            return []
        claimed = [await self._begin(consumer, entry, values, lane) for entry, values in entries]
        return [job for job in claimed if job is not None]

    async def _begin(self, consumer: str, entry: str, values: Mapping[str, str], lane: Lane) -> ClaimedJob | None:
        tenant, video_id = values["tenant"], values["id"]
        limit = self._config.max_attempts
        spent = JobError(
            code=FailureCode.INTERRUPTED,
            message=f"all {limit} runs of {video_id} were cut off by a lost worker; send the request again",
        )
        fields = await self._take(
            keys=[_job_key(tenant, video_id), _STREAMS[lane], _EXPIRY],
            args=[_GROUP, entry, limit, error_to_json(spent), self._retention_ms, _member(tenant, video_id)],
        )
        if not fields:
            return None
        job = _job(fields)
        lease = JobLease(
            tenant=tenant, video_id=video_id, attempt=job.attempts, entry=entry, consumer=consumer, lane=lane
        )
        return ClaimedJob(lease=lease, job=job)

    async def mark_started(self, lease: JobLease) -> WriteOutcome:
        """Report that the first denoise step begins."""
        return await self._write(lease, JobEvent.START, stamp="started_at")

    async def set_progress(self, lease: JobLease, progress: int) -> WriteOutcome:
        """Report progress in per cent; a lower one than before changes nothing, and 100 is kept for `finish`."""
        return await self._write(lease, JobEvent.PROGRESS, progress=min(progress, 99))

    async def set_fragments(self, lease: JobLease, count: int, *, progress: int) -> WriteOutcome:
        """Report how many pieces of a long video are stored, and the progress in per cent."""
        fields = {"num_fragments": str(count)}
        return await self._write(lease, JobEvent.PROGRESS, progress=min(progress, 99), fields=fields)

    async def finish(self, lease: JobLease, reuse: ReuseFacts) -> WriteOutcome:
        """Complete the job; its files must be stored before. Remove them if the outcome is not `APPLIED`."""
        return await self._write(
            lease, JobEvent.FINISH, progress=100, stamp="completed_at", fields={"reuse": reuse.to_json()}
        )

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
        group = _GROUP if target.is_final else ""
        flat = [text for pair in (fields or {}).items() for text in pair]
        of_job = (lease.tenant, lease.video_id)
        move: list[str | int] = [lease.attempt, target, sources, progress, self._retention_ms, _member(*of_job)]
        outcome = await self._advance(
            keys=[_job_key(*of_job), _tombstone_key(*of_job), _STREAMS[lease.lane], _EXPIRY],
            args=[*move, group, lease.entry, stamp, *flat],
        )
        return WriteOutcome(outcome)

    async def renew(self, leases: Sequence[JobLease]) -> frozenset[str]:
        """Keep leases alive; gives the ids of those that are lost. Call it well within `lease_timeout_s`."""
        lost = set()
        for lease in leases:
            of_job = (lease.tenant, lease.video_id)
            held = await self._renew(
                keys=[_job_key(*of_job), _STREAMS[lease.lane], _EXPIRY],
                args=[_GROUP, lease.consumer, lease.entry, lease.attempt, self._retention_ms, _member(*of_job)],
            )
            if not held:
                lost.add(lease.video_id)
        return frozenset(lost)

    async def is_cancelled(self, tenant: str, video_ids: Sequence[str]) -> frozenset[str]:
        """Give those of the ids whose record is gone: nobody can fetch their result any more."""
        async with self._redis.pipeline(transaction=False) as pipe:
            for video_id in video_ids:
                pipe.exists(_job_key(tenant, video_id))
            found: list[Any] = await pipe.execute()
        return frozenset(video_id for video_id, exists in zip(video_ids, found, strict=True) if not exists)

    async def delete(self, tenant: str, video_id: str) -> bool:
        """Remove a job in any status; False if there is none. Its files are the caller's to remove."""
        removed = await self._delete(
            keys=[_job_key(tenant, video_id), _tombstone_key(tenant, video_id), _list_key(tenant), _EXPIRY],
            args=[video_id, _member(tenant, video_id), int(self._config.tombstone_s * 1000), _GROUP],
        )
        return bool(removed)

    async def due(self, *, limit: int) -> list[tuple[str, str]]:
        """Give (tenant, id) of jobs whose files are to be removed; call `forget` for each when that is done."""
        members = await self._due(keys=[_EXPIRY], args=[limit])
        return [(tenant, video_id) for tenant, _, video_id in (member.partition("/") for member in members)]

    async def forget(self, tenant: str, video_id: str) -> None:
        """Drop the last traces of an expired job."""
        await self._forget(keys=[_EXPIRY, _list_key(tenant)], args=[_member(tenant, video_id), video_id])


def _job(flat: Sequence[str]) -> VideoJob:
    return job_from_fields(dict(zip(flat[::2], flat[1::2], strict=True)))


def _job_key(tenant: str, video_id: str) -> str:
    return f"{_PREFIX}:job:{tenant}:{video_id}"


def _tombstone_key(tenant: str, video_id: str) -> str:
    return f"{_PREFIX}:tombstone:{tenant}:{video_id}"


def _list_key(tenant: str) -> str:
    return f"{_PREFIX}:list:{tenant}"


def _member(tenant: str, video_id: str) -> str:
    return f"{tenant}/{video_id}"
