"""The retrieval replica on a real Valkey: what is admitted is found, by its own partition only, until it is purged."""

import dataclasses
from collections.abc import Callable

import numpy as np
import pytest
import redis
import torch

import actors.retrieval
from actors.retrieval import Admission, RetrievalConfig, RetrievalReplica
from cache_store.connection import connect
from cache_store.contracts import LatentKey
from cache_store.latents.redis import RedisLatentStore
from cache_store.latents.tensors import from_tensor
from cache_store.partition import PartitionKey
from cache_store.testing.samples import ENCODER, unit_vectors
from tests.fakes.partitions import MODEL_PARTITION

TENANT = "default"
PARTITION = dataclasses.replace(MODEL_PARTITION, tenant=TENANT, num_steps=50)
ONE, TWO = (row.tobytes() for row in unit_vectors(2))
STEPS = (5, 10)

Start = Callable[[], RetrievalReplica]


@pytest.fixture
def url(valkey_url: str) -> str:
    url = f"{valkey_url}?db=7"
    redis.Redis.from_url(url).flushdb()
    return url


@pytest.fixture
def start(url: str, monkeypatch: pytest.MonkeyPatch) -> Start:
    """Start a replica, as after a restart: it has only what the store holds."""
    monkeypatch.setattr(actors.retrieval, "LOOKUP_TIMEOUT_S", 10.0)  # a busy machine is not what is tested here

    def start() -> RetrievalReplica:
        config = RetrievalConfig(capacity_bytes=1 << 20, ttl_s=3600)
        replica = RetrievalReplica(config, encoder=ENCODER, store_url=url)
        replica.start()
        return replica

    return start


@pytest.fixture
def latents(url: str) -> RedisLatentStore:
    return RedisLatentStore(connect(url, timeout_s=10.0), ttl_s=3600)


def admission(source_id: str, vector: bytes, partition: PartitionKey = PARTITION) -> Admission:
    return Admission(partition=partition, source_id=source_id, prompt=f"prompt of {source_id}", seed=3, vector=vector)


def store_latents(latents: RedisLatentStore, source_id: str, tenant: str = TENANT) -> None:
    for step in STEPS:
        latents.put(LatentKey(tenant=tenant, source_id=source_id, step=step), from_tensor(torch.ones(8)))


def test_what_is_admitted_is_found_with_its_score(start: Start, latents: RedisLatentStore) -> None:
    replica = start()
    assert replica.candidates(PARTITION, ONE, 4) == []
    for source_id, vector in (("one", ONE), ("two", TWO)):
        store_latents(latents, source_id)
        assert replica.admit(admission(source_id, vector)) == "admitted"
    near, far = replica.candidates(PARTITION, ONE, 4)
    assert (near.source_id, near.prompt, near.seed) == ("one", "prompt of one", 3)
    assert (near.num_steps, near.stored_steps) == (50, STEPS)
    assert near.matching_score == pytest.approx(1.0, abs=1e-5)
    expected = float(np.frombuffer(ONE, np.float32) @ np.frombuffer(TWO, np.float32))
    assert far.matching_score == pytest.approx(expected, abs=1e-5)
    assert [candidate.source_id for candidate in replica.candidates(PARTITION, TWO, 1)] == ["two"]


def test_the_index_is_rebuilt_from_the_store(start: Start, latents: RedisLatentStore) -> None:
    store_latents(latents, "one")
    start().admit(admission("one", ONE))
    (found,) = start().candidates(PARTITION, ONE, 4)
    assert found.source_id == "one"


def test_a_source_without_latents_is_refused(start: Start) -> None:
    replica = start()
    assert replica.admit(admission("one", ONE)) == "no_latents"
    assert replica.candidates(PARTITION, ONE, 4) == []


@pytest.mark.parametrize("other", [{"tenant": "acme"}, {"num_frames": 5}, {"embedder_revision": "2"}])
def test_another_partition_sees_nothing(start: Start, latents: RedisLatentStore, other: dict[str, object]) -> None:
    partition: PartitionKey = dataclasses.replace(PARTITION, **other)  # type: ignore[arg-type]
    replica = start()
    store_latents(latents, "one")
    replica.admit(admission("one", ONE))
    assert [found.source_id for found in replica.source(PARTITION, "one", TWO)] == ["one"]
    assert replica.source(partition, "one", TWO) == []
    assert replica.candidates(partition, ONE, 4) == []


def test_a_purged_source_is_gone_with_its_latents(start: Start, latents: RedisLatentStore) -> None:
    replica = start()
    for source_id in ("one", "two"):
        store_latents(latents, source_id)
        replica.admit(admission(source_id, ONE))
    replica.purge(TENANT, "one")
    replica.purge(TENANT, "unknown")
    assert [found.source_id for found in replica.candidates(PARTITION, ONE, 4)] == ["two"]
    assert replica.source(PARTITION, "one", ONE) == []
    assert latents.sizes(TENANT, "one") == {}
    assert [found.source_id for found in start().candidates(PARTITION, ONE, 4)] == ["two"]
    replica.purge(TENANT)
    assert replica.candidates(PARTITION, ONE, 4) == []
    assert latents.sizes(TENANT, "two") == {}


def test_latents_that_were_never_registered_are_purged_too(start: Start, latents: RedisLatentStore) -> None:
    store_latents(latents, "one")
    start().purge(TENANT, "one")
    assert latents.sizes(TENANT, "one") == {}


def test_uses_are_counted(start: Start, latents: RedisLatentStore) -> None:
    replica = start()
    store_latents(latents, "one")
    replica.admit(admission("one", ONE))
    replica.candidates(PARTITION, ONE, 4)
    replica.touch(TENANT, "one", 10)
    stats = replica.stats()
    assert (stats.entries, stats.lookups, stats.hits) == (1, 1, 1)
