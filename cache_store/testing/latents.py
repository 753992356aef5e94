"""What every LatentStore must do."""

import dataclasses
import uuid
from abc import ABC, abstractmethod

import pytest

from cache_store.contracts import LatentKey, LatentRecord, LatentStore


class LatentStoreConformance(ABC):
    """What every latent store must do; tests use tenants of their own, so a server may be shared."""

    @abstractmethod
    def make(self) -> LatentStore:
        """Return a store; it may hold other tenants' latents."""

    @abstractmethod
    def overwrite(self, _store: LatentStore, key: LatentKey, blob: bytes) -> None:
        """Put raw bytes under a key behind the store's back."""

    @abstractmethod
    def raw(self, _store: LatentStore, key: LatentKey) -> bytes:
        """Return the raw bytes under a key."""

    @abstractmethod
    def overwrite_mask(self, _store: LatentStore, key: LatentKey, phrase: str, blob: bytes) -> None:
        """Put raw bytes in place of a mask of the key's source behind the store's back."""

    @abstractmethod
    def raw_mask(self, _store: LatentStore, key: LatentKey, phrase: str) -> bytes:
        """Return the raw bytes of a mask of the key's source."""

    @pytest.fixture
    def store(self) -> LatentStore:
        """Make one store per test."""
        return self.make()

    @pytest.fixture
    def key(self) -> LatentKey:
        """Return a key nobody else uses."""
        return LatentKey(tenant=f"t:{uuid.uuid4()}*", source_id="video_1", step=5)

    record = LatentRecord(dtype="bfloat16", shape=(2, 3), data=bytes(range(12)))

    def test_put_then_get(self, store: LatentStore, key: LatentKey) -> None:
        """What comes back is what was put."""
        assert store.put(key, self.record)
        assert store.get(key) == self.record
        assert set(store.sizes(key.tenant, key.source_id)) == {5}

    def test_missing_is_none(self, store: LatentStore, key: LatentKey) -> None:
        """Nothing is an answer, not an error."""
        assert store.get(key) is None
        assert store.sizes(key.tenant, key.source_id) == {}
        store.delete(key.tenant, key.source_id)

    def test_delete_removes_every_step_of_one_source(self, store: LatentStore, key: LatentKey) -> None:
        """Other sources stay."""
        for source_id, step in (("a", 0), ("a", 7), ("b", 0)):
            store.put(dataclasses.replace(key, source_id=source_id, step=step), self.record)
        store.delete(key.tenant, "a")
        assert store.sizes(key.tenant, "a") == {}
        assert store.get(dataclasses.replace(key, source_id="b", step=0)) == self.record

    def test_delete_tenant_leaves_the_others(self, store: LatentStore, key: LatentKey) -> None:
        """Also those whose name begins alike or holds a wildcard."""
        other = dataclasses.replace(key, tenant=f"{key.tenant}:x")
        for each in (key, other):
            store.put(each, self.record)
        store.delete_tenant(key.tenant)
        assert store.get(key) is None
        assert store.get(other) == self.record

    def test_names_cannot_reach_into_other_tenants(self, store: LatentStore, key: LatentKey) -> None:
        """A separator inside a name is part of the name."""
        store.put(dataclasses.replace(key, source_id="x:y"), self.record)
        assert store.get(dataclasses.replace(key, tenant=f"{key.tenant}:x", source_id="y")) is None

    @pytest.mark.parametrize("place", [0, 6, 30, -1])
    def test_a_changed_byte_reads_as_missing(self, store: LatentStore, key: LatentKey, place: int) -> None:
        """In the magic, the length, the header or the elements."""
        store.put(key, self.record)
        blob = bytearray(self.raw(store, key))
        blob[place] ^= 1
        self.overwrite(store, key, bytes(blob))
        assert store.get(key) is None

    def test_a_value_moved_to_another_key_reads_as_missing(self, store: LatentStore, key: LatentKey) -> None:
        """A latent answers to its own key only."""
        store.put(key, self.record)
        other = dataclasses.replace(key, step=6)
        store.put(other, self.record)
        self.overwrite(store, other, self.raw(store, key))
        assert store.get(other) is None

    @pytest.mark.parametrize("blob", [b"", b"RPL1", b"RPL1\xff\xff\xff\xff", b"RPL1\x02\0\0\0{}", bytes(1000)])
    def test_garbage_reads_as_missing(self, store: LatentStore, key: LatentKey, blob: bytes) -> None:
        """Whatever lies there."""
        store.put(key, self.record)
        self.overwrite(store, key, blob)
        assert store.get(key) is None

    @pytest.mark.parametrize(
        "record",
        [
            LatentRecord(dtype="object", shape=(1,), data=bytes(8)),
            LatentRecord(dtype="float32", shape=(2,), data=bytes(7)),
            LatentRecord(dtype="float32", shape=(0,), data=b""),
            LatentRecord(dtype="float16", shape=(-1, -1), data=bytes(2)),
        ],
    )
    def test_a_record_that_contradicts_itself_is_refused(
        self, store: LatentStore, key: LatentKey, record: LatentRecord
    ) -> None:
        """Before it is stored."""
        with pytest.raises(ValueError, match="expected"):
            store.put(key, record)

    def test_a_mask_is_kept_beside_the_latents(self, store: LatentStore, key: LatentKey) -> None:
        """It is no step of the source, and each phrase has its own."""
        store.put(key, self.record)
        sizes = store.sizes(key.tenant, key.source_id)
        for phrase, data in (("red star", b"one"), ("5", b"two"), ("red: \u00e9toile\n", b""), ("red star", b"three")):
            assert store.put_mask(key.tenant, key.source_id, phrase, data)
            assert store.mask(key.tenant, key.source_id, phrase) == data
        assert store.mask(key.tenant, key.source_id, "star") is None
        assert store.sizes(key.tenant, key.source_id) == sizes
        assert store.get(key) == self.record

    def test_a_source_that_is_gone_takes_no_mask(self, store: LatentStore, key: LatentKey) -> None:
        """Masks are made later than latents: a purge in between is not undone."""
        assert not store.put_mask(key.tenant, key.source_id, "star", b"mask")
        store.put(key, self.record)
        store.put_mask(key.tenant, key.source_id, "star", b"mask")
        store.delete(key.tenant, key.source_id)
        assert store.mask(key.tenant, key.source_id, "star") is None
        assert not store.put_mask(key.tenant, key.source_id, "star", b"mask")
        store.put(key, self.record)
        assert store.mask(key.tenant, key.source_id, "star") is None

    def test_masks_go_with_their_tenant(self, store: LatentStore, key: LatentKey) -> None:
        """Others keep theirs."""
        other = dataclasses.replace(key, tenant=f"{key.tenant}:x")
        for each in (key, other):
            store.put(each, self.record)
            store.put_mask(each.tenant, each.source_id, "star", b"mask")
        store.delete_tenant(key.tenant)
        assert store.mask(key.tenant, key.source_id, "star") is None
        assert store.mask(other.tenant, other.source_id, "star") == b"mask"

    @pytest.mark.parametrize("place", [0, 6, 19, -1])
    def test_a_changed_byte_of_a_mask_reads_as_missing(self, store: LatentStore, key: LatentKey, place: int) -> None:
        """In the magic, the checksum or the payload."""
        store.put(key, self.record)
        store.put_mask(key.tenant, key.source_id, "star", b"mask")
        blob = bytearray(self.raw_mask(store, key, "star"))
        blob[place] ^= 1
        self.overwrite_mask(store, key, "star", bytes(blob))
        assert store.mask(key.tenant, key.source_id, "star") is None

    @pytest.mark.parametrize("blob", [b"", b"RPK1", bytes(1000)])
    def test_garbage_is_no_mask(self, store: LatentStore, key: LatentKey, blob: bytes) -> None:
        """Whatever lies there."""
        store.put(key, self.record)
        store.put_mask(key.tenant, key.source_id, "star", b"mask")
        self.overwrite_mask(store, key, "star", blob)
        assert store.mask(key.tenant, key.source_id, "star") is None

    def test_a_mask_moved_to_another_phrase_or_source_reads_as_missing(
        self, store: LatentStore, key: LatentKey
    ) -> None:
        """A mask answers to its own key only."""
        other = dataclasses.replace(key, source_id="video_2")
        for each in (key, other):
            store.put(each, self.record)
            for phrase in ("star", "box"):
                store.put_mask(each.tenant, each.source_id, phrase, b"mask")
        blob = self.raw_mask(store, key, "star")
        self.overwrite_mask(store, key, "box", blob)
        self.overwrite_mask(store, other, "star", blob)
        assert store.mask(key.tenant, key.source_id, "box") is None
        assert store.mask(other.tenant, other.source_id, "star") is None
        assert store.mask(key.tenant, key.source_id, "star") == b"mask"
