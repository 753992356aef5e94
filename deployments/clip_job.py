"""Run one claimed clip job from plan to finished files: the order of calls, their deadlines, and what is written.

What to reuse is decided in planning.py; this file only carries it out. Talks to the other parts through small
protocols; knows nothing about Ray or HTTP.
"""

import asyncio
import contextlib
import dataclasses
import logging
import time
from typing import Final

from actors.messages import ClipDone, ClipRequest, DenoiseRequest, StepDone, TrajectoryStored
from actors.retrieval import Admission
from deployments.api.artifacts import ArtifactStore, Variant
from deployments.api.facts import FailureCode, ReuseFacts, StageSeconds, truncation_warnings
from deployments.api.jobs import JobStore
from deployments.api.video_job import ClaimedJob, JobLease, WriteOutcome
from deployments.guard import Guard
from deployments.metrics import Metrics
from deployments.parts import (
    Denoiser,
    DiffExtractor,
    Embedder,
    MaskGenerator,
    Retrieval,
    WorkerLost,
    WorkFailed,
)
from deployments.planning import Lookup, PlanningConfig, ReusePlanner, partition_of
from reprise.chorus.objects import object_phrases
from reprise.chorus.plan import ReusePlan

logger = logging.getLogger(__name__)

REGISTER_TIMEOUT_S: Final = 5.0
"""For what follows a finished clip, when its caller waits no longer."""
MAX_MASK_TASKS: Final = 8
"""Sources whose masks are being made or waited for; each holds its frames in memory."""


