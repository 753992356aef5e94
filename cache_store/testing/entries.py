"""What every EntryStore must do."""

import dataclasses
import uuid
from abc import ABC, abstractmethod

import pytest

from cache_store.contracts import EntryRecord, EntryStore
from cache_store.testing.samples import ENCODER, some_entry


class EntryStoreConformance(ABC):
    """What every entry store must do; tests use tenants of their own, so a server may be shared."""

    @abstractmethod
    def make(self) -> EntryStore:
        """Return a store for ENCODER; it may hold other tenants' entries."""

    @pytest.fixture
    def store(self) -> EntryStore:
        """Make one store per test."""
        return self.make()

    @pytest.fixture
    def entry(self) -> EntryRecord:
        """Return an entry of a tenant nobody else uses."""
        return some_entry(tenant=f"t:{uuid.uuid4()}*")

    def test_put_then_get(self, store: EntryStore, entry: EntryRecord) -> None:
        """What comes back is what was put, in the order asked for."""
        store.put(entry)
        missing = dataclasses.replace(entry, source_id="other").key
        assert store.get_many([missing, entry.key]) == [None, entry]
        assert store.get_many([]) == []
        assert store.encoder == ENCODER

    def test_scan_yields_what_was_put(self, store: EntryStore, entry: EntryRecord) -> None:
        """An index can be rebuilt from it."""
        entries = [dataclasses.replace(entry, source_id=f"v{i}", vector_id=i) for i in range(30)]
        for each in entries:
            store.put(each)
        found = {each.source_id: each for each in store.scan() if each.tenant == entry.tenant}
        assert found == {each.source_id: each for each in entries}

    def test_touch_adds_up(self, store: EntryStore, entry: EntryRecord) -> None:
        """Uses and steps saved are sums, the last use is the latest."""
        store.put(entry)
        store.touch(entry.key, steps_saved=10, now=2_000.5)
        store.touch(entry.key, steps_saved=5, now=3_000.25)
        assert store.get_many([entry.key]) == [
            dataclasses.replace(entry, uses=2, steps_saved=15, last_used_at=3_000.25)
        ]

    def test_touch_does_not_bring_back_what_is_gone(self, store: EntryStore, entry: EntryRecord) -> None:
        """A late use of a deleted entry changes nothing."""
        store.put(entry)
        store.delete([entry.key])
        store.touch(entry.key, steps_saved=1, now=2_000.0)
        assert store.get_many([entry.key]) == [None]
        assert entry.tenant not in {each.tenant for each in store.scan()}

    def test_delete_tenant_leaves_the_others(self, store: EntryStore, entry: EntryRecord) -> None:
        """Also those whose name begins alike."""
        other = dataclasses.replace(entry, tenant=f"{entry.tenant}:x")
        store.put(entry)
        store.put(other)
        store.delete_tenant(entry.tenant)
        assert store.get_many([entry.key, other.key]) == [None, other]

    def test_vector_ids_are_never_drawn_twice(self, store: EntryStore) -> None:
        """They only rise."""
        ids = [store.next_vector_id() for _ in range(20)]
        assert ids == sorted(set(ids))
