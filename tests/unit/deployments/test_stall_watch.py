"""Work that goes on and work that is stuck, on a clock of the test's own."""

import pytest

from deployments.stall_watch import StallWatch
from tests.unit.deployments.test_guard import Clock


def test_only_work_that_stands_still_is_a_stall() -> None:
    clock = Clock()
    watch = StallWatch(10.0, clock)
    clock.now = 100.0
    watch.check()
    with watch.working():
        for _ in range(10):
            clock.now += 9.0
            watch.check()
            watch.moved()
        clock.now += 10.5
        with pytest.raises(RuntimeError, match="no step has ended for 10 s, more than 10"):
            watch.check()
        watch.moved()
        watch.check()
    clock.now += 1000.0
    watch.check()
    with watch.working():
        watch.check()
