"""The words of the stream controller: its two states, what happens to it, and what it wants done.

Speculative Sampling, section 3.2 and appendix C. Positions count delivery groups on the playback timeline, from 0.
Standard library only; knows nothing about which transition is legal.
"""

import dataclasses
import enum


class StreamState(enum.Enum):
    """The control state; playback goes on in both."""

    PRODUCE = "Produce"
    """A sampling call runs."""
    CONSUME = "Consume"
    """None runs; what is cached is reused."""


@dataclasses.dataclass(frozen=True, slots=True)
class Update:
    """The viewer's condition changed; versions rise, gaps are allowed."""

    version: int


@dataclasses.dataclass(frozen=True, slots=True)
class Ready:
    """The next `count` groups of a job can be delivered."""

    job: int
    count: int = 1


@dataclasses.dataclass(frozen=True, slots=True)
class Finish:
    """A job has ended and left the worker; all its groups were ready."""

    job: int


@dataclasses.dataclass(frozen=True, slots=True)
class Fail:
    """A job has ended without its remaining groups, and the worker is confirmed to be rid of it."""

    job: int


@dataclasses.dataclass(frozen=True, slots=True)
class Tick:
    """The deadline of the group at the playback cursor has come."""


@dataclasses.dataclass(frozen=True, slots=True)
class Wake:
    """Time has passed; look again whether to launch."""


@dataclasses.dataclass(frozen=True, slots=True)
class Crowd:
    """The worker is shared: a call may have to wait for so many calls of others."""

    calls: float


Event = Update | Ready | Finish | Fail | Tick | Wake | Crowd


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Launch:
    """Sample one chunk: continue the retained prefix, with the newest condition, into the groups from `branch` on."""

    job: int
    version: int
    branch: int
    """First position that its groups take."""
    num_groups: int
    prefix: tuple[tuple[int, int], ...]
    """Job and index of the retained groups it may be conditioned on, oldest first; none of them was replaced."""
    replaced: range
    """Groups that were predicted and never will be shown."""
    deadline: float | None
    """When its first group is due; None before playback starts."""
    attempt: int
    """1, or more after failures."""


@dataclasses.dataclass(frozen=True, slots=True)
class Start:
    """Playback begins now: the first group is due."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Deliver:
    """Hand a group over for display; from now on it cannot be replaced."""

    position: int
    job: int
    index: int
    """Which of the job's groups it is."""
    version: int
    is_stale: bool = False
    """It had been replaced, and stands in for a group that is not ready."""
    held_s: float = 0.0
    """How long the picture stood still before it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Applied:
    """A version is seen for the first time, with this group."""

    version: int
    position: int


class Fallback(enum.StrEnum):
    """What is shown when a group is due and not ready."""

    FREEZE = "freeze"
    """The last picture stands until the group comes; the rest of the timeline moves by as much."""
    STALE = "stale"
    """What had been predicted before the change, where there is such; else as freeze."""
    DROP = "drop"
    """The last picture stands for as long as the group would have; what comes too late is dropped."""


@dataclasses.dataclass(frozen=True, slots=True)
class Underrun:
    """A group was due and not ready."""

    position: int
    fallback: Fallback
    """What was done; freeze also where nothing stale was left."""


@dataclasses.dataclass(frozen=True, slots=True)
class Supersede:
    """A version was never seen, and never will be."""

    version: int
    by: int


@dataclasses.dataclass(frozen=True, slots=True)
class Discard:
    """Sampled groups that nobody saw; the extra work of speculation."""

    positions: range
    job: int
    version: int
    is_late: bool
    """They came after their time; otherwise a newer condition replaced them."""


Command = Launch | Start | Deliver | Applied | Underrun | Supersede | Discard
