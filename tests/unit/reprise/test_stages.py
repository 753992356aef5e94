"""Properties of F(m; N)."""

import math

import pytest
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler
from hypothesis import given, settings
from hypothesis import strategies as st

from reprise.chorus.stages import NO_REUSE, StageBoundaries, StageMap, StageRow, few_step_map, many_step_map
from reprise.sampling import new_solver

scores = st.floats(-1.0, 1.0)


@st.composite
def stage_maps(draw: st.DrawFn) -> StageMap:
    num_steps = draw(st.integers(2, 60))
    tau = draw(st.floats(-1.0, 1.0))
    min_scores = sorted(draw(st.sets(st.floats(tau, 1.0), max_size=5)))
    count = len(min_scores)
    steps = st.lists(st.integers(0, num_steps), min_size=count, max_size=count)
    pairs = [sorted(pair) for pair in zip(sorted(draw(steps)), sorted(draw(steps)), strict=True)]
    rows = [StageRow(min_score=m, k1=k1, k2=k2) for m, (k1, k2) in zip(min_scores, pairs, strict=True)]
    return StageMap(tau=tau, num_steps=num_steps, rows=tuple(rows))


@given(stage_map=stage_maps(), m=scores, other=scores, num_steps=st.integers(1, 120))
def test_boundaries_are_in_order_and_never_fall_as_the_score_grows(
    stage_map: StageMap, m: float, other: float, num_steps: int
) -> None:
    low, high = (stage_map.stage_boundaries(score, num_steps=num_steps) for score in sorted((m, other)))
    assert 0 <= low.k1 <= low.k2 <= num_steps
    assert low.k1 <= high.k1
    assert low.k2 <= high.k2


@given(stage_map=stage_maps(), m=scores, num_steps=st.integers(1, 120))
def test_under_tau_nothing_is_reused(stage_map: StageMap, m: float, num_steps: int) -> None:
    if m < stage_map.tau:
        assert stage_map.stage_boundaries(m, num_steps=num_steps) == NO_REUSE


@given(stage_map=stage_maps(), m=scores)
def test_own_number_of_steps_reads_the_table(stage_map: StageMap, m: float) -> None:
    rows = [row for row in stage_map.rows if row.min_score <= m]
    expected = StageBoundaries(k1=rows[-1].k1, k2=rows[-1].k2) if rows else NO_REUSE
    assert stage_map.stage_boundaries(m, num_steps=stage_map.num_steps) == expected


@given(stage_map=stage_maps(), m=scores, num_steps=st.integers(1, 120))
def test_reachable_steps_hold_every_boundary(stage_map: StageMap, m: float, num_steps: int) -> None:
    boundaries = stage_map.stage_boundaries(m, num_steps=num_steps)
    assert {boundaries.k1, boundaries.k2} - {0} <= set(stage_map.reachable_steps(num_steps=num_steps))


@settings(max_examples=40, deadline=None)
@given(step=st.integers(1, 49), num_steps=st.integers(1, 120), is_euler=st.booleans())
def test_other_step_counts_never_start_at_less_noise_than_the_table_allows(
    step: int, num_steps: int, is_euler: bool
) -> None:
    scheduler = (
        FlowMatchEulerDiscreteScheduler(shift=3.0)
        if is_euler
        else UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0)
    )
    stage_map = StageMap(tau=0.5, num_steps=50, rows=(StageRow(min_score=0.5, k1=step, k2=step),))
    k1 = stage_map.stage_boundaries(1.0, num_steps=num_steps).k1
    allowed = new_solver(scheduler, num_steps=50).sigmas[step]
    assert new_solver(scheduler, num_steps=num_steps).sigmas[k1] >= allowed - 1e-6


def test_defaults() -> None:
    assert (many_step_map().tau, few_step_map().tau) == (0.65, 0.75)
    assert many_step_map().stage_boundaries(0.649, num_steps=50) == NO_REUSE
    assert many_step_map().stage_boundaries(0.65, num_steps=50) == StageBoundaries(k1=5, k2=5)
    assert many_step_map().stage_boundaries(1.0, num_steps=50).k1 == 25
    assert many_step_map().reachable_steps(num_steps=50) == (5, 10, 15, 20, 25)
    assert few_step_map().reachable_steps(num_steps=4) == (1, 2)


def test_score_that_is_not_a_number_reuses_nothing() -> None:
    assert many_step_map().stage_boundaries(math.nan, num_steps=50) == NO_REUSE


@pytest.mark.parametrize(("k1", "k2"), [(-1, 0), (3, 2)])
def test_boundaries_out_of_order_are_refused(k1: int, k2: int) -> None:
    with pytest.raises(ValueError, match=f"k1={k1}, k2={k2}"):
        StageBoundaries(k1=k1, k2=k2)


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (((0.5, 1, 1),), "tau=0.6.*min_score=0.5"),
        (((0.7, 3, 2),), "k1=3, k2=2"),
        (((0.7, 1, 11),), "num_steps=10.*k2=11"),
        (((0.7, 2, 2), (0.8, 1, 2)), "k1=2.* before .*k1=1"),
        (((0.7, 1, 3), (0.8, 1, 2)), "k2=3.* before .*k2=2"),
        (((0.8, 1, 1), (0.8, 2, 2)), "min_score=0.8.* before .*min_score=0.8"),
        (((math.nan, 1, 1),), "min_score=nan"),
    ],
)
def test_table_that_is_not_monotone_is_refused_by_its_values(
    rows: tuple[tuple[float, int, int], ...], named: str
) -> None:
    with pytest.raises(ValueError, match=named):
        StageMap(tau=0.6, num_steps=10, rows=tuple(StageRow(min_score=m, k1=k1, k2=k2) for m, k1, k2 in rows))


@pytest.mark.parametrize(("tau", "num_steps", "named"), [(1.5, 50, "1.5"), (math.nan, 50, "nan"), (0.6, 1, "1")])
def test_impossible_table_is_refused(tau: float, num_steps: int, named: str) -> None:
    with pytest.raises(ValueError, match=f"got {named}"):
        StageMap(tau=tau, num_steps=num_steps, rows=())


def test_a_table_moved_to_another_tau_gives_what_it_gave_for_scores_moved_alike() -> None:
    moved = many_step_map().moved_to(0.5)
    assert moved.tau == 0.5
    for score in (0.49, 0.5, 0.59, 0.6, 0.77, 0.82):
        expected = many_step_map().stage_boundaries(round(score + 0.15, 6), num_steps=50)
        assert moved.stage_boundaries(score, num_steps=50) == expected


def test_a_table_moved_up_ends_at_one() -> None:
    moved = few_step_map().moved_to(0.8)
    assert [row.min_score for row in moved.rows] == [0.8, 1.0]
