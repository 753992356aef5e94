"""The stream controller, told as stories: what comes in, what goes out, and what is then remembered."""

import copy

import pytest

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
    StreamState,
    Supersede,
    Tick,
    Underrun,
    Update,
    Wake,
)
from reprise.speculative.latency import Commitment
from reprise.speculative.machine import MachineConfig, StreamMachine
from reprise.speculative.transitions import TRANSITIONS, IllegalTransition

EVENTS = (Update(9), Ready(0), Finish(0), Fail(0), Tick(), Wake(), Crowd(1.0))


def new_machine(
    *, fallback: Fallback = Fallback.FREEZE, commitment: Commitment = Commitment.GROUP, chunk_groups: int = 4
) -> StreamMachine:
    """A group plays one second, a call takes 1.5 (C) and nothing is added for safety."""
    estimator = EstimatorConfig(initial_s=1.5, margin=0.0)
    return StreamMachine(
        MachineConfig(
            chunk_groups=chunk_groups, group_s=1.0, estimator=estimator, fallback=fallback, commitment=commitment
        )
    )


def launch_of(commands: list[Command]) -> Launch:
    (launch,) = [command for command in commands if isinstance(command, Launch)]
    return launch


def playing(machine: StreamMachine | None = None) -> StreamMachine:
    """Give a stream that began to play at 10 and has its first chunk, at 10.0 itself."""
    machine = machine or new_machine()
    machine.feed(Update(0), 8.0)
    machine.feed(Ready(0, machine.config.chunk_groups), 10.0)
    machine.feed(Finish(0), 10.0)
    return machine


def test_a_start_samples_before_playback_and_plays_at_the_first_group() -> None:
    machine = new_machine()
    first = Launch(job=0, version=0, branch=0, num_groups=4, prefix=(), replaced=range(0), deadline=None, attempt=1)
    assert machine.feed(Update(0), 8.0) == [first]
    assert (machine.state, machine.tick_at) == (StreamState.PRODUCE, None)
    shown = [Start(), Deliver(position=0, job=0, index=0, version=0), Applied(0, 0)]
    assert machine.feed(Ready(0), 10.0) == shown
    assert machine.feed(Ready(0, 3), 10.2) == []
    assert machine.feed(Finish(0), 10.3) == []
    assert (machine.state, machine.tick_at, machine.wake_at) == (StreamState.CONSUME, 11.0, 12.5)
    assert machine.registers.end == 4


def test_cached_groups_are_delivered_without_sampling_until_the_refill_is_due() -> None:
    machine = playing()
    assert machine.feed(Tick(), 11.0) == [Deliver(position=1, job=0, index=1, version=0)]
    assert machine.feed(Tick(), 12.0) == [Deliver(position=2, job=0, index=2, version=0)]
    assert machine.feed(Wake(), 12.4) == []
    refill = launch_of(machine.feed(Wake(), 12.5))
    assert (refill.branch, refill.replaced, refill.prefix, refill.deadline) == (4, range(4, 4), ((0, 3),), 14.0)


def test_in_a_crowd_a_refill_begins_earlier_by_the_calls_it_may_wait_for() -> None:
    machine = playing()
    machine.feed(Crowd(2 / 3), 10.5)
    assert machine.wake_at == 11.5, "4 groups end at 14, less 1.5 and two thirds of 1.5"
    machine.feed(Tick(), 11.0)
    assert launch_of(machine.feed(Wake(), 11.5)).branch == 4
    with pytest.raises(IllegalTransition, match="crowd"):
        machine.feed(Crowd(-1.0), 11.6)


def test_a_change_replaces_from_the_earliest_position_that_a_call_can_make_in_time() -> None:
    machine = playing()
    commands = machine.feed(Update(1), 10.4)  # a call begun now ends at 11.9, so position 2, due at 12, is first
    launch = launch_of(commands)
    assert (launch.version, launch.branch, launch.replaced, launch.prefix) == (1, 2, range(2, 4), ((0, 1),))
    assert launch.num_groups == 4, "the new sample is not cut to what is left of the old chunk"
    assert Discard(range(2, 4), 0, 0, is_late=False) in commands
    assert machine.feed(Tick(), 11.0) == [Deliver(position=1, job=0, index=1, version=0)]
    machine.feed(Ready(1, 4), 11.9)
    machine.feed(Finish(1), 11.9)
    assert machine.feed(Tick(), 12.0) == [Deliver(position=2, job=1, index=0, version=1), Applied(1, 2)]
    assert machine.registers.end == 6


