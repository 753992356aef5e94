"""The stream controller's table: which event is legal in which state, and where it may lead (appendix C).

What the table cannot say is in machine.py: an event leads to Produce exactly if the launch guard then holds. The
diagram of the documents is drawn from here. Standard library only.
"""

import dataclasses
from collections.abc import Mapping
from typing import Final

from reprise.speculative.events import Crowd, Event, Fail, Finish, Ready, StreamState, Tick, Update, Wake

PRODUCE, CONSUME = StreamState.PRODUCE, StreamState.CONSUME


@dataclasses.dataclass(frozen=True, slots=True)
class Transition:
    """What an event does in a state."""

    then: tuple[StreamState, ...]
    """States it may end in; the first without a launch."""
    action: str


TRANSITIONS: Final[Mapping[tuple[StreamState, type[Event]], Transition]] = {
    (CONSUME, Update): Transition((CONSUME, PRODUCE), "accept the condition"),
    (CONSUME, Tick): Transition((CONSUME, PRODUCE), "deliver the group that is due"),
    (CONSUME, Wake): Transition((CONSUME, PRODUCE), "look at the clock"),
    (CONSUME, Crowd): Transition((CONSUME, PRODUCE), "lead by more, or by less"),
    (PRODUCE, Update): Transition((PRODUCE,), "accept the condition, for the next job"),
    (PRODUCE, Ready): Transition((PRODUCE,), "publish groups of the job"),
    (PRODUCE, Tick): Transition((PRODUCE,), "deliver the group that is due"),
    (PRODUCE, Wake): Transition((PRODUCE,), "look at the clock"),
    (PRODUCE, Crowd): Transition((PRODUCE,), "lead by more, or by less"),
    (PRODUCE, Finish): Transition((CONSUME, PRODUCE), "release the slot"),
    (PRODUCE, Fail): Transition((CONSUME, PRODUCE), "release the slot, keep the condition pending"),
}


class IllegalTransition(Exception):
    """An event came that the state, or the registers, do not allow; nothing has changed."""

    def __init__(self, state: StreamState, event: Event, why: str = "no such transition") -> None:
        super().__init__(f"{event} in {state.value}: {why}")
        self.state, self.event = state, event


def draw() -> str:
    """Draw the table as a Mermaid state diagram."""
    lines = ["stateDiagram-v2", "    [*] --> Consume"]
    for (state, event), transition in TRANSITIONS.items():
        for then in transition.then:
            guard = "" if len(transition.then) == 1 else (" [launch]" if then is PRODUCE else " [no launch]")
            lines.append(f"    {state.value} --> {then.value}: {event.__name__.lower()}{guard} / {transition.action}")
    return "\n".join(lines)
