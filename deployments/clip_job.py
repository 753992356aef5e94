"""Run one claimed clip job from look-up to finished files: the order of calls, their deadlines, and what is written.

Reuse never fails or delays a job: embedder and retrieval each have a deadline, and any fault of theirs is a miss
with a reason. What to reuse is decided by `plan_reuse`; this file only carries it out. Talks to the other parts
through small protocols; knows nothing about Ray or HTTP.
"""

import asyncio
import contextlib
import dataclasses
import logging
import time
from collections.abc import AsyncGenerator, Awaitable
from typing import Protocol, TypeVar

from actors.embedder import Embedding
from actors.messages import ClipDone, ClipRequest, DenoiseEvent, DenoiseRequest, ReuseMode, StepDone, TrajectoryStored
from actors.retrieval import Admission
from cache_store.partition import PartitionKey
from deployments.api.artifacts import ArtifactStore, Variant
from deployments.api.facts import FailureCode, PromptWarning, ReuseFacts, StageSeconds
from deployments.api.jobs import JobStore
from deployments.api.video_job import ClaimedJob, JobLease, WriteOutcome
from reprise.chorus.plan import Candidate, MissReason, ReusePlan, plan_miss, plan_reuse
from reprise.chorus.stages import StageMap

logger = logging.getLogger(__name__)

T = TypeVar("T")

NUM_CANDIDATES = 4
"""Neighbours looked at: the nearest one, and a few more in case its latents are of no use."""

REGISTER_TIMEOUT_S = 5.0
"""For what follows a finished clip, when its caller waits no longer."""


class WorkerLost(Exception):
    """The worker ended while it ran the job; another run may succeed."""


