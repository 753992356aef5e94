"""The policies keep what saves most per byte, or what was used last, and give new entries their chance."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_store.contracts import EntryRecord
from cache_store.eviction import EvictionPolicy, Lcbfu, Lru
from cache_store.testing.samples import some_entry


def entry(number: int, *, num_bytes: int = 100, steps_saved: int = 0, used: float | None = None) -> EntryRecord:
    base = some_entry(source_id=f"v{number}", seed=number, num_bytes=num_bytes)
    used_at = number if used is None else used
    return dataclasses.replace(base, created_at=float(number), last_used_at=float(used_at), steps_saved=steps_saved)


def ids(records: list[EntryRecord]) -> list[str]:
    return [record.source_id for record in records]


def test_lcbfu_takes_the_least_saved_per_byte() -> None:
    records = [
        entry(0, steps_saved=100),
        entry(1, steps_saved=40),
        entry(2, steps_saved=60, num_bytes=300),  # saved more than v1, but takes three times the room
        entry(3),
    ]
    assert ids(Lcbfu().victims(records, bytes_to_free=300)) == ["v2"]
    assert ids(Lcbfu().victims(records, bytes_to_free=301)) == ["v2", "v1"]


def test_lcbfu_takes_the_oldest_use_among_equals() -> None:
    records = [entry(0, used=50), entry(1), entry(2), entry(3)]
    assert ids(Lcbfu().victims(records, bytes_to_free=300)) == ["v1", "v2", "v0"]


def test_lcbfu_spares_the_newest_tenth_until_nothing_else_is_left() -> None:
    records = [entry(number, steps_saved=1_000 if number < 16 else 0) for number in range(20)]
    assert ids(Lcbfu().victims(records, bytes_to_free=300)) == ["v16", "v17", "v0"]
    assert ids(Lcbfu().victims(records, bytes_to_free=2_000))[-2:] == ["v18", "v19"]


def test_a_stream_of_new_entries_does_not_evict_each_other_at_once() -> None:
    """With a cache full of useful entries each new one still lives until a tenth of the cache came after it."""
    records = [entry(number, steps_saved=10) for number in range(20)]
    lifetime: dict[str, int] = {}
    for number in range(20, 40):
        (victim,) = Lcbfu().victims(records, bytes_to_free=100)
        if victim.created_at >= 20:
            lifetime[victim.source_id] = number - int(victim.created_at)
        records = [record for record in records if record is not victim] + [entry(number)]
    assert lifetime
    assert min(lifetime.values()) >= 2


def test_lru_takes_the_oldest_use() -> None:
    records = [entry(0, used=9), entry(1), entry(2, used=8)]
    assert ids(Lru().victims(records, bytes_to_free=101)) == ["v1", "v2"]


@pytest.mark.parametrize("policy", [Lcbfu(), Lru()])
@given(sizes=st.lists(st.integers(0, 500), max_size=30), wanted=st.integers(-5, 20_000))
def test_victims_free_enough_and_no_more_than_needed(policy: EvictionPolicy, sizes: list[int], wanted: int) -> None:
    records = [entry(number, num_bytes=size, steps_saved=size % 7) for number, size in enumerate(sizes)]
    victims = policy.victims(records, bytes_to_free=wanted)
    freed = sum(victim.num_bytes for victim in victims)
    assert len({victim.source_id for victim in victims}) == len(victims)
    assert freed >= min(wanted, sum(sizes))
    if victims:
        assert freed - victims[-1].num_bytes < max(wanted, 1)
