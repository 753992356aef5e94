"""Remove what has expired or was deleted: the files of a job go when its record does, its latents with a delete.

Any number of replicas may sweep at once; each step may be repeated. Knows nothing about HTTP.
"""

import asyncio
import logging

from redis.exceptions import RedisError

from deployments.api.artifacts import ArtifactStore
from deployments.api.jobs import JobStore
from deployments.api.services import ForgetSource

logger = logging.getLogger(__name__)


async def sweep_expired(jobs: JobStore, artifacts: ArtifactStore, *, limit: int = 100) -> int:
    """Remove the files of up to `limit` expired or deleted jobs and give their number."""
    due = await jobs.leftovers.due(limit=limit)
    for tenant, video_id in due:
        # Files first: after a crash in between, the entry is still there and the next sweep ends the work.
        await asyncio.to_thread(artifacts.delete, tenant, video_id)
        await jobs.leftovers.forget(tenant, video_id)
    return len(due)


async def purge_deleted(jobs: JobStore, forget_source: ForgetSource, *, limit: int = 100) -> int:
    """Try again to forget what could be reused of up to `limit` deleted jobs, and give their number."""
    left = await jobs.leftovers.to_purge(limit=limit)
    for tenant, video_id in left:
        await forget_source(tenant, video_id)
        await jobs.leftovers.purged(tenant, video_id)
    return len(left)


async def keep_sweeping(
    jobs: JobStore, artifacts: ArtifactStore, forget_source: ForgetSource, *, period_s: float
) -> None:
    """Sweep for ever."""
    while True:
        await asyncio.sleep(period_s)
        try:
            await sweep_expired(jobs, artifacts)
        except (RedisError, OSError) as error:
            logger.warning("the sweep of expired files failed and is tried again in %.0f s: %s", period_s, error)
        try:
            await purge_deleted(jobs, forget_source)
        except Exception as error:  # whatever keeps the cache from forgetting, it is asked again
            logger.warning("deleted videos' latents could not be removed yet: %s", error)