def test_the_baseline_lets_a_change_wait_for_the_refill() -> None:
    machine = playing(new_machine(commitment=Commitment.CHUNK))
    assert machine.feed(Update(1), 10.4) == []
    assert machine.registers.pending == 1
    for at in (11.0, 12.0):
        machine.feed(Tick(), at)
    refill = launch_of(machine.feed(Wake(), 12.5))
    assert (refill.version, refill.branch, refill.replaced) == (1, 4, range(4, 4))


def test_changes_during_a_job_coalesce_to_the_newest_and_do_not_touch_the_job() -> None:
    machine = playing()
    machine.feed(Update(1), 10.4)
    job = machine.registers.job
    assert machine.feed(Update(2), 10.6) == []
    assert machine.feed(Update(5), 10.8) == [Supersede(2, 5)]
    assert (machine.registers.job, machine.registers.pending) == (job, 5)
    machine.feed(Tick(), 11.0)
    machine.feed(Ready(1, 4), 11.9)
    again = launch_of(machine.feed(Finish(1), 11.9))
    assert (again.version, again.branch, again.prefix) == (5, 4, ((1, 1),)), "11.9 + 1.5 is after 13"
    assert machine.state is StreamState.PRODUCE


def test_a_version_whose_every_group_is_replaced_unseen_counts_as_superseded() -> None:
    machine = playing(new_machine(chunk_groups=8))
    machine.feed(Update(1), 10.4)
    machine.feed(Tick(), 11.0)
    machine.feed(Ready(1, 8), 11.1)  # early, so position 2 is still to come
    machine.feed(Finish(1), 11.1)
    machine.estimator.observe(first_s=0.1, whole_s=0.1)
    machine.estimator._config = EstimatorConfig(initial_s=1.0, quantile=0.01, margin=0.0)
    assert Supersede(1, 2) in machine.feed(Update(2), 11.2)


def test_a_change_too_late_for_any_position_waits_for_the_job_after_the_end() -> None:
    machine = playing()
    for at in (11.0, 12.0):
        machine.feed(Tick(), at)
    launch = launch_of(machine.feed(Update(1), 12.4))
    assert launch.branch == 4, "position 3, due at 13, cannot be made by 13.9"


def test_freezing_moves_the_rest_of_the_timeline_by_as_long_as_the_picture_stood() -> None:
    machine = playing()
    for at in (11.0, 12.0):
        machine.feed(Tick(), at)
    machine.feed(Wake(), 12.5)
    machine.feed(Tick(), 13.0)
    assert machine.feed(Tick(), 14.0) == [Underrun(4, Fallback.FREEZE)]
    assert machine.tick_at is None
    (shown,) = machine.feed(Ready(1, 4), 14.75)
    assert shown == Deliver(position=4, job=1, index=0, version=0, held_s=0.75)
    assert machine.tick_at == 15.75


def test_stale_groups_stand_in_for_a_late_branch_and_what_comes_too_late_is_dropped() -> None:
    machine = playing(new_machine(fallback=Fallback.STALE))
    machine.feed(Update(1), 10.4)
    machine.feed(Tick(), 11.0)
    shown = Deliver(position=2, job=0, index=2, version=0, is_stale=True)
    assert machine.feed(Tick(), 12.0) == [Underrun(2, Fallback.STALE), shown]
    assert machine.feed(Ready(1, 4), 12.3) == [Discard(range(2, 3), 1, 1, is_late=True)]
    machine.feed(Finish(1), 12.3)
    assert machine.feed(Tick(), 13.0) == [Deliver(position=3, job=1, index=1, version=1), Applied(1, 3)]


