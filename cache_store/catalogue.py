"""What this process holds in memory about the cache: records without embeddings, and one index per partition.

A mirror of the EntryStore that can be thrown away and built again. Knows nothing about Redis or latents.
"""

import dataclasses
import threading
from collections.abc import Callable, Iterable

import numpy as np

from cache_store.contracts import EntryKey, EntryRecord, FloatArray, VectorIndex
from cache_store.entries.wire import embedding_vector


class Catalogue:
    """One writer at a time changes it (the caller's lock); searches and counts may run meanwhile.

    Invariants: every record's vector is in the index of its partition and nothing else is;
    `num_bytes` is the sum over the records; no partition is empty.
    """

    def __init__(self, make_index: Callable[[], VectorIndex]) -> None:
        self._make_index = make_index
        self._records: dict[EntryKey, EntryRecord] = {}
        self._key_of: dict[int, EntryKey] = {}
        self._indexes: dict[str, VectorIndex] = {}
        self._num_bytes = 0
        self._lock = threading.Lock()  # held for dictionary work only, never while an index works

    @property
    def num_bytes(self) -> int:
        """What the latents of all entries take."""
        return self._num_bytes

    @property
    def num_partitions(self) -> int:
        """Partitions with at least one entry."""
        return len(self._indexes)

    def __len__(self) -> int:
        return len(self._records)

    def __contains__(self, key: EntryKey) -> bool:
        return key in self._records

    def has_vector(self, vector_id: int) -> bool:
        """Tell whether an entry bears this vector id."""
        return vector_id in self._key_of

    def records(self) -> list[EntryRecord]:
        """Return all records, without their embeddings."""
        with self._lock:
            return list(self._records.values())

    def insert(self, records: Iterable[EntryRecord]) -> None:
        """Take up entries, except those whose key or vector id is there already: a scan may yield one twice."""
        by_partition: dict[str, list[EntryRecord]] = {}
        with self._lock:
            for record in records:
                if record.key in self._records or record.vector_id in self._key_of:
                    continue
                by_partition.setdefault(record.partition, []).append(record)
                # A million embeddings would take 3 GB here a second time; the index has them.
                self._records[record.key] = dataclasses.replace(record, embedding=b"")
                self._key_of[record.vector_id] = record.key
                self._num_bytes += record.num_bytes
        for partition, members in by_partition.items():
            index = self._indexes.setdefault(partition, self._make_index())
            vectors = np.stack([embedding_vector(record.embedding) for record in members])
            index.add(np.array([record.vector_id for record in members], np.int64), vectors)

    def drop(self, keys: Iterable[EntryKey]) -> list[EntryRecord]:
        """Forget entries, ignoring unknown ones; return what was forgotten."""
        with self._lock:
            dropped = [self._records.pop(key) for key in set(keys) if key in self._records]
            for record in dropped:
                del self._key_of[record.vector_id]
                self._num_bytes -= record.num_bytes
        for partition in {record.partition for record in dropped}:
            index = self._indexes[partition]
            index.remove(np.array([r.vector_id for r in dropped if r.partition == partition], np.int64))
            if len(index) == 0:
                del self._indexes[partition]
        return dropped

    def nearest(self, partition: str, vector: FloatArray, count: int) -> list[tuple[EntryRecord, float]]:
        """Return the most similar entries of one partition with their similarity, best first."""
        index = self._indexes.get(partition)
        if index is None:
            return []
        found = []
        neighbors = index.nearest(vector, count)
        with self._lock:
            for neighbor in neighbors:
                key = self._key_of.get(neighbor.key)
                if key is not None:  # else it was dropped a moment ago
                    found.append((self._records[key], neighbor.score))
        return found

    def touch(self, key: EntryKey, *, steps_saved: int, now: float) -> None:
        """Count one use."""
        with self._lock:
            record = self._records.get(key)
            if record is not None:
                self._records[key] = dataclasses.replace(
                    record, uses=record.uses + 1, steps_saved=record.steps_saved + steps_saved, last_used_at=now
                )

    def check(self) -> None:
        """Assert the invariants."""
        records = self.records()
        assert self._num_bytes == sum(record.num_bytes for record in records)
        assert {record.vector_id: record.key for record in records} == self._key_of
        sizes = {partition: len(index) for partition, index in self._indexes.items()}
        assert sizes == {p: sum(r.partition == p for r in records) for p in {r.partition for r in records}}
