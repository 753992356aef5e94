"""Jobs that became final, told at least once to whoever reports them: log, metrics, webhooks.

The job store's scripts add every end to a stream in the very step that makes the job final, so none is lost with a
process. Knows nothing about what is reported.
"""

import dataclasses
from typing import Any, Final, Self

from redis.asyncio import Redis
from redis.exceptions import ResponseError

from deployments.api.job_keys import ENDED
from deployments.api.redis_client import connect_async

_GROUP: Final = "heralds"
_TAKEN_OVER_MS: Final = 60_000
"""An end that a herald has taken and not reported for so long goes to another one."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EndedJob:
    """The end of one job, to be told and then acknowledged."""

    entry: str
    tenant: str
    video_id: str


class EndedJobs:
    """The stream of ends. Bound to the event loop it is first used on."""

    def __init__(self, redis: Redis, *, name: str) -> None:
        self._redis: Any = redis  # redis-py's types make every command sync or async
        self._name = name

    @classmethod
    def connect(cls, url: str, *, name: str) -> Self:
        """Make a reader of this name on a Redis URL; connects on first use."""
        return cls(connect_async(url), name=name)

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()

    async def take(self, *, count: int, block_s: float) -> list[EndedJob]:
        """Give ends that nobody has reported; waits up to `block_s` for the first."""
        try:
            found = await self._redis.xautoclaim(ENDED, _GROUP, self._name, _TAKEN_OVER_MS, count=count)
            entries = [entry for entry in found[1] if entry[1]]
            if not entries:
                block_ms = max(1, int(1000 * block_s))  # Redis reads 0 as for ever
                streams = await self._redis.xreadgroup(_GROUP, self._name, {ENDED: ">"}, count=count, block=block_ms)
                entries = streams[0][1] if streams else []
        except ResponseError as error:
            if "NOGROUP" not in str(error):
                raise
            await self._make_group()
            return []
        return [_ended(entry, fields["job"]) for entry, fields in entries]

    async def told(self, ended: EndedJob) -> None:
        """Acknowledge an end that has been reported."""
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.xack(ENDED, _GROUP, ended.entry)
            pipe.xdel(ENDED, ended.entry)
            await pipe.execute()

    async def _make_group(self) -> None:
        try:
            await self._redis.xgroup_create(ENDED, _GROUP, id="0", mkstream=True)
        except ResponseError as error:
            if "BUSYGROUP" not in str(error):
                raise


def _ended(entry: str, member: str) -> EndedJob:
    tenant, _, video_id = member.partition("/")
    return EndedJob(entry=entry, tenant=tenant, video_id=video_id)