class WorkFailed(Exception):
    """The job itself cannot succeed; carries the code that its caller sees."""

    def __init__(self, code: FailureCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Embedder(Protocol):
    """Embeds prompts."""

    async def embed(self, prompt: str) -> Embedding:
        """Embed one prompt."""
        ...


class Retrieval(Protocol):
    """Finds, registers and counts sources."""

    async def candidates(self, partition: PartitionKey, vector: bytes, count: int) -> list[Candidate]:
        """Give the nearest sources of a partition."""
        ...

    async def source(self, partition: PartitionKey, source_id: str, vector: bytes) -> list[Candidate]:
        """Give one source, if it is stored in this partition."""
        ...

    async def admit(self, admission: Admission) -> str:
        """Register a source whose latents are stored."""
        ...

    async def touch(self, tenant: str, source_id: str, steps_saved: int) -> None:
        """Count one use."""
        ...

    async def purge(self, tenant: str, source_id: str) -> None:
        """Forget a source: vector, prompt and latents, registered or not."""
        ...


class Denoiser(Protocol):
    """Makes clips."""

    def generate(self, request: DenoiseRequest) -> AsyncGenerator[DenoiseEvent, None]:
        """Yield events; closing the iterator stops the work. Raises WorkerLost or WorkFailed."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClipJobConfig:
    """Deadlines, and what of the reuse key belongs to the served model rather than to a request."""

    partition: PartitionKey
    """The model's part; the request's part is filled in per job."""
    stage_map: StageMap
    embed_timeout_s: float
    lookup_timeout_s: float
    is_reuse_on: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Lookup:
    """What planning found out."""

    plan: ReusePlan
    embedding: Embedding | None = None
    embed_s: float | None = None
    lookup_s: float | None = None


class ClipJobRunner:
    """Runs claimed jobs; one instance serves any number of them at a time."""

    def __init__(
        self,
        config: ClipJobConfig,
        *,
        jobs: JobStore,
        artifacts: ArtifactStore,
        embedder: Embedder,
        retrieval: Retrieval,
        denoiser: Denoiser,
    ) -> None:
        self._config = config
        self._jobs = jobs
        self._artifacts = artifacts
        self._embedder = embedder
        self._retrieval = retrieval
        self._denoiser = denoiser

    async def run(self, claimed: ClaimedJob) -> None:
        """Run one job to its end; a lost worker leaves it to the next run, and a deleted job stops at its next step."""
        lease = claimed.lease
        try:
            found = await self._look_up(claimed)
            await self._denoise(claimed, found)
        except WorkerLost as error:
            logger.warning("%s lost its worker in run %d: %s", lease.video_id, lease.attempt, error)
        except WorkFailed as error:
            logger.warning("%s failed with %s: %s", lease.video_id, error.code, error)
            await self._jobs.fail(lease, error.code, str(error))

    async def _look_up(self, claimed: ClaimedJob) -> _Lookup:
        clip, config = claimed.job.request, self._config
        if not config.is_reuse_on or clip.reuse is ReuseMode.OFF:
            return _Lookup(plan=plan_miss(MissReason.OFF))
        begin = time.perf_counter()
        embedding = await _guarded(self._embedder.embed(clip.prompt), timeout_s=config.embed_timeout_s)
        embed_s = time.perf_counter() - begin
        if isinstance(embedding, MissReason):
            return _Lookup(plan=plan_miss(embedding), embed_s=embed_s)
        begin = time.perf_counter()
        plan = await _guarded(self._plan(claimed, embedding), timeout_s=config.lookup_timeout_s)
        lookup_s = time.perf_counter() - begin
        if isinstance(plan, MissReason):
            plan = plan_miss(plan)
        return _Lookup(plan=plan, embedding=embedding, embed_s=embed_s, lookup_s=lookup_s)

    async def _plan(self, claimed: ClaimedJob, embedding: Embedding) -> ReusePlan:
        clip, tenant = claimed.job.request, claimed.lease.tenant
        partition = partition_of(self._config.partition, tenant, clip)
        if clip.remix_of is None:
            source_id = None
            candidates = await self._retrieval.candidates(partition, embedding.vector, NUM_CANDIDATES)
        else:
            source_id = await self._origin(tenant, clip.remix_of)
            candidates = await self._retrieval.source(partition, source_id, embedding.vector)
        return await asyncio.to_thread(  # comparing long prompts takes tens of milliseconds
            plan_reuse,
            prompt=clip.prompt,
            seed=clip.seed,
            num_steps=clip.num_inference_steps,
            candidates=candidates,
            stage_map=self._config.stage_map,
            prompt_exceeds_encoder=not embedding.is_whole,
            forced_source_id=source_id,
        )

    async def _origin(self, tenant: str, video_id: str) -> str:
        """Give the source of a hit, which stored no latents of its own, and the video itself otherwise."""
        job = await self._jobs.get(tenant, video_id)
        return video_id if job is None or job.reuse.source_id is None else job.reuse.source_id

    async def _denoise(self, claimed: ClaimedJob, found: _Lookup) -> None:
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

    async def _finish(self, claimed: ClaimedJob, found: _Lookup, done: ClipDone) -> None:
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
            fetch=done.fetch_s,
            denoise=done.denoise_s,
            decode=done.decode_s,
            encode=done.encode_s,
            store=time.perf_counter() - begin,
        )
        outcome = await self._jobs.finish(lease, dataclasses.replace(facts, seconds=seconds))
        if outcome in (WriteOutcome.DELETED, WriteOutcome.GONE):
            await asyncio.to_thread(self._artifacts.delete, lease.tenant, lease.video_id)
        elif outcome is WriteOutcome.APPLIED and done.plan.source_id is not None:
            saved = done.plan.boundaries.k1
            await _guarded(
                self._retrieval.touch(lease.tenant, done.plan.source_id, saved), timeout_s=REGISTER_TIMEOUT_S
            )

    async def _offer(self, claimed: ClaimedJob, found: _Lookup, stored: TrajectoryStored) -> None:
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
            await _guarded(self._retrieval.admit(admission), timeout_s=REGISTER_TIMEOUT_S)
        # Again, since a delete that came in between found nothing to purge.
        if not await self._is_kept(lease):
            await _guarded(self._retrieval.purge(lease.tenant, lease.video_id), timeout_s=REGISTER_TIMEOUT_S)

    async def _is_kept(self, lease: JobLease) -> bool:
        return not await self._jobs.is_cancelled(lease.tenant, [lease.video_id])


async def _guarded(call: Awaitable[T], *, timeout_s: float) -> T | MissReason:
    """Await a part that reuse depends on; too late or in error is a reason for a miss, logged once."""
    try:
        return await asyncio.wait_for(call, timeout_s)
    except TimeoutError:
        logger.warning("a reuse call took longer than %.2f s", timeout_s)
        return MissReason.LOOKUP_TIMEOUT
    except Exception:  # whatever breaks in there, the clip can be computed without it
        logger.exception("a reuse call failed")
        return MissReason.LOOKUP_FAILED


def partition_of(model: PartitionKey, tenant: str, clip: ClipRequest) -> PartitionKey:
    """Fill the request's part of the reuse key in."""
    return dataclasses.replace(
        model,
        tenant=tenant,
        num_steps=clip.num_inference_steps,
        guidance=clip.guidance_scale,
        width=clip.width,
        height=clip.height,
        num_frames=clip.num_frames,
        fps=clip.fps,
        negative_prompt=clip.negative_prompt,
    )


def reuse_facts(claimed: ClaimedJob, planned: ReusePlan, done: ClipDone) -> ReuseFacts:
    """Say what one clip reused, as it was run."""
    plan, num_steps = done.plan, claimed.job.request.num_inference_steps
    warnings: tuple[PromptWarning, ...] = ()
    if done.num_tokens_dropped:
        warnings = (
            PromptWarning(
                code="prompt_truncated",
                encoder="text_encoder",
                used=done.num_tokens,
                dropped=done.num_tokens_dropped,
            ),
        )
    return dataclasses.replace(
        claimed.job.reuse,
        hit=plan.is_hit,
        source_id=plan.source_id,
        matching_score=plan.matching_score if plan.matching_score is not None else planned.matching_score,
        k1=plan.boundaries.k1,
        k2=plan.boundaries.k2,
        steps_computed=done.num_steps_computed,
        steps_skipped=num_steps - done.num_steps_computed,
        reason=None if plan.reason is None else str(plan.reason),
        change_kinds=tuple(map(str, planned.change_kinds)),
        is_lowered=planned.is_lowered,
        warnings=warnings,
    )
