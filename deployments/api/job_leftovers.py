"""What is left of jobs whose record is gone: files to remove, and latents that others could still reuse.

Both are listed by the very scripts that let a record expire or delete it, and stay listed until they are done with.
"""

from collections.abc import Sequence
from typing import Any

from redis.asyncio import Redis

from deployments.api import job_scripts
from deployments.api.job_keys import EXPIRY, PURGES, list_key, member_of


class JobLeftovers:
    """The two lists; part of the job store."""

    def __init__(self, redis: Redis) -> None:
        self._redis = redis
        self._due = redis.register_script(job_scripts.DUE)
        self._forget = redis.register_script(job_scripts.FORGET)

    async def purged(self, tenant: str, video_id: str) -> None:
        """Note that nothing of a deleted job can be reused any more."""
        await self._redis.zrem(PURGES, member_of(tenant, video_id))

    async def to_purge(self, *, limit: int) -> list[tuple[str, str]]:
        """Give (tenant, id) of deleted jobs for which `purged` did not come, the oldest first."""
        members: Sequence[Any] = await self._redis.zrange(PURGES, 0, limit - 1)
        return [(tenant, video_id) for tenant, _, video_id in (member.partition("/") for member in members)]

    async def due(self, *, limit: int) -> list[tuple[str, str]]:
        """Give (tenant, id) of jobs whose files are to be removed; call `forget` for each when that is done."""
        members = await self._due(keys=[EXPIRY], args=[limit])
        return [(tenant, video_id) for tenant, _, video_id in (member.partition("/") for member in members)]

    async def forget(self, tenant: str, video_id: str) -> None:
        """Drop the last traces of an expired job."""
        await self._forget(keys=[EXPIRY, list_key(tenant)], args=[member_of(tenant, video_id), video_id])
