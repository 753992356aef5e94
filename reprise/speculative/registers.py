"""What the stream controller remembers between two events (Speculative Sampling, appendix C).

Symbols: B `predictions`, V their jobs and indices, H `shown`, v `latest`, u `pending`, J `job`, p `cursor`,
l_i `irrevocable`, l_l `locked`, n `end`, beta `origin`: position j is due at origin + j delta. Standard library only.
"""

import dataclasses
import math
from collections import deque


@dataclasses.dataclass(frozen=True, slots=True)
class Prediction:
    """A ready group: the output of a job, made for a version."""

    job: int
    index: int
    version: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """The active sampling call."""

    id: int
    version: int
    branch: int
    num_groups: int
    launched_at: float
    is_first: bool
    """Its time is that of a start, not of the steady state."""
    num_ready: int = 0
    first_ready_at: float | None = None


@dataclasses.dataclass(kw_only=True, slots=True)
class Registers:
    """All that the machine remembers."""

    predictions: dict[int, Prediction] = dataclasses.field(default_factory=dict)
    """Ready groups by position, not delivered yet."""
    stale: dict[int, Prediction] = dataclasses.field(default_factory=dict)
    """What was replaced, while it may still stand in."""
    shown: deque[Prediction] = dataclasses.field(default_factory=deque)
    """The last groups that were delivered, for conditioning."""
    latest: int | None = None
    pending: int | None = None
    """A version that no job was launched for yet."""
    unseen: set[int] = dataclasses.field(default_factory=set)
    """Accepted versions that may still be seen for the first time."""
    job: Job | None = None
    cursor: int = 0
    """Next position to deliver."""
    irrevocable: int = 0
    locked: int = 0
    """Exclusive end of what the active job continues."""
    end: int = 0
    """Exclusive end of what is predicted, or shown."""
    origin: float | None = None
    """When position 0 was due; moves when playback stands still. None before playback."""
    is_frozen: bool = False
    crowd: float = 0.0
    """Calls of other streams that one of this stream may have to wait for."""
    next_job: int = 0
    failures: int = 0
    """In a row."""
    retry_at: float = -math.inf
    now: float = -math.inf
