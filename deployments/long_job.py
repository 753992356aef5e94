"""Run one claimed long job: pieces of its video are stored and announced as they come, then it is finished.

Talks to the other parts through small protocols; knows nothing about Ray or HTTP.
"""

import asyncio
import contextlib
import dataclasses
import logging
import time

from actors.messages import ChunkDone, LongDone, LongRequest
from deployments.api.artifacts import ArtifactStore, Variant
from deployments.api.facts import FailureCode, ReuseFacts, ScheduleFacts, StageSeconds, truncation_warnings
from deployments.api.jobs import JobStore
from deployments.api.video_job import ClaimedJob, JobLease, WriteOutcome
from deployments.parts import LongRenderer, WorkerLost, WorkFailed

logger = logging.getLogger(__name__)

LONG_VIDEO = "long_video"
"""Reason for which a long video reuses no other video's latents."""


class LongJobRunner:
    """Runs claimed long jobs; one instance serves any number of them at a time."""

    def __init__(self, *, jobs: JobStore, artifacts: ArtifactStore, renderer: LongRenderer) -> None:
        self._jobs, self._artifacts, self._renderer = jobs, artifacts, renderer

    async def run(self, claimed: ClaimedJob) -> None:
        """Run one job to its end; a lost worker leaves it to the next run, a deleted job stops at its next chunk."""
        lease = claimed.lease
        try:
            await self._render(claimed)
        except WorkerLost as error:
            logger.warning("%s lost its worker in run %d: %s", lease.video_id, lease.attempt, error)
        except WorkFailed as error:
            logger.warning("%s failed with %s: %s", lease.video_id, error.code, error)
            await self._jobs.fail(lease, error.code, str(error))

    async def _render(self, claimed: ClaimedJob) -> None:
        lease = claimed.lease
        outcome = await self._jobs.mark_started(lease)
        if outcome is not WriteOutcome.APPLIED:
            return
        request = LongRequest(video_id=lease.video_id, clip=claimed.job.request)
        num_fragments = 0
        async with contextlib.aclosing(self._renderer.generate(request)) as events:
            async for event in events:
                if isinstance(event, LongDone):
                    await self._finish(claimed, event)
                    return
                outcome = await self._announce(claimed, event, num_fragments)
                num_fragments += 1
                if outcome is not WriteOutcome.APPLIED:
                    logger.info("%s stops in run %d: %s", lease.video_id, lease.attempt, outcome)
                    await self._tidy(lease, outcome)
                    return

    async def _announce(self, claimed: ClaimedJob, done: ChunkDone, number: int) -> WriteOutcome:
        """Store the next piece, then say that it is there.

        The same request gives the same pieces, so what an earlier run has stored stays as it is: a viewer may be
        reading it.
        """
        lease = claimed.lease
        progress = 100 * done.latents_done // done.num_latents
        if number < claimed.job.num_fragments:
            return await self._jobs.set_progress(lease, progress)
        await self._store(self._artifacts.put_fragment, lease, number, done.fragment)
        return await self._jobs.set_fragments(lease, number + 1, progress=progress)

    async def _finish(self, claimed: ClaimedJob, done: LongDone) -> None:
        """Store the files, then complete the job; a job that went meanwhile leaves no file behind."""
        lease, begin = claimed.lease, time.perf_counter()
        for name, data in done.files.items():
            await self._store(self._artifacts.put_bytes, lease, Variant(name), data)
        seconds = StageSeconds(
            prompt=done.prompt_s,
            denoise=done.work.render_s,
            first_frame=done.work.first_frame_s,
            decode=done.decode_s,
            encode=done.encode_s,
            store=time.perf_counter() - begin,
        )
        facts = dataclasses.replace(long_facts(claimed.job.reuse, done), seconds=seconds)
        await self._tidy(lease, await self._jobs.finish(lease, facts))

    async def _store(self, put, lease: JobLease, name: object, data: bytes) -> None:  # type: ignore[no-untyped-def]
        try:
            await asyncio.to_thread(put, lease.tenant, lease.video_id, name, data)
        except OSError as error:
            raise WorkFailed(FailureCode.STORAGE_FAILED, f"the video could not be written: {error}") from error

    async def _tidy(self, lease: JobLease, outcome: WriteOutcome) -> None:
        if outcome in (WriteOutcome.DELETED, WriteOutcome.GONE):
            await asyncio.to_thread(self._artifacts.delete, lease.tenant, lease.video_id)


def long_facts(facts: ReuseFacts, done: LongDone) -> ReuseFacts:
    """Say how one long video was made."""
    work = done.work
    return dataclasses.replace(
        facts,
        hit=False,
        reason=LONG_VIDEO,
        schedule=ScheduleFacts(
            method=work.method,
            placement=work.placement,
            workers=work.workers,
            rounds=work.rounds,
            forwards=work.forwards,
            wait_s=work.wait_s,
            peak_kv_bytes=work.peak_kv_bytes,
            first_latents_s=work.first_latents_s,
            render_s=work.render_s,
        ),
        warnings=truncation_warnings(used=done.num_tokens, dropped=done.num_tokens_dropped),
    )
