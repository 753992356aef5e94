"""Blocking work in a thread, its events on the event loop: how a replica stays answerable while it computes.

Knows nothing about what the work is.
"""

import asyncio
import concurrent.futures
import contextlib
import threading
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

Event = TypeVar("Event")
Work = Callable[[Callable[[Event], None], Callable[[], bool]], None]
"""Takes `emit`, to report an event, and `should_stop`, to ask between two steps whether anybody still waits."""


async def stream_events(
    executor: concurrent.futures.ThreadPoolExecutor, work: Work[Event]
) -> AsyncGenerator[Event, None]:
    """Yield what the work emits and raise what it raises; closing or cancelling the iterator asks it to stop."""
    loop, stop = asyncio.get_running_loop(), threading.Event()
    events: asyncio.Queue[Event | None] = asyncio.Queue()

    def emit(event: Event | None) -> None:
        with contextlib.suppress(RuntimeError):  # the loop is gone: nobody waits for the event
            loop.call_soon_threadsafe(events.put_nowait, event)

    running = loop.run_in_executor(executor, work, emit, stop.is_set)
    running.add_done_callback(lambda _: events.put_nowait(None))
    running.add_done_callback(lambda done: done.cancelled() or done.exception())  # seen, should nobody await it
    try:
        while (event := await events.get()) is not None:
            yield event
        await running
    finally:
        stop.set()
