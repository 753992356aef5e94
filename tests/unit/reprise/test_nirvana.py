"""The NIRVANA baseline is a table of the same code: K by similarity, stage 1 only, other N rescaled."""

import functools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.chorus.plan import Candidate, MissReason, ReuseMode, plan_reuse
from reprise.chorus.stages import NO_REUSE, StageBoundaries, many_step_map, nirvana_map


def candidate(score: float, *, source_id: str = "s", num_steps: int = 50) -> Candidate:
    return Candidate(
        source_id=source_id,
        matching_score=score,
        prompt=source_id,
        seed=1,
        num_steps=num_steps,
        stored_steps=nirvana_map().reachable_steps(num_steps=num_steps),
    )


@pytest.mark.parametrize(
    ("score", "k"),
    [(0.6499, 0), (0.66, 5), (0.7499, 5), (0.76, 10), (0.86, 15), (0.8999, 15), (0.91, 20), (0.9499, 20), (0.96, 25)],
)
def test_k_by_similarity(score: float, k: int) -> None:
    assert nirvana_map().stage_boundaries(score, num_steps=50) == StageBoundaries(k1=k, k2=k)


def test_the_five_states_are_stored() -> None:
    assert nirvana_map().reachable_steps(num_steps=50) == (5, 10, 15, 20, 25)


@given(score=st.floats(-1, 1), num_steps=st.integers(1, 120))
def test_stage_2_is_always_empty(score: float, num_steps: int) -> None:
    boundaries = nirvana_map().stage_boundaries(score, num_steps=num_steps)
    assert boundaries.k1 == boundaries.k2
    if score < 0.65:
        assert boundaries == NO_REUSE


@pytest.mark.parametrize(
    ("num_steps", "steps"),
    [(100, (10, 20, 30, 40, 50)), (20, (2, 4, 6, 8, 10)), (4, (1, 2))],
)
def test_other_numbers_of_steps_have_the_same_shares(num_steps: int, steps: tuple[int, ...]) -> None:
    assert nirvana_map(num_steps=num_steps).reachable_steps(num_steps=num_steps) == steps


def test_plan_takes_the_most_similar_source_at_its_k() -> None:
    found = [candidate(0.78, source_id="near"), candidate(0.93, source_id="nearest")]
    nirvana = functools.partial(
        plan_reuse, prompt="new", seed=2, num_steps=50, stage_map=many_step_map(), mode=ReuseMode.NIRVANA
    )
    plan = nirvana(candidates=found)
    assert (plan.source_id, plan.boundaries) == ("nearest", StageBoundaries(k1=20, k2=20))
    miss = nirvana(candidates=[candidate(0.6)])
    assert miss.reason is MissReason.BELOW_THRESHOLD
