"""The controller of one live stream, an extended finite-state machine (Speculative Sampling, section 3.2, appendix C).

Events and the time go in, commands come out; no clock, no await. `transitions.py` says which event is legal in which
state. Beyond the table: after every event that leaves the slot free, the launch guard is asked, and if it holds the
machine launches a job and is in Produce. The guard holds when a newer condition has a feasible boundary, or when what
is predicted lasts no longer than a call takes. Standard library only; knows nothing about latents or prompts.

The registers, by the paper's symbols, are in registers.py.
"""

import dataclasses
import math
from collections import deque

from reprise.speculative.estimator import ComputeEstimator, EstimatorConfig
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
    StreamState,
    Supersede,
    Tick,
    Underrun,
    Update,
)
from reprise.speculative.latency import Commitment
from reprise.speculative.registers import Job, Prediction, Registers
from reprise.speculative.transitions import TRANSITIONS, IllegalTransition

EPSILON_S = 1e-9
"""Sums of floats may miss a deadline by so much."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MachineConfig:
    """One stream's constants."""

    chunk_groups: int
    """Groups that a sampling call makes."""
    group_s: float
    """Seconds that a group plays, delta."""
    estimator: EstimatorConfig
    history_groups: int = 1
    """Shown or retained groups that a call is conditioned on."""
    commitment: Commitment = Commitment.GROUP
    fallback: Fallback = Fallback.FREEZE
    retry_s: float = 0.5
    """Wait after a failed call, times the failures in a row."""

    def __post_init__(self) -> None:
        if self.chunk_groups < 1 or self.group_s <= 0 or self.history_groups < 1 or self.retry_s < 0:
            raise ValueError(
                "expected chunk_groups >= 1, group_s > 0, history_groups >= 1 and retry_s >= 0, got "
                f"{self.chunk_groups}, {self.group_s}, {self.history_groups}, {self.retry_s}"
            )


