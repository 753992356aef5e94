"""Which entries leave when the cache is full: pure functions of the records, the same after a restart.

Follows NIRVANA's least computationally beneficial and frequently used; LRU is the baseline. Knows no store.
"""

from collections.abc import Collection, Iterable
from typing import Final, Protocol

from cache_store.contracts import EntryRecord

NEW_SHARE: Final = 0.1
"""Share of the stored bytes, newest first, that Lcbfu spares."""


class EvictionPolicy(Protocol):
    """Decides who goes."""

    def victims(self, records: Collection[EntryRecord], *, bytes_to_free: int) -> list[EntryRecord]:
        """Return the entries to evict, first to go first, whose bytes reach `bytes_to_free`; all if they cannot."""


class Lcbfu:
    """Evict what saved least per byte: the sum over uses of the K steps each saved, oldest use first among equals.

    NIRVANA scores every stored state by its uses times its K and its states are all of one size. Here one entry holds
    all states of a source, of any size, so its score is the sum of theirs, divided by its bytes.
    Every entry starts with nothing saved, so by the score alone the cache would throw away whatever came last and keep
    its first inhabitants for ever. The newest tenth of the bytes, and always the newest entry, is therefore spared: an
    entry is judged only after a tenth of the cache has been filled after it. Entries that were popular once leave at
    their expiry, which uses do not postpone.
    """

    def victims(self, records: Collection[EntryRecord], *, bytes_to_free: int) -> list[EntryRecord]:
        """Take judged entries by score, then, only if these do not suffice, the spared ones, oldest first."""
        judged, spared = _split_newest(records)
        judged.sort(key=lambda record: (record.steps_saved / max(record.num_bytes, 1), record.last_used_at))
        return _take([*judged, *spared], bytes_to_free)


class Lru:
    """Evict what was used longest ago; an entry never used counts from its creation."""

    def victims(self, records: Collection[EntryRecord], *, bytes_to_free: int) -> list[EntryRecord]:
        """Take entries by last use."""
        return _take(sorted(records, key=lambda record: record.last_used_at), bytes_to_free)


def _split_newest(records: Collection[EntryRecord]) -> tuple[list[EntryRecord], list[EntryRecord]]:
    """Part the records into older ones and the newest NEW_SHARE of their bytes, both oldest first."""
    by_age = sorted(records, key=lambda record: (record.created_at, record.vector_id))
    allowance = NEW_SHARE * sum(record.num_bytes for record in by_age)
    split = len(by_age)
    while split and (split == len(by_age) or by_age[split - 1].num_bytes <= allowance):
        split -= 1
        allowance -= by_age[split].num_bytes
    return by_age[:split], by_age[split:]


def _take(ordered: Iterable[EntryRecord], bytes_to_free: int) -> list[EntryRecord]:
    taken: list[EntryRecord] = []
    freed = 0
    for record in ordered:
        if freed >= bytes_to_free:
            break
        taken.append(record)
        freed += record.num_bytes
    return taken
