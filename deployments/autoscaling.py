"""How many replicas a path should have: from the work that waits, by when it is due, and what was needed before.

Pure: figures in, a number out; who reads the figures and who starts replicas is elsewhere.
"""

import collections
import dataclasses
import itertools
import math
from typing import Final

from deployments.api.queue_load import LaneLoad

TARGET_BUSY: Final = 0.9
"""Share of the time that replicas are meant to work; were it all, a queue could only grow."""
TARGET_LOAD: Final = 0.7
"""Of a group of streams: what is left lets the next one begin while another group starts."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ScalingBounds:
    """What an operator allows and aims at."""

    min_replicas: int
    max_replicas: int
    target_wait_s: float = 60.0
    """Work is to be done within so long: this many seconds of predicted work are one replica's."""
    start_s: float = 60.0
    """What a new replica takes until it works; what is due sooner cannot be helped by one."""
    down_after_s: float = 300.0
    """Replicas go only when fewer would have been enough all this time."""

    def __post_init__(self) -> None:
        if not 0 <= self.min_replicas <= self.max_replicas or self.max_replicas < 1:
            raise ValueError(
                f"expected 0 <= min_replicas <= max_replicas and 1 <= max_replicas, got {self.min_replicas} "
                f"and {self.max_replicas}"
            )
        for name in ("target_wait_s", "start_s", "down_after_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0, got {getattr(self, name)}")


def replicas_for(load: LaneLoad, bounds: ScalingBounds) -> int:
    """Give the replicas that do a queue's work within the target and by its deadlines, within the bounds.

    Never more than there are jobs, since one job cannot be shared out. What is due before a new replica could help is
    counted as if it were due then: the others can be relieved of the rest.
    """
    jobs = load.waiting + load.running
    if not jobs:
        return bounds.min_replicas
    needed, work_s = load.work_s / bounds.target_wait_s, 0.0
    for due in load.due:
        work_s += due.work_s
        needed = max(needed, work_s / max(due.in_s, bounds.start_s))
    return max(bounds.min_replicas, min(max(1, math.ceil(needed)), jobs, bounds.max_replicas))


def groups_for(load: float, bounds: ScalingBounds) -> int:
    """Give the groups of live streams for a load, in groups that streams fill, with room for one stream more."""
    return max(bounds.min_replicas, min(math.ceil(load / TARGET_LOAD), bounds.max_replicas))


@dataclasses.dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    needed: int
    running: int
    jobs: int


class Scaler:
    """Follows what a queue needs up at once, and down only after it has been less for a while.

    A queue that is kept short looks as if it needed nothing, whoever keeps it so: hence what was busy on average over
    the same while stays too. So a load that stays changes nothing.
    """

    def __init__(self, bounds: ScalingBounds) -> None:
        self._bounds = bounds
        self._readings: collections.deque[_Reading] = collections.deque()

    def decide(self, now: float, load: LaneLoad, *, current: int) -> int:
        """Give the replicas to have; `now` never falls. What runs at first counts as needed, until more is known."""
        bounds, readings = self._bounds, self._readings
        needed = replicas_for(load, bounds)
        if not readings:
            needed = max(needed, min(current, bounds.max_replicas))
        readings.append(_Reading(now, needed, load.running, load.waiting + load.running))
        while readings[0].at < now - bounds.down_after_s:
            readings.popleft()
        busy_s = sum(one.running * (next_.at - one.at) for one, next_ in itertools.pairwise(readings))
        busy = math.ceil(busy_s / bounds.down_after_s / TARGET_BUSY)
        most_jobs = max(reading.jobs for reading in readings)
        kept = min(current, busy, most_jobs, bounds.max_replicas)
        return max(kept, *(reading.needed for reading in readings))