class ClipJobRunner:
    """Runs claimed jobs; one instance serves any number of them at a time."""

    def __init__(
        self,
        config: PlanningConfig,
        *,
        jobs: JobStore,
        artifacts: ArtifactStore,
        embedder: Embedder,
        retrieval: Retrieval,
        denoiser: Denoiser,
        masks: MaskGenerator | None = None,
        diff: DiffExtractor | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        self._config = config
        self._jobs = jobs
        self._artifacts = artifacts
        self._planner = ReusePlanner(
            config, jobs=jobs, embedder=embedder, retrieval=retrieval, diff=diff, metrics=metrics
        )
        self._retrieval = retrieval
        self._registering = Guard("registration", timeout_s=REGISTER_TIMEOUT_S, metrics=metrics)
        # However often it has failed: of a deleted video nothing may stay.
        self._purging = Guard("purge", timeout_s=REGISTER_TIMEOUT_S, has_breaker=False, metrics=metrics)
        self._denoiser = denoiser
        self._masks = masks
        self._mask_tasks: set[asyncio.Task[None]] = set()

    async def run(self, claimed: ClaimedJob) -> None:
        """Run one job to its end; a lost worker leaves it to the next run, and a deleted job stops at its next step."""
        lease = claimed.lease
        try:
            found = await self._planner.look_up(lease.tenant, claimed.job.request)
            await self._denoise(claimed, found)
        except WorkerLost as error:
            logger.warning("%s lost its worker in run %d: %s", lease.video_id, lease.attempt, error)
        except WorkFailed as error:
            logger.warning("%s failed with %s: %s", lease.video_id, error.code, error)
            await self._jobs.fail(lease, error.code, str(error))

    async def estimate(self, tenant: str, clip: ClipRequest) -> ReusePlan:
        """Plan a clip that is not queued yet; when its turn comes it is planned again, with what is there then."""
        return (await self._planner.look_up(tenant, clip)).plan

    async def _denoise(self, claimed: ClaimedJob, found: Lookup) -> None:
        lease, clip = claimed.lease, claimed.job.request
        request = DenoiseRequest(tenant=lease.tenant, video_id=lease.video_id, clip=clip, plan=found.plan)
        has_started = False
        async with contextlib.aclosing(self._denoiser.generate(request)) as events:
            async for event in events:
                if isinstance(event, StepDone):
                    outcome = await self._report(lease, event, has_started=has_started)
                    has_started = True
                    if outcome is not WriteOutcome.APPLIED:
                        logger.info("%s stops in run %d: %s", lease.video_id, lease.attempt, outcome)
                        return
                elif isinstance(event, ClipDone):
                    await self._finish(claimed, found, event)
                else:
                    await self._offer(claimed, found, event)

    async def _report(self, lease: JobLease, event: StepDone, *, has_started: bool) -> WriteOutcome:
        if not has_started:
            outcome = await self._jobs.mark_started(lease)
            if outcome is not WriteOutcome.APPLIED:
                return outcome
        return await self._jobs.set_progress(lease, 100 * event.step // event.num_steps)

    async def _finish(self, claimed: ClaimedJob, found: Lookup, done: ClipDone) -> None:
        """Store the files, then complete the job; a job that went meanwhile leaves no file behind."""
        lease, begin = claimed.lease, time.perf_counter()
        try:
            for name, data in done.files.items():
                await asyncio.to_thread(self._artifacts.put_bytes, lease.tenant, lease.video_id, Variant(name), data)
        except OSError as error:
            raise WorkFailed(FailureCode.STORAGE_FAILED, f"the finished file could not be written: {error}") from error
        facts = reuse_facts(claimed, found.plan, done)
        seconds = StageSeconds(
            embed=found.embed_s,
            lookup=found.lookup_s,
            diff=found.diff_s,
            fetch=done.fetch_s,
            prompt=done.work.encode_prompt_s,
            region=done.work.region_s if done.work.num_region_steps else None,
            dense=done.work.dense_s if done.work.num_dense_steps else None,
            denoise=done.work.denoise_s,
            decode=done.decode_s,
            encode=done.encode_s,
            store=time.perf_counter() - begin,
        )
        outcome = await self._jobs.finish(lease, dataclasses.replace(facts, seconds=seconds))
        if outcome in (WriteOutcome.DELETED, WriteOutcome.GONE):
            await asyncio.to_thread(self._artifacts.delete, lease.tenant, lease.video_id)
        elif outcome is WriteOutcome.APPLIED and done.plan.source_id is not None:
            source_id, saved = done.plan.source_id, done.plan.boundaries.k1
            await self._registering.call(lambda: self._retrieval.touch(lease.tenant, source_id, saved))

    async def _offer(self, claimed: ClaimedJob, found: Lookup, stored: TrajectoryStored) -> None:
        """Offer the stored latents to later requests; of a video that was deleted meanwhile nothing may stay."""
        lease, clip = claimed.lease, claimed.job.request
        # Without an embedding of the whole prompt nobody could find them.
        if found.embedding is not None and found.embedding.is_whole and stored.steps and await self._is_kept(lease):
            admission = Admission(
                partition=partition_of(self._config.partition, lease.tenant, clip),
                source_id=lease.video_id,
                prompt=clip.prompt,
                seed=clip.seed,
                vector=found.embedding.vector,
            )
            await self._registering.call(lambda: self._retrieval.admit(admission))
            self._begin_masks(lease, clip.prompt, stored)
        # Again, since a delete that came in between found nothing to purge.
        if not await self._is_kept(lease):
            await self._purging.call(lambda: self._retrieval.purge(lease.tenant, lease.video_id))

    def _begin_masks(self, lease: JobLease, prompt: str, stored: TrajectoryStored) -> None:
        """Have the masks of the source's objects made while its denoiser goes on to the next job.

        Where masks take longer than clips, some sources go without; memory for their frames is bounded.
        """
        if self._masks is None:
            return
        if len(self._mask_tasks) >= MAX_MASK_TASKS:
            logger.warning("%s gets no masks: %d sources are waiting for theirs", lease.video_id, MAX_MASK_TASKS)
            return
        task = asyncio.create_task(self._make_masks(self._masks, lease, prompt, stored))
        self._mask_tasks.add(task)
        task.add_done_callback(self._mask_tasks.discard)

    async def _make_masks(self, masks: MaskGenerator, lease: JobLease, prompt: str, stored: TrajectoryStored) -> None:
        try:
            phrases = await asyncio.to_thread(object_phrases, prompt)  # a long prompt takes tens of milliseconds
            if phrases:
                await masks.make(lease.tenant, lease.video_id, stored.frames_FHWC, phrases)
        except Exception:  # a source without masks is still a source
            logger.warning("no masks of %s", lease.video_id, exc_info=True)

    async def _is_kept(self, lease: JobLease) -> bool:
        return not await self._jobs.is_cancelled(lease.tenant, [lease.video_id])


def reuse_facts(claimed: ClaimedJob, planned: ReusePlan, done: ClipDone) -> ReuseFacts:
    """Say what one clip reused, as it was run."""
    plan, num_steps = done.plan, claimed.job.request.num_inference_steps
    return dataclasses.replace(
        claimed.job.reuse,
        hit=plan.is_hit,
        source_id=plan.source_id,
        matching_score=plan.matching_score if plan.matching_score is not None else planned.matching_score,
        k1=plan.boundaries.k1,
        k2=plan.boundaries.k2,
        steps_computed=done.work.num_steps_computed,
        steps_skipped=num_steps - done.work.num_steps_computed,
        steps_cached=done.work.num_cached_steps,
        token_share=done.work.token_share,
        reason=None if plan.reason is None else str(plan.reason),
        change_kinds=tuple(map(str, planned.change_kinds)),
        is_lowered=planned.is_lowered,
        words_added=() if plan.diff is None else tuple(word.text for word in plan.diff.added),
        words_removed=() if plan.diff is None else tuple(word.text for word in plan.diff.removed),
        region_phrase=plan.region_phrase,
        region_reason=None if plan.region_reason is None else str(plan.region_reason),
        edit_share=done.work.edit_share,
        see_share=done.work.see_share,
        warnings=truncation_warnings(used=done.num_tokens, dropped=done.num_tokens_dropped),
    )
