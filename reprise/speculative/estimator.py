"""How long a sampling call will take, estimated at run time from the last calls, with a stated margin (appendix C).

Two times are kept apart: until the first group can be delivered, and until the call has left the worker. Standard
library only; knows nothing about what a call computes.
"""

import dataclasses
import math
from collections import deque
from typing import Final


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class EstimatorConfig:
    """How careful an estimate is."""

    initial_s: float
    """Before anything is measured, such as the time of the warm-up."""
    window: int = 16
    """Calls that count."""
    quantile: float = 0.9
    """Of the calls that count, how many a guess without margin covers."""
    margin: float = 0.1
    """Added, as a share of the guess."""

    def __post_init__(self) -> None:
        if self.initial_s <= 0 or self.window < 1 or not 0 < self.quantile <= 1 or self.margin < 0:
            raise ValueError(
                "expected initial_s > 0, window >= 1, 0 < quantile <= 1 and margin >= 0, got "
                f"{self.initial_s}, {self.window}, {self.quantile}, {self.margin}"
            )


class ComputeEstimator:
    """Estimates C; deterministic in what it observed."""

    def __init__(self, config: EstimatorConfig) -> None:
        self._config = config
        self._first: deque[float] = deque(maxlen=config.window)
        self._whole: deque[float] = deque(maxlen=config.window)

    def observe(self, *, first_s: float, whole_s: float) -> None:
        """Take a call that ended well: seconds until its first group was ready, and until its slot was free."""
        self._first.append(first_s)
        self._whole.append(whole_s)

    @property
    def first_s(self) -> float:
        """Estimate the seconds until the first group is ready."""
        return self._estimate(self._first)

    @property
    def lead_s(self) -> float:
        """Give how long before the end of what is predicted a call must begin: no slower call than was seen may stall.

        Longer than `first_s`, since here being early costs nothing and being late a stall; so the value from before
        anything was measured counts too.
        """
        return max(self._config.initial_s, *self._first) * (1 + self._config.margin) if self._first else self.first_s

    @property
    def whole_s(self) -> float:
        """Estimate the seconds until the slot is free again."""
        return self._estimate(self._whole)

    def _estimate(self, observed: deque[float]) -> float:
        if not observed:
            return self._config.initial_s * (1 + self._config.margin)
        rank = math.ceil(self._config.quantile * len(observed)) - 1
        return sorted(observed)[rank] * (1 + self._config.margin)


MOST_WAITED_FOR: Final = 3
"""Calls of others that a stream leaves room for, in however large a crowd: rarely do more come at once."""


def crowd_of(num_streams: int, num_workers: int) -> float:
    """Give for how many calls of others a stream of a group may have to wait."""
    return min(num_streams - 1, MOST_WAITED_FOR) / num_workers
