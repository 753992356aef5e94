"""Tell how jobs ended: every end, once or after a crash again, to every reporter.

A reporter that fails is logged and costs the others nothing. Knows nothing about what reporters do.
"""

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, Protocol

from redis.exceptions import RedisError

from deployments.api.ended_jobs import EndedJob, EndedJobs
from deployments.api.jobs import JobStore
from deployments.api.video_job import VideoJob

logger = logging.getLogger(__name__)

_BATCH: Final = 32
_WAIT_S: Final = 1.0


class Reporter(Protocol):
    """Reports ended jobs in one way."""

    async def report(self, job: VideoJob) -> None:
        """Report one job in its final status; must not wait for long."""
        ...


class Herald:
    """Reads ends for as long as it runs."""

    def __init__(self, ended: EndedJobs, jobs: JobStore, reporters: Sequence[Reporter]) -> None:
        self._ended, self._jobs, self._reporters = ended, jobs, reporters

    async def run(self) -> None:
        """Report for ever."""
        while True:
            try:
                await self.report_some(wait_s=_WAIT_S)
            except (RedisError, OSError) as error:
                logger.warning("ends of jobs could not be read, trying again: %s", error)
                await asyncio.sleep(_WAIT_S)

    async def report_some(self, *, wait_s: float) -> int:
        """Report what has ended; gives the number of ends."""
        found = await self._ended.take(count=_BATCH, block_s=wait_s)
        for ended in found:
            job = await self._read(ended)
            if job is not None:
                for reporter in self._reporters:
                    await self._report(reporter, job)
            await self._ended.told(ended)
        return len(found)

    async def _read(self, ended: EndedJob) -> VideoJob | None:
        """Read an ended job; None for one that was deleted at once, and for one that nobody can read."""
        try:
            return await self._jobs.get(ended.tenant, ended.video_id)
        except (RedisError, OSError):
            raise
        except Exception:  # it would come again for ever, and hold up all that follow
            logger.exception("the end of %s cannot be told", ended.video_id)
            return None

    async def _report(self, reporter: Reporter, job: VideoJob) -> None:
        try:
            await reporter.report(job)
        except Exception:  # one way of reporting must not keep the others from it
            logger.exception("%s could not report %s", type(reporter).__name__, job.id)
