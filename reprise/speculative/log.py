"""The event log of a stream: what came, when, and what was decided; the same log gives the same decisions again.

One JSON object a line, so that a log can be read while it is written. Standard library only; knows nothing about
files or sessions.
"""

import dataclasses
import json
from collections.abc import Iterable
from typing import Any, Final

from reprise.speculative.estimator import EstimatorConfig
from reprise.speculative.events import (
    Applied,
    Command,
    Crowd,
    Deliver,
    Discard,
    Event,
    Fail,
    Fallback,
    Finish,
    Launch,
    Ready,
    Start,
    Supersede,
    Tick,
    Underrun,
    Update,
    Wake,
)
from reprise.speculative.latency import Commitment
from reprise.speculative.machine import MachineConfig, StreamMachine

_EVENTS: Final = {kind.__name__: kind for kind in (Update, Ready, Finish, Fail, Tick, Wake, Crowd)}
_COMMANDS: Final = (Launch, Start, Deliver, Applied, Underrun, Supersede, Discard)


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """One event, its time in seconds, and what the machine then wanted."""

    now: float
    event: Event
    commands: tuple[Command, ...]


class Divergence(Exception):
    """A replayed log gave another decision than it holds."""


def header_line(config: MachineConfig) -> str:
    """Write the first line of a log."""
    return json.dumps({"config": dataclasses.asdict(config)})


def step_line(step: Step) -> str:
    """Write one step."""
    return json.dumps({"at": step.now, **_as_json(step.event), "commands": [_as_json(one) for one in step.commands]})


def replay(lines: Iterable[str]) -> list[Step]:
    """Feed a log's events to a new machine; raise Divergence where it decides otherwise, ValueError for no log."""
    rest = iter(lines)
    machine = StreamMachine(_read_config(next(rest, "")))
    steps = []
    for number, line in enumerate(rest, 2):
        try:
            record = json.loads(line)
            event = _EVENTS[record["event"]](**{name: record[name] for name in record.keys() & _fields(record)})
            at, recorded = float(record["at"]), record["commands"]
        except (ValueError, KeyError, TypeError) as error:
            raise ValueError(f"line {number} of the log is no step: {error!r}") from error
        step = Step(at, event, tuple(machine.feed(event, at)))
        decided = [_as_json(one) for one in step.commands]
        if decided != recorded:
            raise Divergence(f"line {number}: expected {recorded}, got {decided}")
        steps.append(step)
    return steps


def _as_json(message: Event | Command) -> dict[str, Any]:
    kind = "command" if isinstance(message, _COMMANDS) else "event"
    values = {field.name: getattr(message, field.name) for field in dataclasses.fields(message)}
    return {kind: type(message).__name__} | {name: _plain(value) for name, value in values.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, range):
        return [value.start, value.stop]
    return [_plain(item) for item in value] if isinstance(value, tuple) else value


def _fields(record: dict[str, Any]) -> set[str]:
    return {field.name for field in dataclasses.fields(_EVENTS[record["event"]])}


def _read_config(line: str) -> MachineConfig:
    try:
        values = json.loads(line)["config"]
        return MachineConfig(
            **{
                **values,
                "estimator": EstimatorConfig(**values["estimator"]),
                "commitment": Commitment(values["commitment"]),
                "fallback": Fallback(values["fallback"]),
            }
        )
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"line 1 of the log holds no config: {error!r}") from error
