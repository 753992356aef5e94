"""The cache of reusable sources as one object: look up, admit, count a use, purge, rebuild, and never grow too large.

Chorus section 3.1, on a miss only. Latents are put into the LatentStore by whoever made them; an entry is admitted
afterwards, so whatever a lookup finds has its latents. Similarity only proposes: the decision is not made here.
"""

import collections
import dataclasses
import enum
import logging
import threading
import time
from collections.abc import Callable, Collection

from cache_store.catalogue import Catalogue
from cache_store.contracts import EntryKey, EntryRecord, EntryStore, FloatArray, LatentStore, VectorIndex
from cache_store.entries.wire import embedding_bytes
from cache_store.errors import StoreFullError
from cache_store.eviction import EvictionPolicy
from cache_store.index.validate import checked_query
from cache_store.partition import PartitionKey

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CacheConfig:
    """Bounds of the cache."""

    capacity_bytes: int
    """Latents of admitted entries never take more than this."""
    ttl_s: int
    """An entry lives this long from its admission, however often it is used; give the stores the same."""

    def __post_init__(self) -> None:
        if self.capacity_bytes <= 0 or self.ttl_s <= 0:
            raise ValueError(f"expected positive capacity_bytes and ttl_s, got {self.capacity_bytes} and {self.ttl_s}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Match:
    """An entry of the same partition, and the cosine similarity of its prompt."""

    entry: EntryRecord
    score: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Candidate:
    """A finished source whose latents lie in the store already."""

    partition: PartitionKey
    source_id: str
    prompt: str
    seed: int
    embedding: FloatArray = dataclasses.field(repr=False)


class Admission(enum.StrEnum):
    """What became of a candidate; latents of a refused one are removed."""

    ADMITTED = "admitted"
    NO_LATENTS = "no_latents"
    TOO_LARGE = "too_large"
    STORE_FULL = "store_full"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CacheStats:
    """Sizes now, and counts since the start of this process."""

    entries: int
    partitions: int
    num_bytes: int
    capacity_bytes: int
    lookups: int
    hits: int
    """Uses reported by `touch`."""
    evictions: int
    refusals: int


class ReuseCache:
    """Facade over the stores and the in-memory catalogue; one instance per store, callable from several threads.

    `_writing` orders everything that changes the set of entries; a lookup never waits for it. In the stores
    metadata is written last and removed first, so a crash leaves latents without an entry, never the reverse.
    """

    def __init__(
        self,
        config: CacheConfig,
        *,
        entries: EntryStore,
        latents: LatentStore,
        policy: EvictionPolicy,
        make_index: Callable[[int], VectorIndex],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._config = config
        self._entries = entries
        self._latents = latents
        self._policy = policy
        self._make_index = make_index
        self._clock = clock
        self._catalogue = self._empty_catalogue()
        self._counts: collections.Counter[str] = collections.Counter()
        self._counting = threading.Lock()
        self._writing = threading.Lock()

    def rebuild(self) -> int:
        """Fill the indexes from the EntryStore, evict what is over capacity, and return the number of entries."""
        with self._writing:
            self._reload()
            self._make_room(0)
            logger.info("the cache holds %d entries, %d bytes", len(self._catalogue), self._catalogue.num_bytes)
            return len(self._catalogue)

    def lookup(self, partition: PartitionKey, vector: FloatArray, count: int) -> list[Match]:
        """Return up to `count` entries of the partition, most similar first; raises StoreUnavailableError.

        The store has the last word: an entry that expired or was deleted there is left out and forgotten here.
        """
        self._count("lookups")
        query = checked_query(vector, self._entries.encoder.dim, count)[0]
        catalogue = self._catalogue
        candidates = catalogue.nearest(partition.digest(), query, count)
        if not candidates:
            return []
        current = self._entries.get_many([record.key for record, _ in candidates])
        matches, stale = [], []
        for (record, score), entry in zip(candidates, current, strict=True):
            if entry is None or entry.vector_id != record.vector_id or entry.expires_at <= self._clock():
                stale.append(record.key)
            else:
                matches.append(Match(entry=entry, score=score))
        if stale and self._writing.acquire(blocking=False):  # busy: the next lookup, or an admission, forgets them
            try:
                catalogue.drop(stale)
            finally:
                self._writing.release()
        return matches

    def admit(self, candidate: Candidate) -> Admission:
        """Make a source visible, evicting others when there is no room; admitting it again replaces it."""
        embedding = checked_query(candidate.embedding, self._entries.encoder.dim, 1)[0]
        key = EntryKey(tenant=candidate.partition.tenant, source_id=candidate.source_id)
        with self._writing:
            now = self._clock()
            self._discard([record.key for record in self._catalogue.records() if record.expires_at <= now])
            self._catalogue.drop([key])
            sizes = self._latents.sizes(key.tenant, key.source_id)
            num_bytes = sum(sizes.values())
            if not sizes:
                return self._refuse(key, Admission.NO_LATENTS)
            if num_bytes > self._config.capacity_bytes:
                return self._refuse(key, Admission.TOO_LARGE)
            self._make_room(num_bytes)
            try:
                record = self._record(candidate, embedding, sizes, now)
                self._entries.put(record)
            except StoreFullError:
                return self._refuse(key, Admission.STORE_FULL)
            self._catalogue.insert([record])
        return Admission.ADMITTED

    def touch(self, key: EntryKey, *, steps_saved: int) -> None:
        """Count one use that skipped `steps_saved` steps."""
        now = self._clock()
        self._count("hits")
        self._catalogue.touch(key, steps_saved=steps_saved, now=now)
        try:
            self._entries.touch(key, steps_saved=steps_saved, now=now)
        except StoreFullError as error:  # the count lives on in memory; not worth a fault on the way of a hit
            logger.warning("a use of %s was not written: %s", key.source_id, error)

    def purge(self, tenant: str, source_id: str | None = None) -> None:
        """Remove one source of a tenant, or all of them: entry, vector, prompt and latents, admitted or not."""
        with self._writing:
            if source_id is not None:
                key = EntryKey(tenant=tenant, source_id=source_id)
                self._catalogue.drop([key])
                self._discard([key])
                return
            self._entries.delete_tenant(tenant)
            self._catalogue.drop([record.key for record in self._catalogue.records() if record.tenant == tenant])
            self._latents.delete_tenant(tenant)

    def stats(self) -> CacheStats:
        """Return sizes and counts."""
        return CacheStats(
            entries=len(self._catalogue),
            partitions=self._catalogue.num_partitions,
            num_bytes=self._catalogue.num_bytes,
            capacity_bytes=self._config.capacity_bytes,
            lookups=self._counts["lookups"],
            hits=self._counts["hits"],
            evictions=self._counts["evictions"],
            refusals=self._counts["refusals"],
        )

    def _count(self, name: str, amount: int = 1) -> None:
        with self._counting:
            self._counts[name] += amount

    def _empty_catalogue(self) -> Catalogue:
        dim = self._entries.encoder.dim
        return Catalogue(lambda: self._make_index(dim))

    def _reload(self) -> None:
        fresh, now = self._empty_catalogue(), self._clock()
        fresh.insert(record for record in self._entries.scan() if record.expires_at > now)
        self._catalogue = fresh

    def _record(self, candidate: Candidate, embedding: FloatArray, sizes: dict[int, int], now: float) -> EntryRecord:
        return EntryRecord(
            source_id=candidate.source_id,
            tenant=candidate.partition.tenant,
            partition=candidate.partition.digest(),
            vector_id=self._next_vector_id(),
            prompt=candidate.prompt,
            seed=candidate.seed,
            embedding=embedding_bytes(embedding),
            encoder=self._entries.encoder,
            steps=tuple(sorted(sizes)),
            num_steps=candidate.partition.num_steps,
            num_bytes=sum(sizes.values()),
            created_at=now,
            expires_at=now + self._config.ttl_s,
            last_used_at=now,
        )

    def _next_vector_id(self) -> int:
        vector_id = self._entries.next_vector_id()
        if self._catalogue.has_vector(vector_id):
            logger.warning("vector ids start again at %d: the store was emptied, so the cache is rebuilt", vector_id)
            self._reload()
        return vector_id

    def _make_room(self, num_bytes: int) -> None:
        excess = self._catalogue.num_bytes + num_bytes - self._config.capacity_bytes
        if excess > 0:
            victims = self._policy.victims(self._catalogue.records(), bytes_to_free=excess)
            self._discard([record.key for record in victims])
            self._count("evictions", len(victims))

    def _discard(self, keys: Collection[EntryKey]) -> None:
        """Remove entries everywhere: metadata first, so that nothing is found whose latents are going."""
        if not keys:
            return
        self._entries.delete(keys)
        self._catalogue.drop(keys)
        for key in keys:
            self._latents.delete(key.tenant, key.source_id)

    def _refuse(self, key: EntryKey, reason: Admission) -> Admission:
        logger.warning("source %s is not cached: %s", key.source_id, reason)
        self._count("refusals")
        self._discard([key])
        return reason
