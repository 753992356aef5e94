"""Every latent store passes the shipped suite; Redis in particular: limits, expiry, hostile values."""

import dataclasses
import pickle
import uuid

import pytest
import redis
import torch
from hypothesis import given
from hypothesis import strategies as st

from cache_store.connection import BLOB_TIMEOUT_S, connect
from cache_store.contracts import LatentKey, LatentRecord, LatentStore
from cache_store.latents.mask_wire import decode_mask, encode_mask
from cache_store.latents.memory import MemoryLatentStore
from cache_store.latents.redis import GRACE_S, RedisLatentStore
from cache_store.latents.tensors import from_tensor, to_tensor
from cache_store.latents.wire import decode, encode
from cache_store.testing import LatentStoreConformance


class TestMemoryLatentStore(LatentStoreConformance):
    def make(self) -> LatentStore:
        return MemoryLatentStore()

    def overwrite(self, _store: LatentStore, key: LatentKey, blob: bytes) -> None:
        assert isinstance(_store, MemoryLatentStore)
        _store._sources[key.tenant, key.source_id][key.step] = blob

    def raw(self, _store: LatentStore, key: LatentKey) -> bytes:
        assert isinstance(_store, MemoryLatentStore)
        return _store._sources[key.tenant, key.source_id][key.step]

    def overwrite_mask(self, _store: LatentStore, key: LatentKey, phrase: str, blob: bytes) -> None:
        assert isinstance(_store, MemoryLatentStore)
        _store._masks[key.tenant, key.source_id][phrase] = blob

    def raw_mask(self, _store: LatentStore, key: LatentKey, phrase: str) -> bytes:
        assert isinstance(_store, MemoryLatentStore)
        return _store._masks[key.tenant, key.source_id][phrase]


class TestRedisLatentStore(LatentStoreConformance):
    @pytest.fixture(autouse=True)
    def client(self, valkey_url: str) -> redis.Redis:
        self._client = connect(valkey_url, timeout_s=BLOB_TIMEOUT_S)
        return self._client

    def make(self) -> LatentStore:
        return RedisLatentStore(self._client, ttl_s=60)

    def name(self, key: LatentKey) -> str:
        tenant = key.tenant.replace(":", "%3A").replace("*", "%2A")
        (name,) = self._client.keys(f"reprise:latents:{tenant}:{key.source_id}")
        assert isinstance(name, bytes)
        return name.decode()

    def overwrite(self, _store: LatentStore, key: LatentKey, blob: bytes) -> None:
        self._client.hset(self.name(key), str(key.step), blob)

    def raw(self, _store: LatentStore, key: LatentKey) -> bytes:
        blob = self._client.hget(self.name(key), str(key.step))
        assert isinstance(blob, bytes)
        return blob

    def overwrite_mask(self, _store: LatentStore, key: LatentKey, phrase: str, blob: bytes) -> None:
        self._client.hset(self.name(key), f"mask:{phrase}", blob)

    def raw_mask(self, _store: LatentStore, key: LatentKey, phrase: str) -> bytes:
        blob = self._client.hget(self.name(key), f"mask:{phrase}")
        assert isinstance(blob, bytes)
        return blob

    def test_every_key_expires(self, store: LatentStore, key: LatentKey) -> None:
        store.put(key, self.record)
        assert 0 < self._client.ttl(self.name(key)) <= 60 + GRACE_S

    def test_a_latent_over_the_limit_is_not_cached(self, key: LatentKey) -> None:
        store = RedisLatentStore(self._client, ttl_s=60, max_value_bytes=1_000)
        assert not store.put(key, LatentRecord(dtype="float32", shape=(250,), data=bytes(1_000)))
        assert store.sizes(key.tenant, key.source_id) == {}

    def test_a_mask_does_not_lengthen_its_sources_time(self, store: LatentStore, key: LatentKey) -> None:
        store.put(key, self.record)
        name = self.name(key)
        self._client.expire(name, 30)
        assert store.put_mask(key.tenant, key.source_id, "star", b"mask")
        assert 0 < self._client.ttl(name) <= 30

    def test_a_mask_over_the_limit_is_not_cached(self, key: LatentKey) -> None:
        store = RedisLatentStore(self._client, ttl_s=60, max_value_bytes=1_000)
        assert store.put(key, self.record)
        assert not store.put_mask(key.tenant, key.source_id, "star", bytes(981))
        assert store.mask(key.tenant, key.source_id, "star") is None
        assert store.put_mask(key.tenant, key.source_id, "star", bytes(980))

    def test_a_full_server_is_a_dropped_write(self, store: LatentStore, key: LatentKey) -> None:
        kept = dataclasses.replace(key, source_id="kept")
        assert store.put(kept, self.record)
        self._client.config_set("maxmemory", 1)
        try:
            assert not store.put(key, self.record)
            assert not store.put_mask(kept.tenant, kept.source_id, "star", b"mask")
        finally:
            self._client.config_set("maxmemory", 512 << 20)
        assert store.put(key, self.record)
        assert store.put_mask(kept.tenant, kept.source_id, "star", b"mask")

    def test_a_server_that_lost_its_scripts_takes_a_mask(self, store: LatentStore, key: LatentKey) -> None:
        store.put(key, self.record)
        self._client.script_flush()
        assert store.put_mask(key.tenant, key.source_id, "star", b"mask")

    def test_a_pickle_is_a_miss_and_does_not_run(self, store: LatentStore, key: LatentKey) -> None:
        store.put(key, self.record)
        self.overwrite(store, key, pickle.dumps(Trap()))
        assert store.get(key) is None

    def test_a_key_of_another_type_is_a_miss(self, store: LatentStore, key: LatentKey) -> None:
        store.put(key, self.record)
        name = self.name(key)
        self._client.delete(name)
        self._client.set(name, pickle.dumps(Trap()), ex=60)
        assert store.get(key) is None
        assert not store.put(key, self.record)
        assert store.mask(key.tenant, key.source_id, "star") is None
        assert not store.put_mask(key.tenant, key.source_id, "star", b"mask")


