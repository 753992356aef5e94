"""What an operator wants to know of live streams while they play: waits, underruns, work thrown away.

Collected as the machines decide and taken away from time to time; nothing is kept of a stream that has ended.
"""

import dataclasses
from collections.abc import Iterable

from reprise.speculative.events import Applied, Command, Discard, Event, Start, Supersede, Underrun, Update


@dataclasses.dataclass(kw_only=True, slots=True)
class StreamFigures:
    """Of all streams of a group, since they were last taken."""

    starts_s: list[float] = dataclasses.field(default_factory=list)
    """From a stream's first prompt until its first group played."""
    changes_s: list[float] = dataclasses.field(default_factory=list)
    """L: from a changed prompt to the first group shown that was made for it, or for a newer one."""
    num_underruns: int = 0
    num_discarded: int = 0
    """Sampled groups that were replaced or came too late."""

    def take(self) -> "StreamFigures":
        """Give what has been collected, and begin anew."""
        taken = dataclasses.replace(self)
        self.starts_s, self.changes_s, self.num_underruns, self.num_discarded = [], [], 0, 0
        return taken


class StreamWatch:
    """Follows one stream and adds to its group's figures."""

    def __init__(self, figures: StreamFigures) -> None:
        self._figures = figures
        self._asked: dict[int, float] = {}
        self._first: int | None = None

    def see(self, event: Event, commands: Iterable[Command], now: float) -> None:
        """Take one step of the machine in."""
        if isinstance(event, Update):
            self._first = event.version if self._first is None else self._first
            self._asked[event.version] = now
        for command in commands:
            match command:
                case Start():
                    self._figures.starts_s.append(now - min(self._asked.values(), default=now))
                case Applied(version=version):
                    if version != self._first and version in self._asked:
                        self._figures.changes_s.append(now - self._asked[version])
                    self._asked.pop(version, None)
                case Supersede(version=version):
                    self._asked.pop(version, None)
                case Underrun():
                    self._figures.num_underruns += 1
                case Discard(positions=positions):
                    self._figures.num_discarded += len(positions)
