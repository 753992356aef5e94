"""Tell work that goes on from work that is stuck, for a replica's health check.

Work runs in a thread, so a health check is answered even while that thread hangs for ever; only the lack of progress
tells.
"""

import contextlib
import time
from collections.abc import Callable, Iterator


class StallWatch:
    """Knows when the work under way was last seen to move."""

    def __init__(self, limit_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit_s, self._clock = limit_s, clock
        self._num_running = 0
        self._moved_at = 0.0

    @contextlib.contextmanager
    def working(self) -> Iterator[None]:
        """Be told of work for as long as it runs."""
        self.moved()
        self._num_running += 1
        try:
            yield
        finally:
            self._num_running -= 1

    def moved(self) -> None:
        """Note that the work goes on."""
        self._moved_at = self._clock()

    def check(self) -> None:
        """Raise when work runs and has not moved for longer than the limit."""
        stood_s = self._clock() - self._moved_at
        if self._num_running and stood_s > self._limit_s:
            raise RuntimeError(f"no step has ended for {stood_s:.0f} s, more than {self._limit_s:g}")
