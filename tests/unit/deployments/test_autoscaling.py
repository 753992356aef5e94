"""How many replicas a load needs, and that the number neither flaps nor falls too soon; on traces of a queue."""

import itertools
import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from deployments.api.queue_load import Due, LaneLoad
from deployments.autoscaling import Scaler, ScalingBounds, groups_for, replicas_for

BOUNDS = ScalingBounds(min_replicas=0, max_replicas=8, target_wait_s=60, start_s=30, down_after_s=300)


def load(waiting: int, work_s: float, *due: tuple[float, float], running: int = 0) -> LaneLoad:
    return LaneLoad(
        waiting=waiting, running=running, work_s=work_s, due=tuple(Due(in_s=left, work_s=work) for left, work in due)
    )


@pytest.mark.parametrize(
    ("what", "queue", "expected"),
    [
        ("nothing to do", load(0, 0), 0),
        ("one short job", load(1, 5), 1),
        ("work that nobody can predict", load(9, 0), 1),
        ("a minute's work of two", load(20, 120), 2),
        ("a little more than that", load(20, 121), 3),
        ("one long job is one worker's", load(1, 3600), 1),
        ("more than is allowed", load(100, 36000), 8),
        ("due soon", load(4, 160, (40, 80), (40, 80)), 4),
        ("due late", load(4, 160, (600, 80), (600, 80)), 3),
        ("due before help can come", load(4, 40, (1, 40)), 2),
        ("due already", load(4, 40, (-5, 40)), 2),
        ("only running", load(0, 30, running=1), 1),
    ],
)
def test_replicas_for(what: str, queue: LaneLoad, expected: int) -> None:
    assert replicas_for(queue, BOUNDS) == expected, what


def test_the_last_replicas_stay_where_an_operator_says_so() -> None:
    assert replicas_for(load(0, 0), ScalingBounds(min_replicas=2, max_replicas=4)) == 2


@pytest.mark.parametrize(("streams", "expected"), [(0, 0), (0.2, 1), (0.7, 1), (0.8, 2), (1.5, 3), (99, 8)])
def test_groups_leave_room_for_the_next_stream(streams: float, expected: int) -> None:
    assert groups_for(streams, BOUNDS) == expected


@given(
    waiting=st.integers(0, 50),
    work=st.floats(0, 10_000),
    due=st.lists(st.tuples(st.floats(-10, 1000), st.floats(0, 500)), max_size=5),
)
def test_never_out_of_bounds_nor_more_than_jobs(waiting: int, work: float, due: list[tuple[float, float]]) -> None:
    needed = replicas_for(load(waiting, work, *due), BOUNDS)
    assert 0 <= needed <= min(8, waiting)
    assert (needed == 0) == (waiting == 0)


@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"min_replicas": 3, "max_replicas": 2}, "min_replicas"),
        ({"min_replicas": 0, "max_replicas": 0}, "max_replicas"),
        ({"min_replicas": 0, "max_replicas": 1, "target_wait_s": 0}, "target_wait_s"),
    ],
)
def test_impossible_bounds_are_refused_by_name(values: dict[str, int], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        ScalingBounds(**values)


def test_up_at_once_and_down_when_less_was_enough_for_long() -> None:
    scaler = Scaler(BOUNDS)
    assert scaler.decide(0, load(1, 5), current=3) == 3, "what runs at first is not cut down before it is known"
    assert scaler.decide(10, load(9, 300), current=3) == 5
    assert scaler.decide(20, load(9, 120), current=5) == 5
    assert scaler.decide(310, load(9, 60), current=5) == 5
    assert scaler.decide(311, load(9, 60), current=5) == 2, "the most that was needed since"
    assert scaler.decide(621, load(0, 0), current=2) == 0
    assert scaler.decide(700, load(9, 240), current=0) == 4


def test_replicas_that_keep_the_queue_short_are_not_taken_for_idle() -> None:
    scaler = Scaler(BOUNDS)
    for now in range(900):
        kept = scaler.decide(now, load(0, 20, running=2 if now % 4 else 1), current=2)
    assert kept == 2
    for now in range(900, 1300):
        kept = scaler.decide(now, load(0, 3600, running=1), current=2)
    assert kept == 1, "one long job keeps one of them busy, and a second could not help"


def simulate(
    arrivals_per_s: list[float], *, job_s: float, bounds: ScalingBounds, draw: Callable[[float], float]
) -> list[int]:
    """Run a queue second by second; replicas come `start_s` after they are asked for, and go at once."""
    scaler = Scaler(bounds)
    work, target, asked, history = 0.0, 1, [1], []
    for now, rate in enumerate(arrivals_per_s):
        work += job_s * draw(rate)
        ready = min(asked[max(0, now - math.ceil(bounds.start_s)) :])
        jobs = math.ceil(work / job_s)
        running = min(jobs, ready)
        target = scaler.decide(now, load(jobs - running, work, running=running), current=target)
        work = max(0.0, work - running)
        asked.append(target)
        history.append(target)
    return history


def num_changes(history: list[int]) -> int:
    return sum(before != after for before, after in itertools.pairwise(history))


@pytest.mark.parametrize("every_s", [20, 7, 4, 2.5])
def test_a_load_that_stays_changes_nothing_once_it_has_settled(every_s: float) -> None:
    arrivals = [float(int((now + 1) / every_s) - int(now / every_s)) for now in range(2400)]
    history = simulate(arrivals, job_s=10, bounds=BOUNDS, draw=lambda rate: rate)
    assert num_changes(history[1800:]) <= 2, history
    assert history[-1] >= 10 / every_s


@pytest.mark.parametrize("busy", [0.5, 1.5, 2.5, 4.0])
def test_a_load_that_comes_at_random_changes_little(busy: float) -> None:
    changes = [
        num_changes(
            simulate([busy / 10] * 3600, job_s=10, bounds=BOUNDS, draw=np.random.default_rng(seed).poisson)[1800:]
        )
        for seed in range(5)
    ]
    assert np.mean(changes) <= 4, "in half an hour"


def test_a_burst_is_met_and_let_go() -> None:
    quiet, burst = [0.05] * 900, [0.6] * 300
    history = simulate(quiet + burst + quiet, job_s=10, bounds=BOUNDS, draw=np.random.default_rng(0).poisson)
    assert history[899] <= 2
    assert max(history[900:1300]) >= 6
    assert history[-1] <= 2


def test_an_idle_path_costs_nothing() -> None:
    history = simulate([0.1] * 100 + [0.0] * 700, job_s=10, bounds=BOUNDS, draw=np.random.default_rng(0).poisson)
    assert history[-1] == 0
