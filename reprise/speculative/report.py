"""What a viewer and an operator saw of a stream, read from its steps: responses, stalls, work done and discarded.

The same for simulated and for real streams. Standard library only.
"""

import dataclasses
from collections.abc import Iterable

from reprise.speculative.events import (
    Applied,
    Deliver,
    Discard,
    Fail,
    Finish,
    Launch,
    Start,
    Supersede,
    Underrun,
    Update,
)
from reprise.speculative.log import Step


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StreamReport:
    """One stream's figures; seconds unless said otherwise."""

    responses_s: tuple[float, ...]
    """From each change to the first group made for it, or for a newer one; changes never seen are left out."""
    startup_s: float
    played_s: float
    """From the first group to the last step."""
    stalled_s: float
    """How long the picture stood still."""
    busy_s: float
    """How long a call ran, the first one left out."""
    num_calls: int
    """Calls, the first one left out."""
    num_delivered: int
    num_discarded: int
    """Sampled groups that were replaced or came too late."""
    num_superseded: int
    """Changes that a newer one took the place of."""
    num_underruns: int
    num_stalls: int
    """Underruns for which the picture stood still."""

    @property
    def stall_share(self) -> float:
        """Give the share of the time that the picture stood still."""
        return self.stalled_s / self.played_s

    @property
    def activity(self) -> float:
        """Give the share of the time that a call ran."""
        return self.busy_s / self.played_s


def read_report(steps: Iterable[Step], *, group_s: float) -> StreamReport:
    """Sum up one stream; raise ValueError if it never played."""
    asked: dict[int, float] = {}
    responses: list[float] = []
    superseded: set[int] = set()
    begin = start = None
    now = stalled_s = busy_s = 0.0
    launched: dict[int, float] = {}
    num_delivered = num_discarded = num_underruns = num_stalls = num_calls = 0
    for step in steps:
        now = step.now
        begin = now if begin is None else begin
        if isinstance(step.event, Update):
            asked[step.event.version] = now
        elif isinstance(step.event, (Finish, Fail)) and step.event.job in launched:
            busy_s += now - launched.pop(step.event.job)
        for command in step.commands:
            match command:
                case Launch():
                    if start is not None:
                        launched[command.job] = now
                        num_calls += 1
                case Start():
                    start = now
                case Deliver():
                    num_delivered += 1
                    stalled_s += command.held_s
                case Applied():
                    responses.append(now - asked[command.version])
                case Supersede():
                    superseded.add(command.version)
                case Discard():
                    num_discarded += len(command.positions)
                case Underrun(fallback=fallback):
                    num_underruns += 1
                    num_stalls += fallback != "stale"
                    stalled_s += group_s if fallback == "drop" else 0.0
    if start is None or begin is None:
        raise ValueError("the stream never played")
    return StreamReport(
        responses_s=tuple(responses[1:]),  # the first is the start, not a change
        startup_s=start - begin,
        played_s=now - start,
        stalled_s=stalled_s,
        busy_s=busy_s + sum(now - at for at in launched.values()),
        num_calls=num_calls,
        num_delivered=num_delivered,
        num_discarded=num_discarded,
        num_superseded=len(superseded),
        num_underruns=num_underruns,
        num_stalls=num_stalls,
    )
