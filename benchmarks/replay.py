"""A trace replayed against the cache without a model: what would be a hit, and of what.

Embedder, cache, index and decision are the product's own; a miss is stored with one number in place of each latent,
and nothing is ever evicted. Knows nothing about where a trace comes from, nor what is done with the outcome.
"""

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Final

import numpy as np

from actors.embedder import EmbedderReplica
from cache_store.cache import Admission, CacheConfig, ReuseCache
from cache_store.cache import Candidate as Source
from cache_store.contracts import EncoderTag, FloatArray, LatentKey, LatentRecord
from cache_store.entries.memory import MemoryEntryStore
from cache_store.eviction import Lcbfu
from cache_store.index.ivf import FaissIvfIndex
from cache_store.latents.memory import MemoryLatentStore
from cache_store.partition import PartitionKey
from deployments.planning import NUM_CANDIDATES
from load_tests.traces import TraceItem
from reprise.chorus.grid import make_grid
from reprise.chorus.plan import Candidate, plan_reuse
from reprise.chorus.stages import StageMap

LATENT: Final = LatentRecord(dtype="float16", shape=(1,), data=bytes(2))
PARTITION: Final = PartitionKey(
    tenant="benchmark", model_id="none", model_revision="", dtype="", quantisation="", scheduler="", shift=1.0,
    num_steps=1, guidance=1.0, width=1, height=1, num_frames=1, fps=1, negative_prompt="", loras=(),
    text_encoder_revision="", embedder_revision="", vae_revision="",
)  # fmt: skip


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A request of a trace with its embedding."""

    item: TraceItem
    vector: FloatArray
    is_whole: bool
    """False when the encoder read only the prompt's beginning."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Decision:
    """What became of a request."""

    is_hit: bool
    is_stored: bool
    k1: int = 0
    reason: str | None = None
    """Of a miss, as the server would give it."""


Decide = Callable[[Request, Sequence[Candidate], StageMap], Decision]


class DryCache:
    """The product's cache and index, over memory."""

    def __init__(self, encoder: EncoderTag, stage_map: StageMap) -> None:
        self._latents = MemoryLatentStore()
        self._cache = ReuseCache(
            CacheConfig(capacity_bytes=2**62, ttl_s=2**31),
            entries=MemoryEntryStore(encoder),
            latents=self._latents,
            policy=Lcbfu(),
            make_index=FaissIvfIndex,
        )
        self._partition = dataclasses.replace(PARTITION, num_steps=stage_map.num_steps)
        self._steps = make_grid(stage_map, num_steps=stage_map.num_steps).steps

    def nearest(self, vector: FloatArray) -> list[Candidate]:
        """Give as many sources as the server looks at, best first."""
        return [
            Candidate(
                source_id=match.entry.source_id,
                matching_score=match.score,
                prompt=match.entry.prompt,
                seed=match.entry.seed,
                num_steps=match.entry.num_steps,
                stored_steps=match.entry.steps,
            )
            for match in self._cache.lookup(self._partition, vector, NUM_CANDIDATES)
        ]

    def store(self, request: Request) -> None:
        """Store what a run from noise would leave behind."""
        source_id = f"video_{request.item.index}"
        for step in self._steps:
            self._latents.put(LatentKey(tenant=self._partition.tenant, source_id=source_id, step=step), LATENT)
        source = Source(
            partition=self._partition,
            source_id=source_id,
            prompt=request.item.prompt,
            seed=request.item.index,
            embedding=request.vector,
        )
        admission = self._cache.admit(source)
        assert admission is Admission.ADMITTED, admission


def decide_by_score(request: Request, candidates: Sequence[Candidate], stage_map: StageMap) -> Decision:
    """Call it a hit when the best score reaches tau."""
    del request  # the paper's count reads no words
    is_hit = any(c.matching_score is not None and c.matching_score >= stage_map.tau for c in candidates)
    return Decision(is_hit=is_hit, is_stored=not is_hit)


def decide_as_served(request: Request, candidates: Sequence[Candidate], stage_map: StageMap) -> Decision:
    """Decide as the server does; a prompt that was not read to its end is neither reused for nor stored."""
    plan = plan_reuse(
        prompt=request.item.prompt,
        seed=request.item.index,
        num_steps=stage_map.num_steps,
        candidates=candidates,
        stage_map=stage_map,
        prompt_exceeds_encoder=not request.is_whole,
    )
    return Decision(
        is_hit=plan.is_hit,
        is_stored=not plan.is_hit and request.is_whole,
        k1=plan.boundaries.k1,
        reason=None if plan.reason is None else str(plan.reason),
    )


def replay(requests: Iterable[Request], encoder: EncoderTag, stage_map: StageMap, decide: Decide) -> list[Decision]:
    """Send requests one after the other through an empty cache."""
    cache = DryCache(encoder, stage_map)
    decisions = []
    for request in requests:
        decision = decide(request, cache.nearest(request.vector), stage_map)
        if decision.is_stored:
            cache.store(request)
        decisions.append(decision)
    return decisions


def embed(items: Iterable[TraceItem], embedder: EmbedderReplica) -> list[Request]:
    """Embed a trace as the server does."""
    embedded = [(item, embedder.embed(item.prompt)) for item in items]
    return [Request(item=i, vector=np.frombuffer(e.vector, np.float32), is_whole=e.is_whole) for i, e in embedded]
