"""Entries in a dict of this process: for tests and for trying things out. Nothing expires by itself."""

import dataclasses
import itertools
import threading
from collections.abc import Collection, Iterator, Sequence

from cache_store.contracts import EncoderTag, EntryKey, EntryRecord


class MemoryEntryStore:
    """One record per key."""

    def __init__(self, encoder: EncoderTag) -> None:
        self._encoder = encoder
        self._records: dict[EntryKey, EntryRecord] = {}
        self._vector_ids = itertools.count(1)
        self._lock = threading.Lock()

    @property
    def encoder(self) -> EncoderTag:
        """Tag of the embeddings."""
        return self._encoder

    def next_vector_id(self) -> int:
        """Draw a vector id that was never drawn before."""
        return next(self._vector_ids)

    def put(self, record: EntryRecord) -> None:
        """Store or replace an entry."""
        with self._lock:
            self._records[record.key] = record

    def get_many(self, keys: Sequence[EntryKey]) -> list[EntryRecord | None]:
        """Return the entries in order, `None` for what is missing."""
        with self._lock:
            return [self._records.get(key) for key in keys]

    def touch(self, key: EntryKey, *, steps_saved: int, now: float) -> None:
        """Count one use; an entry that is gone stays gone."""
        with self._lock:
            record = self._records.get(key)
            if record is not None:
                self._records[key] = dataclasses.replace(
                    record, uses=record.uses + 1, steps_saved=record.steps_saved + steps_saved, last_used_at=now
                )

    def delete(self, keys: Collection[EntryKey]) -> None:
        """Remove the entries, ignoring unknown ones."""
        with self._lock:
            for key in keys:
                self._records.pop(key, None)

    def delete_tenant(self, tenant: str) -> None:
        """Remove every entry of a tenant."""
        with self._lock:
            self._records = {key: record for key, record in self._records.items() if key.tenant != tenant}

    def scan(self) -> Iterator[EntryRecord]:
        """Yield every entry, in no order."""
        with self._lock:
            records = list(self._records.values())
        yield from records
