"""An event loop whose clock jumps to the next thing that is due, so that minutes of waiting take no time."""

import asyncio
import selectors
from collections.abc import Coroutine
from typing import Any, TypeVar

Result = TypeVar("Result")


class _JumpingSelector(selectors.DefaultSelector):
    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        assert timeout is not None, "everything waits and nothing is due: a deadlock"
        found = super().select(0)
        if not found:
            self.now += max(0.0, timeout)
        return found


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """Needs that nothing waits for another thread or a socket."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)
        self._clock_resolution = 1e-9

    def time(self) -> float:
        return self._jumping.now


def run_virtually(main: Coroutine[Any, Any, Result]) -> Result:
    """As asyncio.run, in virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
