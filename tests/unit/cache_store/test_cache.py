"""The cache as its users see it: admission, capacity, tenants, expiry, rebuild; in memory and on a real server."""

import dataclasses
import pathlib
import random
import uuid
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from cache_store.cache import Admission, CacheConfig, Candidate, Match, ReuseCache
from cache_store.connection import BLOB_TIMEOUT_S, connect
from cache_store.contracts import EntryKey, EntryStore, FloatArray, LatentKey, LatentRecord, LatentStore
from cache_store.embedded import EmbeddedConfig, EmbeddedValkey
from cache_store.entries.memory import MemoryEntryStore
from cache_store.entries.redis import VECTOR_ID, RedisEntryStore
from cache_store.errors import StoreFullError
from cache_store.eviction import Lcbfu, Lru
from cache_store.index.flat import FaissFlatIndex
from cache_store.latents.memory import MemoryLatentStore
from cache_store.latents.redis import RedisLatentStore
from cache_store.partition import PartitionKey
from cache_store.testing.samples import DIM, ENCODER, unit_vectors

TTL_S = 3_600
LATENT = LatentRecord(dtype="float32", shape=(64,), data=bytes(256))


def partition(tenant: str = "a", **changes: Any) -> PartitionKey:
    key = PartitionKey(
        tenant=tenant, model_id="tiny", model_revision="1", dtype="float32", quantisation="", scheduler="euler",
        shift=3.0, num_steps=50, guidance=5.0, width=64, height=64, num_frames=9, fps=8, negative_prompt="", loras=(),
        text_encoder_revision="1", embedder_revision="1", vae_revision="1",
    )  # fmt: skip
    return dataclasses.replace(key, **changes)


class Bench:
    """A cache with its stores and a clock moved by hand."""

    def __init__(
        self,
        *,
        num_sources: int = 1_000,
        entries: EntryStore | None = None,
        latents: LatentStore | None = None,
        lru: bool = False,
    ) -> None:
        self.now = 1_000.0
        self.entries = entries or MemoryEntryStore(ENCODER)
        self.latents = latents or MemoryLatentStore()
        self.put_latents("probe", "probe")
        self.capacity_bytes = num_sources * (self.stored_bytes("probe", "probe") + 50)
        self.latents.delete_tenant("probe")
        self.cache = ReuseCache(
            CacheConfig(capacity_bytes=self.capacity_bytes, ttl_s=TTL_S),
            entries=self.entries,
            latents=self.latents,
            policy=Lru() if lru else Lcbfu(),
            make_index=FaissFlatIndex,
            clock=lambda: self.now,
        )

    def put_latents(self, tenant: str, source_id: str, steps: tuple[int, ...] = (0, 5)) -> None:
        for step in steps:
            self.latents.put(LatentKey(tenant=tenant, source_id=source_id, step=step), LATENT)

    def stored_bytes(self, source_id: str, tenant: str = "a") -> int:
        return sum(self.latents.sizes(tenant, source_id).values())

    def admit(self, number: int, key: PartitionKey | None = None, *, source_id: str | None = None) -> Admission:
        key = key or partition()
        source_id = source_id or f"v{number}"
        self.put_latents(key.tenant, source_id)
        return self.cache.admit(candidate(number, key, source_id))

    def found(self, number: int, key: PartitionKey | None = None, count: int = 1) -> list[str]:
        return ids(self.cache.lookup(key or partition(), vector(number), count))


def vector(number: int) -> FloatArray:
    row: FloatArray = unit_vectors(1, seed=number)[0]
    return row


def candidate(number: int, key: PartitionKey, source_id: str) -> Candidate:
    return Candidate(partition=key, source_id=source_id, prompt=f"prompt {number}", seed=7, embedding=vector(number))


def ids(matches: list[Match]) -> list[str]:
    return [match.entry.source_id for match in matches]


def test_what_was_admitted_is_found_with_everything_about_it() -> None:
    bench = Bench()
    assert bench.admit(1) is Admission.ADMITTED
    (match,) = bench.cache.lookup(partition(), vector(1), 3)
    assert match.score == pytest.approx(1)
    assert (match.entry.prompt, match.entry.steps, match.entry.num_steps) == ("prompt 1", (0, 5), 50)
    assert (match.entry.num_bytes, match.entry.expires_at) == (bench.stored_bytes("v1"), 1_000 + TTL_S)
    assert bench.found(1, partition("other")) == []


@pytest.mark.parametrize("change", [{"model_revision": "2"}, {"num_steps": 4}, {"embedder_revision": "2"}])
def test_other_partitions_see_nothing(change: dict[str, Any]) -> None:
    bench = Bench()
    bench.admit(1)
    assert bench.found(1, partition(**change)) == []


def test_a_source_without_latents_is_not_admitted() -> None:
    bench = Bench()
    assert bench.cache.admit(candidate(1, partition(), "v1")) is Admission.NO_LATENTS
    assert bench.found(1) == []


