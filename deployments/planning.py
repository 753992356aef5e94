"""Decide what one job reuses: embed its prompt, look similar sources up, compare the words, plan.

Reuse never fails or delays a job: each call has a deadline, and any fault is a miss with a reason. What to reuse is
decided by `plan_reuse`; this file gathers what it needs. Knows nothing about Ray, HTTP or how clips are made.
"""

import asyncio
import dataclasses
import functools
import logging
import time
from collections.abc import Callable
from typing import Final

from actors.embedder import Embedding
from actors.messages import ClipRequest
from cache_store.partition import PartitionKey
from deployments.api.jobs import JobStore
from deployments.guard import Guard
from deployments.metrics import Metrics
from deployments.parts import DiffExtractor, Embedder, Retrieval
from reprise.chorus.plan import Candidate, MissReason, ReuseMode, ReusePlan, plan_miss, plan_reuse
from reprise.chorus.prompt_diff import TokenDiff
from reprise.chorus.stages import StageMap

logger = logging.getLogger(__name__)

NUM_CANDIDATES: Final = 8
"""Neighbours looked at: the nearest one, and more that may save more, or whose latents are there when its are not."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PlanningConfig:
    """Deadlines, and what of the reuse key belongs to the served model rather than to a request."""

    partition: PartitionKey
    """The model's part; the request's part is filled in per job."""
    stage_map: StageMap
    embed_timeout_s: float
    lookup_timeout_s: float
    is_reuse_on: bool = True


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Lookup:
    """What planning found out."""

    plan: ReusePlan
    embedding: Embedding | None = None
    embed_s: float | None = None
    lookup_s: float | None = None
    diff_s: float | None = None


class ReusePlanner:
    """Plans jobs; keeps nothing between them but which part fails."""

    def __init__(
        self,
        config: PlanningConfig,
        *,
        jobs: JobStore,
        embedder: Embedder,
        retrieval: Retrieval,
        diff: DiffExtractor | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        """Without `diff` the aligner alone compares prompts."""
        self._embedding = Guard("embedder", timeout_s=config.embed_timeout_s, metrics=metrics)
        self._looking_up = Guard("retrieval", timeout_s=config.lookup_timeout_s, metrics=metrics)
        self._config = config
        self._jobs = jobs
        self._embedder = embedder
        self._retrieval = retrieval
        self._diff = diff

    async def look_up(self, tenant: str, clip: ClipRequest) -> Lookup:
        """Plan one request; never raises for a fault of what reuse depends on."""
        config = self._config
        if not config.is_reuse_on or clip.reuse is ReuseMode.OFF:
            return Lookup(plan=plan_miss(MissReason.OFF))
        begin = time.perf_counter()
        embedding = await self._embedding.call(lambda: self._embedder.embed(clip.prompt))
        embed_s = time.perf_counter() - begin
        if isinstance(embedding, MissReason):
            return Lookup(plan=plan_miss(embedding), embed_s=embed_s)
        begin = time.perf_counter()
        found = await self._looking_up.call(lambda: self._plan(tenant, clip, embedding))
        lookup_s = time.perf_counter() - begin
        if isinstance(found, MissReason):
            return Lookup(plan=plan_miss(found), embedding=embedding, embed_s=embed_s, lookup_s=lookup_s)
        plan, diff_s = found.plan, None
        if self._diff is not None and plan.diff is not None:
            begin = time.perf_counter()
            plan = await self._refine(self._diff, clip, found)
            diff_s = time.perf_counter() - begin
        return Lookup(plan=plan, embedding=embedding, embed_s=embed_s, lookup_s=lookup_s, diff_s=diff_s)

    async def _plan(self, tenant: str, clip: ClipRequest, embedding: Embedding) -> "_Choice":
        partition = partition_of(self._config.partition, tenant, clip)
        if clip.forced_source is None:
            source_id = None
            candidates = await self._retrieval.candidates(partition, embedding.vector, NUM_CANDIDATES)
        else:
            source_id = await self._origin(tenant, clip.forced_source)
            candidates = await self._retrieval.source(partition, source_id, embedding.vector)
        choose = functools.partial(
            plan_reuse,
            prompt=clip.prompt,
            seed=clip.seed,
            num_steps=clip.num_inference_steps,
            candidates=candidates,
            stage_map=self._config.stage_map,
            mode=clip.reuse,
            tau=clip.tau,
            prompt_exceeds_encoder=not embedding.is_whole,
            forced_source_id=source_id,
        )
        plan = await asyncio.to_thread(choose)  # comparing long prompts takes tens of milliseconds
        return _Choice(plan=plan, candidates=candidates, choose=choose)

    async def _refine(self, engine: DiffExtractor, clip: ClipRequest, found: "_Choice") -> ReusePlan:
        """Choose again with what the engine says about the chosen source; without an answer the plan holds."""
        source = next(candidate for candidate in found.candidates if candidate.source_id == found.plan.source_id)
        try:
            result = await engine.extract(source.prompt, clip.prompt)
        except Exception:  # a late or broken engine costs no reuse
            logger.warning("the diff engine gave no answer, the aligner's holds", exc_info=True)
            return found.plan
        if result.fallback_reason is not None:
            return found.plan
        diffs: dict[str, TokenDiff] = {source.source_id: result.diff}
        return await asyncio.to_thread(found.choose, diffs=diffs)

    async def _origin(self, tenant: str, video_id: str) -> str:
        """Give the source of a hit, which stored no latents of its own, and the video itself otherwise."""
        job = await self._jobs.get(tenant, video_id)
        return video_id if job is None or job.reuse.source_id is None else job.reuse.source_id


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    """A plan, and what it takes to choose again."""

    plan: ReusePlan
    candidates: list[Candidate]
    choose: Callable[..., ReusePlan]


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