def test_dropping_keeps_the_clock_and_a_late_refill_aims_at_what_it_can_still_reach() -> None:
    machine = playing(new_machine(fallback=Fallback.DROP))
    for at in (11.0, 12.0):
        machine.feed(Tick(), at)
    machine.feed(Wake(), 12.5)
    machine.feed(Tick(), 13.0)
    relaunch = machine.feed(Fail(1), 13.9)
    assert relaunch == [], "it waits before it tries again"
    assert machine.feed(Tick(), 14.0) == [Underrun(4, Fallback.DROP)]
    again = launch_of(machine.feed(Wake(), 14.4))
    assert (again.branch, again.deadline, again.prefix, again.attempt) == (6, 16.0, ((0, 3),), 2)


def test_a_failed_job_publishes_nothing_and_its_condition_is_asked_for_again() -> None:
    machine = playing(new_machine(chunk_groups=8))
    machine.feed(Update(1), 10.4)
    assert machine.feed(Fail(1), 11.0) == []
    assert (machine.registers.pending, machine.registers.end, machine.wake_at) == (1, 2, 11.5)
    machine.feed(Tick(), 11.0)
    again = launch_of(machine.feed(Wake(), 11.5))
    assert (again.version, again.branch, again.attempt) == (1, 2, 2)


def test_a_newer_condition_takes_the_place_of_a_failed_one() -> None:
    machine = playing(new_machine(chunk_groups=8))
    machine.feed(Update(1), 10.4)
    machine.feed(Update(2), 10.5)
    machine.feed(Fail(1), 10.9)
    assert launch_of(machine.feed(Wake(), 11.4)).version == 2


def test_groups_that_were_ready_before_a_failure_stay() -> None:
    machine = playing()
    machine.feed(Update(1), 10.4)
    machine.feed(Tick(), 11.0)
    machine.feed(Ready(1, 1), 11.5)
    machine.feed(Fail(1), 11.6)
    assert (machine.registers.end, machine.registers.pending) == (3, None)
    assert Deliver(position=2, job=1, index=0, version=1) in machine.feed(Tick(), 12.0)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
@pytest.mark.parametrize("state", list(StreamState))
def test_what_the_table_does_not_have_is_refused_and_changes_nothing(state: StreamState, event: Event) -> None:
    machine = playing()
    if state is StreamState.PRODUCE:
        machine.feed(Update(1), 10.1)
    if (state, type(event)) in TRANSITIONS:
        return
    before = copy.deepcopy(machine.registers)
    with pytest.raises(IllegalTransition) as caught:
        machine.feed(event, 11.0)
    assert (caught.value.state, caught.value.event) == (state, event)
    assert machine.registers == before


@pytest.mark.parametrize(
    ("event", "at", "why"),
    [
        (Update(1), 10.5, "version 1 has been accepted"),
        (Update(0), 10.5, "version 1 has been accepted"),
        (Tick(), 10.5, "nothing is due before 11.0"),
        (Ready(0), 10.5, "the active job is 1"),
        (Ready(1, 5), 10.5, "4 groups are left"),
        (Ready(1, 0), 10.5, "4 groups are left"),
        (Finish(1), 10.5, "4 groups are not ready"),
        (Fail(7), 10.5, "the active job is 1"),
        (Wake(), 10.0, "time goes back from 10.1 to 10.0"),
    ],
)
def test_what_the_registers_do_not_allow_is_refused_and_changes_nothing(event: Event, at: float, why: str) -> None:
    machine = playing()
    machine.feed(Update(1), 10.1)
    before = copy.deepcopy(machine.registers)
    with pytest.raises(IllegalTransition, match=why):
        machine.feed(event, at)
    assert machine.registers == before


def test_a_tick_before_playback_or_while_the_picture_stands_is_refused() -> None:
    machine = new_machine()
    machine.feed(Update(0), 8.0)
    with pytest.raises(IllegalTransition, match="nothing plays"):
        machine.feed(Tick(), 9.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"chunk_groups": 0}, "chunk_groups >= 1"),
        ({"group_s": 0.0}, "group_s > 0"),
        ({"history_groups": 0}, "history_groups >= 1"),
    ],
)
def test_a_config_that_cannot_be_is_refused(change: dict[str, float], message: str) -> None:
    values = {"chunk_groups": 4, "group_s": 1.0, "estimator": EstimatorConfig(initial_s=1.0), **change}
    with pytest.raises(ValueError, match=message):
        MachineConfig(**values)  # type: ignore[arg-type]
