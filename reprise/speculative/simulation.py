"""Streams in simulated time: players, one worker and the viewers' changes around the real controller.

What a call costs is the caller's to say, so the same code gives the theory's averages and, with measured times, what
a machine would do. Standard library only.
"""

import dataclasses
import heapq
import itertools
import math
from collections.abc import Callable, Iterator, Sequence

from reprise.speculative.estimator import crowd_of
from reprise.speculative.events import Command, Crowd, Event, Fail, Finish, Launch, Ready, Start, Tick, Update, Wake
from reprise.speculative.log import Step
from reprise.speculative.machine import MachineConfig, StreamMachine


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """What one sampling call takes, in seconds from when the worker begins it."""

    ready_s: Sequence[float]
    """Until each of its groups can be delivered; fewer than it has where it fails."""
    slot_s: float
    """Until the worker is free, or found to have failed."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """What one viewer does."""

    changes: Sequence[float]
    """When the prompt changes, in seconds from the first picture, rising."""
    begin_s: float = 0.0
    """When the viewer comes."""


@dataclasses.dataclass(slots=True)
class _Player:
    machine: StreamMachine
    trace: Trace
    steps: list[Step] = dataclasses.field(default_factory=list)
    end: float = math.inf


def same_each_time(compute_s: float) -> Callable[[Launch], Call]:
    """Let all groups of every call be ready after the same time."""
    return lambda launch: Call(ready_s=[compute_s] * launch.num_groups, slot_s=compute_s)


def simulate(
    config: MachineConfig, changes: Sequence[float], *, until_s: float, call: Callable[[Launch], Call]
) -> list[Step]:
    """Play one stream from its start until so long after its first picture."""
    (steps,) = simulate_group(config, [Trace(changes=changes)], until_s=until_s, call=call)
    return steps


def simulate_group(
    config: MachineConfig, traces: Sequence[Trace], *, until_s: float, call: Callable[[Launch], Call]
) -> list[list[Step]]:
    """Play streams that share one worker, which takes the call whose first group is due first.

    At one time, results come before changes and these before what is due, as they would by a grain of luck.
    """
    group = _Group(config, traces, until_s, call)
    group.run()
    return [player.steps for player in group.players]


class _Group:
    def __init__(
        self, config: MachineConfig, traces: Sequence[Trace], until_s: float, call: Callable[[Launch], Call]
    ) -> None:
        self.players = [_Player(StreamMachine(config), trace) for trace in traces]
        self._until_s, self._call = until_s, call
        self._queue: list[tuple[float, int, int, int, Event]] = []
        """Time, rank, order, player and event."""
        self._waiting: list[tuple[float, int, int, Launch]] = []
        """Deadline, order, player and call."""
        self._free_at = 0.0
        self._order = itertools.count()
        for number, player in enumerate(self.players):
            self._push(player.trace.begin_s, 1, number, Crowd(crowd_of(len(traces), 1)))
            self._push(player.trace.begin_s, 1, number, Update(0))

    def run(self) -> None:
        while (head := self._next()) is not None:
            now, number, event = head
            player = self.players[number]
            step = Step(now, event, tuple(player.machine.feed(event, now)))
            player.steps.append(step)
            for command in step.commands:
                self._carry_out(command, now, number)
            self._begin_calls(now)

    def _push(self, at: float, rank: int, number: int, event: Event) -> None:
        heapq.heappush(self._queue, (at, rank, next(self._order), number, event))

    def _next(self) -> tuple[float, int, Event] | None:
        """Take the next event of a stream that has not come to its end."""
        while True:
            heads = [(at, rank, number, event) for number in self._playing() for at, rank, event in self._due(number)]
            if self._queue:
                at, rank, _, number, event = self._queue[0]
                heads.append((at, rank, number, event))
            if not heads:
                return None
            head = min(heads, key=lambda one: one[:2])
            if self._queue and head[3] is self._queue[0][4]:
                heapq.heappop(self._queue)
            if head[0] < self.players[head[2]].end:
                return head[0], head[2], head[3]
            self._begin_calls(head[0])  # the stream is over, but its call has left the worker

    def _playing(self) -> Iterator[int]:
        for number, player in enumerate(self.players):
            if player.machine.registers.now < player.end:
                yield number

    def _due(self, number: int) -> Iterator[tuple[float, int, Event]]:
        """Give what the clock brings a stream."""
        player = self.players[number]
        for at, rank, event in ((player.machine.tick_at, 2, Tick()), (player.machine.wake_at, 3, Wake())):
            if at is not None and at < player.end:
                yield at, rank, event

    def _carry_out(self, command: Command, now: float, number: int) -> None:
        player = self.players[number]
        if isinstance(command, Launch):
            due = math.inf if command.deadline is None else command.deadline
            heapq.heappush(self._waiting, (due, next(self._order), number, command))
        elif isinstance(command, Start):
            player.end = now + self._until_s
            for version, change in enumerate(player.trace.changes, 1):
                self._push(now + change, 1, number, Update(version))

    def _begin_calls(self, now: float) -> None:
        while self._waiting and self._free_at <= now:
            _, _, number, launch = heapq.heappop(self._waiting)
            made = self._call(launch)
            for ready_s in made.ready_s:
                self._push(now + ready_s, 0, number, Ready(launch.job))
            is_whole = len(made.ready_s) == launch.num_groups
            self._push(now + made.slot_s, 0, number, Finish(launch.job) if is_whole else Fail(launch.job))
            self._free_at = now + made.slot_s
