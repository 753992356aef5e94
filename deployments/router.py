"""The router: takes jobs off a queue as slots of its workers come free, and keeps their leases while they run.

A job waits in Redis, visible as queued, until a slot is free; nothing queues behind a handle. Which latents a job
starts from is decided in planning.py. Knows nothing about HTTP.
"""

import asyncio
import contextlib
import dataclasses
import logging
import secrets
from typing import Protocol

from redis.exceptions import RedisError

from deployments.api.facts import FailureCode
from deployments.api.jobs import JobStore
from deployments.api.video_job import ClaimedJob, JobLease, Lane

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RouterConfig:
    """How many jobs run at once, and how often leases are renewed."""

    num_slots: int
    """Jobs in the hands of workers, one a replica: a job that is planned only when its worker is free may start
    from every source that was finished before it."""
    lane: Lane = Lane.CLIPS
    claim_wait_s: float = 1.0
    renew_period_s: float = 5.0
    """Well within the job store's lease timeout."""
    retry_wait_s: float = 1.0
    """Pause after the store did not answer."""


class JobRunner(Protocol):
    """Runs one claimed job to its end."""

    async def run(self, claimed: ClaimedJob) -> None:
        """Run the job and write its outcome."""
        ...


class Router:
    """Runs the jobs of one queue until it is stopped; invariant: `len(leases) <= num_slots`."""

    def __init__(self, config: RouterConfig, *, jobs: JobStore, runner: JobRunner) -> None:
        self._config = config
        self._jobs = jobs
        self._runner = runner
        self._consumer = f"router-{secrets.token_hex(6)}"
        self._running: dict[asyncio.Task[None], JobLease] = {}
        self._is_draining = False
        self._is_stopped = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    async def start(self) -> None:
        """Begin to take jobs."""
        self._tasks = [asyncio.create_task(self._take_jobs()), asyncio.create_task(self._renew_leases())]

    async def stop(self) -> None:
        """Take no more jobs, wait for the running ones, then let go."""
        self._is_draining = True
        if not self._tasks:
            return
        take, renew = self._tasks
        # Not cancelled: a claim that is cut off may have leased jobs that then wait for the lease to run out.
        await asyncio.wait([take])
        while self._running:
            await asyncio.wait(self._running)
        self._is_stopped.set()
        await asyncio.wait([renew])

    def check(self) -> None:
        """Raise when a loop has ended, since then no job would ever run again."""
        for task in self._tasks:
            if task.done() and not self._is_draining:
                raise RuntimeError("the router's loop has ended") from task.exception()

    @property
    def num_running(self) -> int:
        """Count the jobs in the hands of denoisers or on their way there."""
        return len(self._running)

    async def _take_jobs(self) -> None:
        while not self._is_draining:
            free = self._config.num_slots - len(self._running)
            if free <= 0:
                await asyncio.wait(self._running, return_when=asyncio.FIRST_COMPLETED)
                continue
            try:
                claimed = await self._jobs.claim(
                    self._consumer, count=free, block_s=self._config.claim_wait_s, lane=self._config.lane
                )
            except (RedisError, OSError) as error:
                logger.warning("no jobs could be claimed, trying again: %s", error)
                await asyncio.sleep(self._config.retry_wait_s)
                continue
            for job in claimed:
                self._launch(job)

    def _launch(self, claimed: ClaimedJob) -> None:
        task = asyncio.create_task(self._run(claimed))
        self._running[task] = claimed.lease
        task.add_done_callback(lambda done: self._running.pop(done, None))

    async def _run(self, claimed: ClaimedJob) -> None:
        try:
            await self._runner.run(claimed)
        except (RedisError, OSError) as error:
            # The lease runs out and another run begins; the job is not lost.
            logger.warning("%s was cut off by its store: %s", claimed.lease.video_id, error)
        except Exception as error:  # one job must not end the loop that serves all others
            logger.exception("%s failed unexpectedly", claimed.lease.video_id)
            with contextlib.suppress(RedisError, OSError):
                message = f"{type(error).__name__} in the router; see its log"
                await self._jobs.fail(claimed.lease, FailureCode.INTERNAL_ERROR, message)

    async def _renew_leases(self) -> None:
        while not self._is_stopped.is_set():
            # Not cancelled either: a client that is cut off in a call may take the cancellation for its own.
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._is_stopped.wait(), self._config.renew_period_s)
            with contextlib.suppress(RedisError, OSError):
                await self._jobs.expire_waiting()
            leases = {lease.video_id: task for task, lease in self._running.items()}
            with contextlib.suppress(RedisError, OSError):
                for video_id in await self._jobs.renew(list(self._running.values())):
                    leases[video_id].cancel()
