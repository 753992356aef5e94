"""Every entry store passes the shipped suite; Redis in particular: expiry, hostile values, encoders that change."""

import dataclasses
import logging
import pickle
import uuid

import pytest
import redis

from cache_store.connection import LOOKUP_TIMEOUT_S, connect
from cache_store.contracts import EntryRecord, EntryStore
from cache_store.entries.memory import MemoryEntryStore
from cache_store.entries.redis import VECTOR_ID, RedisEntryStore
from cache_store.entries.wire import from_fields, to_fields
from cache_store.errors import StoreFullError
from cache_store.testing import EntryStoreConformance
from cache_store.testing.samples import ENCODER, some_entry


class TestMemoryEntryStore(EntryStoreConformance):
    def make(self) -> EntryStore:
        return MemoryEntryStore(ENCODER)


class TestRedisEntryStore(EntryStoreConformance):
    @pytest.fixture(autouse=True)
    def client(self, valkey_url: str) -> redis.Redis:
        self._client = connect(valkey_url, timeout_s=LOOKUP_TIMEOUT_S * 20)  # the machine may be busy
        return self._client

    def make(self) -> EntryStore:
        return RedisEntryStore(self._client, encoder=ENCODER, ttl_s=3_600)

    def names(self, entry: EntryRecord) -> list[bytes]:
        tenant = entry.tenant.replace(":", "%3A").replace("*", "%2A")
        return [name for name in self._client.keys(f"reprise:entry:*:{tenant}:*") if isinstance(name, bytes)]

    def test_every_key_expires(self, store: EntryStore, entry: EntryRecord) -> None:
        store.put(entry)
        store.touch(entry.key, steps_saved=1, now=2_000.0)
        store.next_vector_id()
        (name,) = self.names(entry)
        assert 0 < self._client.ttl(name) <= 3_600
        assert self._client.ttl(VECTOR_ID) > 3_600
        store.touch(dataclasses.replace(entry, source_id="gone").key, steps_saved=1, now=2_000.0)
        assert self.names(entry) == [name]

    def test_damaged_entries_are_skipped(self, store: EntryStore, entry: EntryRecord) -> None:
        for source_id in ("text", "field", "whole"):
            store.put(dataclasses.replace(entry, source_id=source_id))
        for name in self.names(entry):
            if name.endswith(b"text"):
                self._client.delete(name)
                self._client.set(name, pickle.dumps({}), ex=60)
            if name.endswith(b"field"):
                self._client.hset(name, "facts", pickle.dumps({}))
        assert [each.source_id for each in store.scan() if each.tenant == entry.tenant] == ["whole"]

    @pytest.mark.parametrize("change", [{"name": "other"}, {"revision": "2"}, {"dim": 16}])
    def test_another_encoder_is_another_namespace(
        self, entry: EntryRecord, change: dict[str, str], caplog: pytest.LogCaptureFixture
    ) -> None:
        """Old entries are ignored, and come back with the old encoder."""
        store = self.make()
        store.put(entry)
        assert entry.tenant in {each.tenant for each in store.scan()}
        other = RedisEntryStore(self._client, encoder=dataclasses.replace(ENCODER, **change), ttl_s=3_600)  # type: ignore[arg-type]
        with caplog.at_level(logging.WARNING):
            assert list(other.scan()) == []
        assert "encoder changed" in caplog.text
        assert other.get_many([entry.key]) == [None]
        assert entry in list(self.make().scan())

    def test_a_tenant_is_deleted_under_every_encoder(self, store: EntryStore, entry: EntryRecord) -> None:
        store.put(entry)
        RedisEntryStore(self._client, encoder=dataclasses.replace(ENCODER, revision="2"), ttl_s=60).delete_tenant(
            entry.tenant
        )
        assert self.names(entry) == []

    def test_a_full_server_says_so(self, store: EntryStore, entry: EntryRecord) -> None:
        self._client.config_set("maxmemory", 1)
        try:
            with pytest.raises(StoreFullError, match="raise its maxmemory"):
                store.put(entry)
        finally:
            self._client.config_set("maxmemory", 512 << 20)


def test_fields_come_back() -> None:
    entry = some_entry(tenant=str(uuid.uuid4()))
    fields = {name.encode(): value for name, value in to_fields(entry).items()}
    assert from_fields(fields, ENCODER) == entry


@pytest.mark.parametrize("name", ["facts", "embedding", "checksum", "uses", "steps_saved", "last_used_at"])
@pytest.mark.parametrize("value", [None, b"", b"nan", b"\x80\x04]", b"[" * 5_000])
def test_a_spoilt_field_is_a_missing_entry(name: str, value: bytes | None) -> None:
    fields = {key.encode(): field for key, field in to_fields(some_entry()).items()}
    del fields[name.encode()]
    if value is not None:
        fields[name.encode()] = value
    assert from_fields(fields, ENCODER) is None
