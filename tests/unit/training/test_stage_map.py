"""Calibrating F: the largest step under the bound, never falling with m, and a table that survives storage."""

import dataclasses
import json

from hypothesis import given
from hypothesis import strategies as st

from reprise.chorus.stages import stage_map_from_json
from training.stage_map import EDGES, MIN_PAIRS, STEPS, PairLoss, draw_pairs, fit

pair_losses = st.builds(
    PairLoss,
    score=st.floats(EDGES[0], 1.0),
    losses=st.tuples(*[st.floats(-0.2, 1.0) for _ in STEPS]),
)


def bin_of(score: float, *losses: float) -> list[PairLoss]:
    return [PairLoss(score=score, losses=losses) for _ in range(MIN_PAIRS)]


def test_a_bin_takes_the_largest_step_under_the_bound() -> None:
    low, high = bin_of(0.7, 0.0, 0.04, 0.2, 0.3, 0.4, 0.5), bin_of(0.97, 0.0, 0.0, 0.0, 0.0, 0.05, 0.06)
    table = fit([*low, *high], num_steps=50, bound=0.05)
    assert [(row.min_score, row.k1) for row in table.rows] == [(0.65, 5), (0.75, 5), (0.85, 5), (0.95, 20)]


def test_nothing_is_reused_where_every_step_costs_too_much() -> None:
    assert fit(bin_of(0.7, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6), num_steps=50, bound=0.05).rows == ()


@given(st.lists(pair_losses, max_size=40), st.floats(0, 0.5))
def test_k1_never_falls_with_m_whatever_was_measured(measured: list[PairLoss], bound: float) -> None:
    table = fit(measured, num_steps=50, bound=bound)  # the table's own constructor refuses a falling row
    document = json.dumps({"table": dataclasses.asdict(table), "recipe": "x"})
    assert stage_map_from_json(document) == table


def test_pairs_reach_tau_and_repeat_from_their_seed() -> None:
    pairs = draw_pairs(6, seed=3)
    assert all(pair.score >= EDGES[0] for pair in pairs)
    assert pairs == draw_pairs(6, seed=3)
