"""The policies keep what saves most per byte, or what was used last, and give new entries their chance."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cache_store.contracts import EntryRecord
from cache_store.entries.memory import MemoryEntryStore
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


def used(number: int, *, uses: int, k: int, num_bytes: int = 100) -> EntryRecord:
    """An entry that `uses` requests started from at step k, each time through the store's own count."""
    record = entry(number, num_bytes=num_bytes)
    store = MemoryEntryStore(record.encoder)
    store.put(record)
    for _ in range(uses):
        store.touch(record.key, steps_saved=k, now=record.last_used_at)
    (counted,) = store.get_many([record.key])
    assert counted is not None
    return counted


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((3, 5), (1, 20)),  # used more often, for less: frequency alone would keep it
        ((1, 25), (6, 5)),  # saved most at once: K alone would keep it
        ((0, 5), (1, 5)),
        ((4, 5), (4, 10)),
        ((2, 10), (3, 10)),
    ],
)
def test_lcbfu_scores_uses_times_k_as_nirvana_does(first: tuple[int, int], second: tuple[int, int]) -> None:
    worse, better = (used(number, uses=uses, k=k) for number, (uses, k) in enumerate((first, second)))
    newest = entry(2)
    for older, newer in ((0, 1), (1, 0)):  # whichever of them is older
        records = [
            dataclasses.replace(worse, created_at=float(older), last_used_at=5.0),
            dataclasses.replace(better, created_at=float(newer), last_used_at=5.0),
            newest,
        ]
        assert ids(Lcbfu().victims(records, bytes_to_free=1)) == ["v0"]


@given(counts=st.lists(st.tuples(st.integers(0, 9), st.sampled_from((5, 10, 15, 20, 25))), min_size=2, max_size=12))
def test_lcbfu_leaves_in_order_of_the_score(counts: list[tuple[int, int]]) -> None:
    records = [entry(number, steps_saved=uses * k) for number, (uses, k) in enumerate(counts)]
    gone = Lcbfu().victims([*records, entry(len(counts))], bytes_to_free=100 * len(counts))
    judged = [uses * k for uses, k in counts]
    assert [record.steps_saved for record in gone] == sorted(judged)


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
