"""The retrieval replica: a shell around the reuse cache, its single writer.

Chorus section 3.1. Holds the vector indexes, rebuilt from the store at start, and answers in plain values. What to
do with the neighbours is decided elsewhere; knows nothing about thresholds, jobs or HTTP.
"""

import dataclasses
from collections.abc import Callable
from typing import Final

import numpy as np

from cache_store.cache import CacheConfig, CacheStats, Match, ReuseCache
from cache_store.cache import Candidate as Source
from cache_store.connection import BLOB_TIMEOUT_S, LOOKUP_TIMEOUT_S, connect, warn_of_limits
from cache_store.contracts import EncoderTag, EntryKey, EntryRecord
from cache_store.entries.redis import RedisEntryStore
from cache_store.entries.wire import embedding_vector
from cache_store.eviction import EvictionPolicy, Lcbfu, Lru
from cache_store.index.ivf import FaissIvfIndex
from cache_store.latents.redis import RedisLatentStore
from cache_store.partition import PartitionKey
from reprise.chorus.plan import Candidate

POLICIES: Final[dict[str, Callable[[], EvictionPolicy]]] = {"lcbfu": Lcbfu, "lru": Lru}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class RetrievalConfig:
    """Bounds of the cache and who goes when it is full."""

    capacity_bytes: int
    ttl_s: int
    eviction: str = "lcbfu"
    """A name in POLICIES."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Admission:
    """A source whose latents are stored, to be offered to later requests."""

    partition: PartitionKey
    source_id: str
    prompt: str
    seed: int
    vector: bytes = dataclasses.field(repr=False)
    """Unit vector, float32."""


class RetrievalReplica:
    """Finds sources for new requests and keeps the cache within its bounds."""

    def __init__(self, config: RetrievalConfig, *, encoder: EncoderTag, store_url: str) -> None:
        self._config = config
        self._client = connect(store_url, timeout_s=LOOKUP_TIMEOUT_S)
        self._entries = RedisEntryStore(self._client, encoder=encoder, ttl_s=config.ttl_s)
        self._cache = ReuseCache(
            CacheConfig(capacity_bytes=config.capacity_bytes, ttl_s=config.ttl_s),
            entries=self._entries,
            latents=RedisLatentStore(connect(store_url, timeout_s=BLOB_TIMEOUT_S), ttl_s=config.ttl_s),
            policy=POLICIES[config.eviction](),
            make_index=FaissIvfIndex,
        )

    def start(self) -> None:
        """Rebuild the indexes from the store."""
        warn_of_limits(self._client, capacity_bytes=self._config.capacity_bytes)
        self._cache.rebuild()

    def candidates(self, partition: PartitionKey, vector: bytes, count: int) -> list[Candidate]:
        """Give the nearest sources of a partition, best first; raises StoreError when the store does not answer."""
        return [_candidate(match) for match in self._cache.lookup(partition, _vector(vector), count)]

    def source(self, partition: PartitionKey, source_id: str, vector: bytes) -> list[Candidate]:
        """Give one source with its score, or nothing when it is not stored in this partition."""
        entry = self._entries.get_many([EntryKey(tenant=partition.tenant, source_id=source_id)])[0]
        if entry is None or entry.partition != partition.digest():
            return []
        score = float(embedding_vector(entry.embedding) @ _vector(vector))
        return [_candidate(Match(entry=entry, score=score))]

    def admit(self, admission: Admission) -> str:
        """Register a source; says what became of it."""
        source = Source(
            partition=admission.partition,
            source_id=admission.source_id,
            prompt=admission.prompt,
            seed=admission.seed,
            embedding=_vector(admission.vector),
        )
        return str(self._cache.admit(source))

    def touch(self, tenant: str, source_id: str, steps_saved: int) -> None:
        """Count one use of a source."""
        self._cache.touch(EntryKey(tenant=tenant, source_id=source_id), steps_saved=steps_saved)

    def purge(self, tenant: str, source_id: str | None = None) -> None:
        """Forget one source of a tenant, or all of them: vector, prompt and latents."""
        self._cache.purge(tenant, source_id)

    def stats(self) -> CacheStats:
        """Give sizes and counts."""
        return self._cache.stats()


def _vector(data: bytes) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.frombuffer(data, np.float32)


def _candidate(match: Match) -> Candidate:
    entry: EntryRecord = match.entry
    return Candidate(
        source_id=entry.source_id,
        matching_score=match.score,
        prompt=entry.prompt,
        seed=entry.seed,
        num_steps=entry.num_steps,
        stored_steps=entry.steps,
    )