class Trap:
    """Fails the test when unpickled."""

    def __reduce__(self) -> tuple[object, ...]:
        return (pytest.fail, ("a pickle from the store was executed",))


KEY = LatentKey(tenant="t", source_id="v", step=3)


@given(st.binary(max_size=200))
def test_no_bytes_crash_the_reader(blob: bytes) -> None:
    assert decode(KEY, blob) is None
    assert decode(KEY, b"RPL1" + len(blob).to_bytes(4, "little") + blob) is None


def test_a_deeply_nested_header_is_a_miss() -> None:
    assert decode(KEY, b"RPL1" + (4_096).to_bytes(4, "little") + b"[" * 4_096) is None


@given(data=st.binary(min_size=1, max_size=64), place=st.integers(0, 10_000), bit=st.integers(0, 7))
def test_any_flipped_bit_is_noticed(data: bytes, place: int, bit: int) -> None:
    record = LatentRecord(dtype="float16", shape=(len(data),), data=data * 2)
    blob = bytearray(encode(KEY, record))
    assert decode(KEY, bytes(blob)) == record
    blob[place % len(blob)] ^= 1 << bit
    assert decode(KEY, bytes(blob)) is None


@given(phrase=st.text(max_size=9), data=st.binary(max_size=64), place=st.integers(0, 99), bit=st.integers(0, 7))
def test_any_flipped_bit_of_a_mask_is_noticed(phrase: str, data: bytes, place: int, bit: int) -> None:
    blob = bytearray(encode_mask("t", "v", phrase, data))
    assert decode_mask("t", "v", phrase, bytes(blob)) == data
    assert decode_mask("t", "v", phrase + "s", bytes(blob)) is None
    blob[place % len(blob)] ^= 1 << bit
    assert decode_mask("t", "v", phrase, bytes(blob)) is None


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_tensors_survive_bit_for_bit(dtype: torch.dtype) -> None:
    latent = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).to(dtype).transpose(0, 2)
    key = LatentKey(tenant=str(uuid.uuid4()), source_id="v", step=0)
    store = MemoryLatentStore()
    store.put(key, from_tensor(latent))
    record = store.get(key)
    assert record is not None
    back = to_tensor(record)
    assert back.dtype == dtype
    assert torch.equal(back, latent)
    back.add_(1)  # it owns its memory
