"""Where the KV of each forward goes, and when it may be forgotten; read off the list of forwards.

Whatever the schedule, a worker keeps an entry from when it is published until the worker's last forward that reads
it: memory is bounded by the windows, not by the video's length. Standard library only; knows nothing about tensors.
"""

import dataclasses
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from reprise.flashforward.schedule import Forward, KvSpan, Source


class KvKey(NamedTuple):
    """One entry of KV: that of one chunk, or of one anchor, at one noise level."""

    source: Source
    stage: int
    number: int


@dataclasses.dataclass(frozen=True, slots=True)
class Routed:
    """A forward with what becomes of KV after it."""

    forward: Forward
    keeps: Mapping[int, tuple[KvKey, ...]]
    """Workers that read some of what it publishes, and which entries."""
    forgets: tuple[KvKey, ...]
    """Entries that its worker reads for the last time."""
    is_last: bool
    """No later forward takes up its latent."""


def keys_of(span: KvSpan) -> list[KvKey]:
    """Give the entries of a span, in order."""
    return [KvKey(span.source, span.stage, index) for index in span.indices]


def route(forwards: Sequence[Forward]) -> list[Routed]:
    """Go through a list once and find the readers of all KV."""
    last_read: dict[int, dict[KvKey, int]] = defaultdict(dict)
    for place, forward in enumerate(forwards):
        last_read[forward.worker].update((key, place) for span in forward.reads for key in keys_of(span))
    last_of = {(forward.source, forward.unit): place for place, forward in enumerate(forwards)}
    forgotten: dict[int, list[KvKey]] = defaultdict(list)
    for reads in last_read.values():
        for key, place in reads.items():
            forgotten[place].append(key)
    routed = []
    for place, forward in enumerate(forwards):
        published = [] if forward.publishes is None else keys_of(forward.publishes)
        keeps = {
            worker: kept
            for worker, reads in sorted(last_read.items())
            if (kept := tuple(key for key in published if key in reads))
        }
        is_last = last_of[forward.source, forward.unit] == place
        routed.append(Routed(forward, keeps, tuple(forgotten[place]), is_last))
    return routed
