"""What a list of forwards costs, found by going through it with given times (FlashForward, A.2.2).

Each worker runs its forwards in the order of the list, each as soon as the KV and the latent it needs are there.
Handing over takes no time. Standard library only; knows nothing about how schedules are made.
"""

import dataclasses
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Final

from reprise.flashforward.schedule import Forward, Role, Source

UNIT_COSTS: Final[Mapping[Role, float]] = dict.fromkeys(Role, 1.0)
"""Every forward takes one unit of time, as in the paper's model."""


class OutOfOrder(ValueError):
    """A list has a forward before one that it needs."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class WorkerTimes:
    """What one worker did."""

    busy: float
    wait: float
    """Idle before its last forward; the time after that is neither."""
    peak_kv: int
    """Most entries of KV that it had to hold at once."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Walk:
    """A list of forwards, gone through. Times are in the unit of the costs."""

    forwards: Mapping[Role, int]
    rounds: int
    makespan: float
    first_delivery: float
    """When the first latents were finished."""
    latents: int
    """Finished latents."""
    workers: tuple[WorkerTimes, ...]
    """By number; empty for a list without forwards."""
    peak_kv: int
    """Most entries of KV at once, over all workers. An entry is one chunk's or one anchor's KV in one worker's memory,
    from when it is published until the worker's last forward that reads it has ended; one that is never read has none.
    """

    @property
    def num_forwards(self) -> int:
        """Count the forwards of all roles."""
        return sum(self.forwards.values())


def walk(forwards: Iterable[Forward], costs: Mapping[Role, float] | Callable[[Forward], float] = UNIT_COSTS) -> Walk:
    """Go through a list once. `costs` gives the time, at least 0, of a forward: by its role, or of each.

    Raises:
        OutOfOrder: a forward reads KV, or goes on from a latent, that nothing before it made.

    """
    counts: Counter[Role] = Counter()
    free: dict[int, float] = defaultdict(float)  # per worker: end of its last forward
    busy: dict[int, float] = defaultdict(float)
    advanced: dict[tuple[Source, int], tuple[int, float]] = {}  # stage that a latent may enter next, and since when
    entered: list[float] = []  # end of each chunk's first stage
    published: dict[tuple[Source, int], dict[int, float]] = defaultdict(dict)
    last_read: dict[tuple[int, Source, int], dict[int, float]] = defaultdict(dict)
    rounds = latents = 0
    first_delivery = 0.0
    for forward in forwards:
        ready = [free[forward.worker]]
        latent = (forward.source, forward.unit)
        if forward.stage > 0:
            stage, since = advanced.get(latent, (0, 0.0))
            if stage != forward.stage:
                raise OutOfOrder(f"{forward} goes on from stage {forward.stage}, its latent stands at {stage}")
            ready.append(since)
        if forward.after_chunk is not None:
            if forward.after_chunk >= len(entered):
                raise OutOfOrder(f"{forward} waits for a chunk that has not begun")
            ready.append(entered[forward.after_chunk])
        for span in forward.reads:
            try:
                ready.extend(map(published[span.source, span.stage].__getitem__, span.indices))
            except KeyError as missing:
                raise OutOfOrder(f"{forward} reads KV of {span.source} {missing} before it is published") from None
        cost = costs(forward) if callable(costs) else costs[forward.role]
        end = max(ready) + cost
        for span in forward.reads:
            last_read[forward.worker, span.source, span.stage].update(dict.fromkeys(span.indices, end))
        if forward.publishes is not None:
            source, stage, indices = forward.publishes
            published[source, stage].update(dict.fromkeys(indices, end))
        if forward.advances:
            advanced[latent] = (forward.stage + 1, end)
            if forward.role is Role.RENDERER and forward.stage == 0:
                entered.append(end)
        if forward.delivers is not None:
            first_delivery = first_delivery if latents else end
            latents += len(forward.delivers)
        counts[forward.role] += 1
        rounds = max(rounds, forward.round + 1)
        free[forward.worker] = end
        busy[forward.worker] += cost
    peaks, peak = _peaks(published, last_read)
    return Walk(
        forwards=dict(counts),
        rounds=rounds,
        makespan=max(free.values(), default=0.0),
        first_delivery=first_delivery,
        latents=latents,
        workers=tuple(
            WorkerTimes(busy=busy[worker], wait=free[worker] - busy[worker], peak_kv=peaks[worker])
            for worker in sorted(free)
        ),
        peak_kv=peak,
    )


def _peaks(
    published: Mapping[tuple[Source, int], Mapping[int, float]],
    last_read: Mapping[tuple[int, Source, int], Mapping[int, float]],
) -> tuple[Counter[int], int]:
    """Give the most entries at once, per worker and over all; what ends as another begins makes room for it."""
    changes = []
    for (worker, source, stage), ends in last_read.items():
        begins = published[source, stage]
        for index, end in ends.items():
            changes += [(begins[index], 1, worker), (end, -1, worker)]
    changes.sort()
    held: Counter[int] = Counter()
    peaks: Counter[int] = Counter()
    total = peak = 0
    for _, change, worker in changes:
        held[worker] += change
        total += change
        peaks[worker] = max(peaks[worker], held[worker])
        peak = max(peak, total)
    return peaks, peak