def test_a_source_larger_than_the_cache_is_refused_and_removed() -> None:
    bench = Bench(num_sources=2)
    bench.admit(1)
    bench.put_latents("a", "big", tuple(range(50)))
    assert bench.cache.admit(candidate(2, partition(), "big")) is Admission.TOO_LARGE
    assert bench.latents.sizes("a", "big") == {}
    assert bench.found(1) == ["v1"]


def test_admitting_again_replaces() -> None:
    bench = Bench()
    bench.admit(1, source_id="v")
    bench.admit(2, source_id="v")
    assert bench.found(1, count=5) == ["v"]
    assert bench.cache.lookup(partition(), vector(1), 5)[0].entry.prompt == "prompt 2"
    assert bench.cache.stats().num_bytes == bench.stored_bytes("v")


def test_capacity_holds_and_victims_leave_no_trace() -> None:
    bench = Bench(num_sources=5)
    for number in range(12):
        bench.admit(number)
        bench.now += 1
        if number == 2:
            bench.cache.touch(EntryKey(tenant="a", source_id="v0"), steps_saved=30)
    stats = bench.cache.stats()
    assert (stats.entries, stats.evictions, stats.hits) == (5, 7, 1)
    assert stats.num_bytes <= bench.capacity_bytes
    kept = {record.source_id for record in bench.entries.scan()}
    assert kept == {"v0", "v8", "v9", "v10", "v11"}
    assert {f"v{n}" for n in range(12) if bench.latents.sizes("a", f"v{n}")} == kept
    assert set(bench.found(1, count=50)) == kept
    bench.cache._catalogue.check()


def test_lru_is_the_other_policy() -> None:
    bench = Bench(num_sources=2, lru=True)
    bench.admit(0)
    bench.now += 1
    bench.admit(1)
    bench.now += 1
    bench.cache.touch(EntryKey(tenant="a", source_id="v0"), steps_saved=0)
    bench.admit(2)
    assert set(bench.found(0, count=5)) == {"v0", "v2"}


def test_an_entry_expires_whatever_its_uses() -> None:
    bench = Bench()
    bench.admit(1)
    bench.now += TTL_S - 1
    bench.cache.touch(EntryKey(tenant="a", source_id="v1"), steps_saved=30)
    assert bench.found(1) == ["v1"]
    bench.now += 1
    assert bench.found(1) == []
    assert bench.cache.stats().entries == 0


def test_an_admission_removes_what_expired() -> None:
    bench = Bench()
    bench.admit(1)
    bench.now += TTL_S
    bench.admit(2)
    assert bench.latents.sizes("a", "v1") == {}
    assert bench.cache.stats().num_bytes == bench.stored_bytes("v2")


def test_what_was_deleted_in_the_store_is_not_found() -> None:
    bench = Bench()
    bench.admit(1)
    bench.admit(2)
    bench.entries.delete([EntryKey(tenant="a", source_id="v1")])
    assert bench.found(1, count=2) == ["v2"]
    bench.cache._catalogue.check()


def test_purge_of_a_source_and_of_a_tenant() -> None:
    bench = Bench()
    for number, tenant in ((1, "a"), (2, "a"), (1, "b")):
        bench.admit(number, partition(tenant))
    bench.put_latents("a", "unfinished")
    bench.cache.purge("a", "v1")
    assert bench.found(1, count=5) == ["v2"]
    assert bench.latents.sizes("a", "v1") == {}
    bench.cache.purge("a")
    assert bench.found(1, count=5) == []
    assert bench.latents.sizes("a", "unfinished") == {}
    assert bench.found(1, partition("b")) == ["v1"]
    assert {record.tenant for record in bench.entries.scan()} == {"b"}


def test_tenants_never_cross() -> None:
    """1,000 random operations of ten tenants with the same prompts; source names tell whose an answer is."""
    bench, rng = Bench(num_sources=150), random.Random(0)
    tenants = [f"tenant{n}" for n in range(10)]
    for turn in range(1_000):
        tenant, number = rng.choice(tenants), rng.randrange(20)
        if rng.random() < 0.4:
            bench.admit(number, partition(tenant), source_id=f"{tenant}-{turn}")
        elif rng.random() < 0.01:
            bench.cache.purge(tenant)
        else:
            for match in bench.cache.lookup(partition(tenant), vector(number), 3):
                assert match.entry.source_id.startswith(f"{tenant}-")
                assert match.entry.tenant == tenant
        bench.now += 1


def test_wrong_vectors_are_refused_by_name_and_change_nothing() -> None:
    bench = Bench()
    bench.put_latents("a", "v1")
    wide = dataclasses.replace(candidate(1, partition(), "v1"), embedding=np.ones(DIM + 1, np.float32))
    for call in (lambda: bench.cache.admit(wide), lambda: bench.cache.lookup(partition(), wide.embedding, 1)):
        with pytest.raises(ValueError, match=r"dimension 8.*\(9,\)"):
            call()
    long = dataclasses.replace(wide, embedding=2 * vector(1))
    with pytest.raises(ValueError, match="unit"):
        bench.cache.admit(long)
    assert list(bench.entries.scan()) == []


