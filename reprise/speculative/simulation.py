"""A stream in simulated time: a player, one worker and the viewer's changes around the real controller.

What a call costs is the caller's to say, so the same code gives the theory's averages and, with measured times, what
a machine would do. Standard library only.
"""

import dataclasses
import heapq
from collections.abc import Callable, Iterator, Sequence

from reprise.speculative.events import Event, Fail, Finish, Launch, Ready, Start, Tick, Update, Wake
from reprise.speculative.log import Step
from reprise.speculative.machine import MachineConfig, StreamMachine


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """What one sampling call takes, in seconds from its launch."""

    ready_s: Sequence[float]
    """Until each of its groups can be delivered; fewer than it has where it fails."""
    slot_s: float
    """Until the worker is free, or found to have failed."""


def same_each_time(compute_s: float) -> Callable[[Launch], Call]:
    """Let all groups of every call be ready after the same time."""
    return lambda launch: Call(ready_s=[compute_s] * launch.num_groups, slot_s=compute_s)


def simulate(
    config: MachineConfig, changes: Sequence[float], *, until_s: float, call: Callable[[Launch], Call]
) -> Iterator[Step]:
    """Play a stream from its start; `changes` and `until_s` count from the first picture, changes rising.

    At one time, results come before changes and these before what is due, as they would by a grain of luck.
    """
    machine = StreamMachine(config)
    queue: list[tuple[float, int, int, Event]] = [(0.0, 1, 0, Update(0))]
    pushed = 0
    end = float("inf")

    def push(at: float, rank: int, event: Event) -> None:
        nonlocal pushed
        pushed += 1
        heapq.heappush(queue, (at, rank, pushed, event))

    while True:
        due = [(at, rank, 0, event) for at, rank, event in _clock_events(machine)]
        head = min([*queue[:1], *due])
        now, event = head[0], head[3]
        if now >= end:
            return
        if queue and head is queue[0]:
            heapq.heappop(queue)
        step = Step(now, event, tuple(machine.feed(event, now)))
        yield step
        for command in step.commands:
            if isinstance(command, Launch):
                made = call(command)
                for ready_s in made.ready_s:
                    push(now + ready_s, 0, Ready(command.job))
                is_whole = len(made.ready_s) == command.num_groups
                push(now + made.slot_s, 0, Finish(command.job) if is_whole else Fail(command.job))
            elif isinstance(command, Start):
                end = now + until_s
                for number, change in enumerate(changes, 1):
                    push(now + change, 1, Update(number))


def _clock_events(machine: StreamMachine) -> Iterator[tuple[float, int, Event]]:
    if machine.tick_at is not None:
        yield machine.tick_at, 2, Tick()
    if machine.wake_at is not None:
        yield machine.wake_at, 3, Wake()