class StreamMachine:
    """Decides for one stream; see the module for what it obeys."""

    def __init__(self, config: MachineConfig) -> None:
        self.config = config
        self.registers = Registers(shown=deque(maxlen=config.history_groups))
        self.estimator = ComputeEstimator(config.estimator)

    @property
    def state(self) -> StreamState:
        """Give the control state; the slot alone decides it."""
        return StreamState.CONSUME if self.registers.job is None else StreamState.PRODUCE

    @property
    def tick_at(self) -> float | None:
        """Give when the next `Tick` is due; None before playback and while the picture stands still."""
        r = self.registers
        return None if r.origin is None or r.is_frozen else self.deadline(r.cursor)

    @property
    def wake_at(self) -> float | None:
        """Give when time alone would make the guard hold; None where only another event can."""
        r = self.registers
        if r.job is not None or r.latest is None:
            return None
        due = -math.inf if r.origin is None else self.deadline(r.end) - self.lead_s
        return max(due, r.retry_at, r.now)

    @property
    def lead_s(self) -> float:
        """Give how long before the end of what is predicted a call begins, waits for others included."""
        return self.estimator.lead_s + self.registers.crowd * self.estimator.whole_s

    @property
    def expected_position(self) -> int | None:
        """Estimate where the newest condition will first be seen; None where that is past or playback has not begun."""
        r, job = self.registers, self.registers.job
        if r.origin is None or r.latest not in r.unseen:
            return None
        if r.pending is None:
            positions = [position for position, group in r.predictions.items() if group.version == r.latest]
            return min(positions, default=r.end if job is None else job.branch)
        end = r.end if job is None else job.branch + job.num_groups
        if self.config.commitment is Commitment.CHUNK:
            return end
        begin = max(r.now, r.retry_at, -math.inf if job is None else job.launched_at + self.estimator.whole_s)
        groups = math.ceil((begin + self.estimator.first_s - self.deadline(0)) / self.config.group_s - EPSILON_S)
        return min(end, max(groups, r.irrevocable))

    def deadline(self, position: int) -> float:
        """Give when a position is due, b_j; raise ValueError before playback."""
        if self.registers.origin is None:
            raise ValueError("positions have no deadlines before playback")
        return self.registers.origin + position * self.config.group_s

    def feed(self, event: Event, now: float) -> list[Command]:
        """Take an event at a time in seconds; raise IllegalTransition, and change nothing, where it cannot be."""
        self._check(event, now)
        legal = TRANSITIONS[self.state, type(event)]
        self.registers.now = now
        commands: list[Command] = []
        match event:
            case Update():
                self.registers.latest = self.registers.pending = event.version
                self.registers.unseen.add(event.version)
            case Ready():
                self._publish(event.count, now, commands)
            case Finish():
                self._finish(now)
            case Fail():
                self._fail(now)
            case Tick():
                self._deliver_due(commands)
            case Crowd():
                self.registers.crowd = event.calls
        branch = self._guard(now)
        if branch is not None:
            self._launch(branch, now, commands)
        self._supersede(commands)
        assert self.state in legal.then
        return commands

    def _check(self, event: Event, now: float) -> None:
        state, r = self.state, self.registers
        if (state, type(event)) not in TRANSITIONS:
            raise IllegalTransition(state, event)
        why = None
        if now < r.now:
            why = f"time goes back from {r.now} to {now}"
        elif isinstance(event, Update) and r.latest is not None and event.version <= r.latest:
            why = f"version {r.latest} has been accepted"
        elif isinstance(event, Crowd) and event.calls < 0:
            why = "a crowd is no less than nobody"
        elif isinstance(event, Tick):
            if self.tick_at is None:
                why = "nothing plays"
            elif now < self.tick_at - EPSILON_S:
                why = f"nothing is due before {self.tick_at}"
        elif isinstance(event, (Ready, Finish, Fail)):
            assert r.job is not None
            left = r.job.num_groups - r.job.num_ready
            if event.job != r.job.id:
                why = f"the active job is {r.job.id}"
            elif isinstance(event, Ready) and not 1 <= event.count <= left:
                why = f"{left} groups are left"
            elif isinstance(event, Finish) and left:
                why = f"{left} groups are not ready"
        if why is not None:
            raise IllegalTransition(state, event, why)

    def _publish(self, count: int, now: float, commands: list[Command]) -> None:
        r, job = self.registers, self.registers.job
        assert job is not None
        late: list[int] = []
        for index in range(job.num_ready, job.num_ready + count):
            position = job.branch + index
            if position < r.cursor:
                late.append(position)
            else:
                r.predictions[position] = Prediction(job.id, index, job.version)
                r.stale.pop(position, None)
        if late:
            commands.append(Discard(range(late[0], late[-1] + 1), job.id, job.version, is_late=True))
        first_ready_at = now if job.first_ready_at is None else job.first_ready_at
        r.job = dataclasses.replace(job, num_ready=job.num_ready + count, first_ready_at=first_ready_at)
        r.end = max(r.end, job.branch + r.job.num_ready)
        if self.config.commitment is Commitment.CHUNK:
            r.irrevocable = r.end
        if r.origin is None:
            r.origin = now
            commands.append(Start())
            self._deliver_due(commands)
        elif r.is_frozen and r.cursor in r.predictions:
            held_s = now - self.deadline(r.cursor)
            r.origin += held_s
            r.is_frozen = False
            self._deliver(r.predictions.pop(r.cursor), commands, held_s=held_s)

    def _finish(self, now: float) -> None:
        r, job = self.registers, self.registers.job
        assert job is not None
        assert job.first_ready_at is not None
        if not job.is_first:
            self.estimator.observe(first_s=job.first_ready_at - job.launched_at, whole_s=now - job.launched_at)
        r.job, r.locked, r.failures, r.retry_at = None, r.irrevocable, 0, -math.inf

    def _fail(self, now: float) -> None:
        r, job = self.registers, self.registers.job
        assert job is not None
        r.job, r.locked = None, r.irrevocable
        r.failures += 1
        r.retry_at = now + self.config.retry_s * r.failures
        if not job.num_ready and r.pending is None and job.version in r.unseen:
            r.pending = job.version  # is asked for again

    def _deliver_due(self, commands: list[Command]) -> None:
        r = self.registers
        group = r.predictions.pop(r.cursor, None)
        if group is not None:
            self._deliver(group, commands)
            return
        stale = r.stale.pop(r.cursor, None)
        if stale is not None:
            commands.append(Underrun(r.cursor, Fallback.STALE))
            self._deliver(stale, commands, is_stale=True)
        elif self.config.fallback is Fallback.DROP:
            commands.append(Underrun(r.cursor, Fallback.DROP))
            self._advance()
        else:
            commands.append(Underrun(r.cursor, Fallback.FREEZE))
            r.is_frozen = True

    def _deliver(
        self, group: Prediction, commands: list[Command], *, is_stale: bool = False, held_s: float = 0.0
    ) -> None:
        r = self.registers
        commands.append(
            Deliver(
                position=r.cursor,
                job=group.job,
                index=group.index,
                version=group.version,
                is_stale=is_stale,
                held_s=held_s,
            )
        )
        if group.version in r.unseen:
            r.unseen.remove(group.version)
            commands.append(Applied(group.version, r.cursor))
        r.shown.append(group)
        self._advance()

    def _advance(self) -> None:
        r = self.registers
        r.stale.pop(r.cursor, None)
        r.cursor += 1
        r.end = max(r.end, r.cursor)
        r.irrevocable = max(r.irrevocable, r.cursor)

    def _guard(self, now: float) -> int | None:
        """Give the branch to launch at, or None: the dispatch guard g."""
        r, first_s = self.registers, self.estimator.first_s
        if r.job is not None or r.latest is None or now < r.retry_at - EPSILON_S:
            return None
        if r.origin is None:
            return 0
        if r.pending is not None and self.config.commitment is Commitment.GROUP:
            branch = self._earliest_feasible(now)
            if branch is not None:
                return branch
        if self.deadline(r.end) - now > self.lead_s + EPSILON_S:
            return None
        if self.config.fallback is not Fallback.DROP:
            return r.end
        groups = math.ceil((now + first_s - self.deadline(r.end)) / self.config.group_s - EPSILON_S)
        return r.end + max(0, groups)

    def _earliest_feasible(self, now: float) -> int | None:
        """Find the first replaceable position whose content a call begun now can still make in time."""
        r = self.registers
        last_s = (self.config.chunk_groups - 1) * self.config.group_s
        for position in range(r.irrevocable, r.end + 1):
            due = self.deadline(position) + EPSILON_S
            if due >= now + self.estimator.first_s and due + last_s >= now + self.estimator.whole_s:
                return position
        return None

    def _launch(self, branch: int, now: float, commands: list[Command]) -> None:
        r, config = self.registers, self.config
        assert r.job is None
        assert r.latest is not None
        assert branch >= r.irrevocable
        version, replaced = r.latest, range(branch, max(branch, r.end))
        is_first = r.origin is None
        num_groups = config.chunk_groups
        r.job = Job(
            id=r.next_job, version=version, branch=branch, num_groups=num_groups, launched_at=now, is_first=is_first
        )
        r.next_job += 1
        r.pending = None
        gone = {position: r.predictions.pop(position) for position in replaced if position in r.predictions}
        if config.fallback is Fallback.STALE:
            r.stale |= gone
        r.locked, r.end = branch, min(r.end, branch)
        commands.append(
            Launch(
                job=r.job.id,
                version=version,
                branch=branch,
                num_groups=num_groups,
                prefix=self._retained(),
                replaced=replaced,
                deadline=None if is_first else self.deadline(branch),
                attempt=r.failures + 1,
            )
        )
        commands += _discards(gone)

    def _supersede(self, commands: list[Command]) -> None:
        """Record the versions that nothing is left of, and that nothing will be sampled for."""
        r = self.registers
        if r.latest is None:
            return
        alive = {group.version for group in r.predictions.values()} | {r.latest}
        alive |= {r.job.version} if r.job is not None else set()
        for version in sorted(r.unseen - alive):
            r.unseen.remove(version)
            commands.append(Supersede(version, r.latest))

    def _retained(self) -> tuple[tuple[int, int], ...]:
        """Give job and index of the last valid groups, oldest first: what a call that continues them may see."""
        r = self.registers
        predicted = [r.predictions[position] for position in sorted(r.predictions)]
        groups = [*r.shown, *predicted][-self.config.history_groups :]
        return tuple((group.job, group.index) for group in groups)


def _discards(gone: dict[int, Prediction]) -> list[Discard]:
    """Sum up replaced groups by the job that made them."""
    by_job: dict[int, list[int]] = {}
    for position, group in gone.items():
        by_job.setdefault(group.job, []).append(position)
    versions = {group.job: group.version for group in gone.values()}
    return [
        Discard(range(positions[0], positions[-1] + 1), job, versions[job], is_late=False)
        for job, positions in by_job.items()
    ]
