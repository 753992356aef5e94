"""What holds for every stream, whatever comes and whenever: the required invariants of appendix C."""

import math

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reprise.speculative.estimator import EstimatorConfig
from reprise.speculative.events import (
    Applied,
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
    Wake,
)
from reprise.speculative.latency import Commitment
from reprise.speculative.log import Step, header_line, replay, step_line
from reprise.speculative.machine import MachineConfig, StreamMachine

Group = tuple[int, int]


class AnyStream(RuleBasedStateMachine):
    """A player that never misses a deadline by itself, and a worker that may take any time or fail."""

    @initialize(
        chunk_groups=st.integers(1, 6),
        history_groups=st.integers(1, 3),
        fallback=st.sampled_from(Fallback),
        commitment=st.sampled_from(Commitment),
        initial_s=st.sampled_from([0.2, 1.0, 2.5]),
    )
    def begin(
        self, chunk_groups: int, history_groups: int, fallback: Fallback, commitment: Commitment, initial_s: float
    ) -> None:
        self.machine = StreamMachine(
            MachineConfig(
                chunk_groups=chunk_groups,
                group_s=1.0,
                history_groups=history_groups,
                fallback=fallback,
                commitment=commitment,
                estimator=EstimatorConfig(initial_s=initial_s),
            )
        )
        self.now, self.version = 0.0, -1
        self.steps: list[Step] = []
        self.launches: dict[int, Launch] = {}
        self.valid: dict[Group, int] = {}
        """Published groups that were not replaced, with their positions."""
        self.delivered: list[Deliver] = []
        self.published: set[int] = set()
        self.seen_versions: set[int] = set()
        self.superseded: set[int] = set()
        self.playing = False
        self.feed(Update(self.next_version()))

    def next_version(self) -> int:
        self.version += 1
        return self.version

    def feed(self, event: Event) -> None:
        registers = self.machine.registers
        active, pending, protected = registers.job, registers.pending, registers.irrevocable
        if isinstance(event, Ready):
            launch, first = self.launches[event.job], active.num_ready if active else 0
            self.published.add(launch.version)
            for index in range(first, first + event.count):
                self.valid[event.job, index] = launch.branch + index
        commands = self.machine.feed(event, self.now)
        self.steps.append(Step(self.now, event, tuple(commands)))
        for command in commands:
            match command:
                case Launch():
                    assert active is None or isinstance(event, (Finish, Fail)), "one job at most"
                    self.check_launch(command, pending is not None or isinstance(event, Update), protected)
                case Start():
                    assert not self.playing
                    self.playing = True
                case Deliver():
                    self.check_delivery(command)
                case Applied(version=version, position=position):
                    assert isinstance(commands[commands.index(command) - 1], Deliver)
                    assert self.delivered[-1].version == version
                    assert self.delivered[-1].position == position
                    assert version not in self.seen_versions | self.superseded
                    assert all(version > other for other in self.seen_versions)
                    self.seen_versions.add(version)
                case Supersede(version=version, by=by):
                    assert by > version
                    assert version not in self.seen_versions | self.superseded
                    self.superseded.add(version)
                case Underrun() | Discard():
                    pass

    def check_launch(self, launch: Launch, is_wanted: bool, protected: int) -> None:
        machine = self.machine
        assert launch.branch >= protected
        assert launch.version == self.version, "always the newest condition"
        assert all(shown.position < launch.branch for shown in self.delivered)
        replaced = {group for group, position in self.valid.items() if position in launch.replaced}
        shown = {(deliver.job, deliver.index) for deliver in self.delivered}
        assert not replaced & shown, "nothing that was delivered is replaced"
        for group in replaced:
            del self.valid[group]
        assert set(launch.prefix) <= self.valid.keys() | shown, "no invalid group is attended to"
        assert all(self.launches[job].branch + index < launch.branch for job, index in launch.prefix)
        if launch.deadline is None:
            assert not self.playing
        elif launch.replaced:
            assert is_wanted
            assert machine.config.commitment is Commitment.GROUP
            assert launch.deadline >= self.now + machine.estimator.first_s - 1e-6
            protected = machine.registers.irrevocable  # what was delivered by the same event is
            before = [machine.deadline(position) for position in range(protected, launch.branch)]
            last_s = machine.config.chunk_groups - 1
            first_due, last_due = self.now + machine.estimator.first_s, self.now + machine.estimator.whole_s - last_s
            assert all(due < max(first_due, last_due) for due in before), "the earliest that can be"
        elif not is_wanted:
            assert machine.deadline(launch.branch) - self.now <= machine.lead_s + 1 + 1e-6
        self.launches[launch.job] = launch

    def check_delivery(self, deliver: Deliver) -> None:
        launch = self.launches[deliver.job]
        assert self.playing
        assert deliver.position == launch.branch + deliver.index
        assert deliver.version == launch.version
        assert deliver.is_stale or (deliver.job, deliver.index) in self.valid
        if self.delivered:
            step = deliver.position - self.delivered[-1].position
            assert step == 1 or (step > 1 and self.machine.config.fallback is Fallback.DROP)
        self.delivered.append(deliver)

    @rule(calls=st.sampled_from([0.0, 0.5, 3.0]))
    def others_come_or_go(self, calls: float) -> None:
        self.feed(Crowd(calls))

    @rule()
    def change(self) -> None:
        self.feed(Update(self.next_version()))

    @precondition(lambda self: self.machine.registers.job is not None)
    @rule(data=st.data())
    def groups_are_ready(self, data: st.DataObject) -> None:
        job = self.machine.registers.job
        assert job is not None
        left = job.num_groups - job.num_ready
        if left:
            self.feed(Ready(job.id, data.draw(st.integers(1, left))))
        else:
            self.feed(Finish(job.id))

    @precondition(lambda self: self.machine.registers.job is not None)
    @rule()
    def job_fails(self) -> None:
        job = self.machine.registers.job
        assert job is not None
        self.feed(Fail(job.id))

    @rule(share=st.sampled_from([0.1, 0.5, 1.0, 1.0, 1.0]), up_to_s=st.sampled_from([0.3, 1.0, 3.0]))
    def time_passes(self, share: float, up_to_s: float) -> None:
        """Go to what is due next, or part of the way."""
        due = [at for at in (self.machine.tick_at, self.machine.wake_at) if at is not None]
        next_at = min(due, default=math.inf)
        self.now = max(self.now, min(self.now + up_to_s, self.now + share * (next_at - self.now)))
        tick_at, wake_at = self.machine.tick_at, self.machine.wake_at
        if tick_at is not None and self.now >= tick_at:
            self.feed(Tick())
        elif wake_at is not None and self.now >= wake_at:
            self.feed(Wake())
            assert self.machine.state is StreamState.PRODUCE, "what the clock promised holds"
        else:
            self.feed(Wake())

    @invariant()
    def registers_are_consistent(self) -> None:
        r = self.machine.registers
        assert 0 <= r.cursor <= r.irrevocable <= max(r.end, r.locked)
        assert r.cursor <= r.end
        assert all(r.cursor <= position < r.end for position in r.predictions)
        assert all(position >= r.cursor for position in r.stale)
        for position, group in r.predictions.items():
            assert self.valid[group.job, group.index] == position

    @invariant()
    def no_version_is_lost(self) -> None:
        r = self.machine.registers
        alive = {group.version for group in r.predictions.values()} | {self.version}
        alive |= {r.job.version} if r.job else set()
        assert set(range(self.version + 1)) == alive | self.seen_versions | self.superseded
        is_sampled = self.version in self.published or (r.job is not None and r.job.version == self.version)
        assert is_sampled or r.pending == self.version

    @invariant()
    def playback_never_ends(self) -> None:
        """There is always something to wait for: a job, a deadline, or a time to try again."""
        machine = self.machine
        assert machine.state is StreamState.PRODUCE or machine.wake_at is not None

    def teardown(self) -> None:
        lines = [header_line(self.machine.config), *map(step_line, self.steps)]
        assert replay(lines) == self.steps


AnyStream.TestCase.settings = settings(max_examples=150, stateful_step_count=60, deadline=None)
TestAnyStream = AnyStream.TestCase