class FullEntryStore(MemoryEntryStore):
    """Refuses to count and to store."""

    def next_vector_id(self) -> int:
        raise StoreFullError("full")

    def touch(self, key: EntryKey, *, steps_saved: int, now: float) -> None:
        raise StoreFullError(f"no room to count {steps_saved} steps of {key} at {now}")


def test_a_full_store_is_a_refusal() -> None:
    bench = Bench(entries=FullEntryStore(ENCODER))
    assert bench.admit(1) is Admission.STORE_FULL
    assert bench.latents.sizes("a", "v1") == {}
    assert bench.cache.stats().refusals == 1
    bench.cache.touch(EntryKey(tenant="a", source_id="v1"), steps_saved=3)


def test_bad_bounds_are_refused() -> None:
    with pytest.raises(ValueError, match="ttl_s"):
        CacheConfig(capacity_bytes=1, ttl_s=0)


class CacheMachine(RuleBasedStateMachine):
    """Admissions, uses, purges, expiry and rebuilds in any order; the invariants hold after each."""

    numbers = st.integers(0, 15)

    @initialize()
    def start(self) -> None:
        self.bench = Bench(num_sources=4)

    @rule(number=numbers, tenant=st.sampled_from("ab"))
    def admit(self, number: int, tenant: str) -> None:
        assert self.bench.admit(number, partition(tenant)) is Admission.ADMITTED
        assert f"v{number}" in self.bench.found(number, partition(tenant), count=4)

    @rule(number=numbers, tenant=st.sampled_from("ab"), steps=st.integers(0, 50))
    def touch(self, number: int, tenant: str, steps: int) -> None:
        self.bench.cache.touch(EntryKey(tenant=tenant, source_id=f"v{number}"), steps_saved=steps)

    @rule(number=numbers, tenant=st.sampled_from("ab"))
    def purge(self, number: int, tenant: str) -> None:
        self.bench.cache.purge(tenant, f"v{number}")
        assert f"v{number}" not in self.bench.found(number, partition(tenant), count=4)

    @rule(seconds=st.sampled_from([1, TTL_S // 2]))
    def wait(self, seconds: int) -> None:
        self.bench.now += seconds

    @rule()
    def rebuild(self) -> None:
        self.bench.cache.rebuild()

    @invariant()
    def holds(self) -> None:
        if hasattr(self, "bench"):
            self.bench.cache._catalogue.check()
            assert self.bench.cache.stats().num_bytes <= self.bench.capacity_bytes
            for record in self.bench.entries.scan():
                assert tuple(self.bench.latents.sizes(record.tenant, record.source_id)) == record.steps


TestCacheMachine = CacheMachine.TestCase
TestCacheMachine.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)


def redis_bench(url: str, *, num_sources: int = 1_000) -> Bench:
    client = connect(url, timeout_s=BLOB_TIMEOUT_S)
    return Bench(
        num_sources=num_sources,
        entries=RedisEntryStore(client, encoder=ENCODER, ttl_s=TTL_S),
        latents=RedisLatentStore(client, ttl_s=TTL_S),
    )


def test_everything_survives_a_restart(tmp_path: pathlib.Path) -> None:
    """Server and process are gone and come back: same answers, same latents, same counts, new ids."""
    server = EmbeddedValkey(EmbeddedConfig(data_dir=tmp_path))
    server.start()
    bench = redis_bench(server.url)
    for number in range(40):
        bench.admit(number, partition("ab"[number % 2]))
    bench.cache.touch(EntryKey(tenant="a", source_id="v2"), steps_saved=25)
    queries = [(partition(tenant), vector(number)) for tenant in "ab" for number in range(100, 110)]
    before = [bench.cache.lookup(key, query, 5) for key, query in queries]
    server.stop()
    server.start()
    again = redis_bench(server.url)
    assert again.cache.rebuild() == 40
    assert [again.cache.lookup(key, query, 5) for key, query in queries] == before
    assert again.latents.get(LatentKey(tenant="a", source_id="v2", step=5)) == LATENT
    assert again.cache.lookup(partition("a"), vector(2), 1)[0].entry.steps_saved == 25
    assert again.cache.stats().num_bytes == bench.cache.stats().num_bytes
    assert again.admit(50) is Admission.ADMITTED
    smaller = redis_bench(server.url, num_sources=10)
    assert smaller.cache.rebuild() == 10
    server.stop()


def test_an_emptied_store_does_not_mix_up_ids(valkey_url: str) -> None:
    """Vector ids begin anew after a flush; what was held in memory must not answer under them."""
    bench, tenant = redis_bench(valkey_url), str(uuid.uuid4())
    bench.admit(1, partition(tenant))
    first = bench.cache._catalogue.records()[0].vector_id
    bench.entries.delete([EntryKey(tenant=tenant, source_id="v1")])
    connect(valkey_url, timeout_s=5).set(VECTOR_ID, first - 1, ex=60)
    bench.admit(2, partition(tenant))
    assert bench.found(1, partition(tenant), count=5) == ["v2"]
    bench.cache.purge(tenant)
