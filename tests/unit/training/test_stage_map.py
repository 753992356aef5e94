"""Calibrating F: the largest step under the bound, never falling with m, and a table that survives storage."""

import dataclasses
import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reprise.chorus.stages import stage_map_from_json
from training.stage_map import EDGES, STEPS, PairLoss, bin_of, draw_pairs, fit, mean_losses, smooth

NOTHING = [1.0] * len(STEPS)
mean_tables = st.lists(
    st.lists(st.floats(-2, 4), min_size=len(STEPS), max_size=len(STEPS)), min_size=len(EDGES), max_size=len(EDGES)
)


def test_a_bin_takes_the_largest_step_within_the_bound() -> None:
    low, high = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5], [0.0, 0.0, 0.0, 0.0, 0.05, 0.3, 0.3]
    table = fit([NOTHING, low, high, high], num_steps=50, bound=0.1)
    assert [(row.min_score, row.k1) for row in table.rows] == [(0.75, 5), (0.85, 20), (0.95, 20)]


def test_noise_that_rises_with_m_is_averaged_out() -> None:
    lucky, unlucky = [0.0] * len(STEPS), [0.0, 0.0, 0.1, 0.2, 0.4, 0.6, 0.6]
    table = fit([lucky, lucky, lucky, unlucky], num_steps=50, bound=0.1)
    assert [row.k1 for row in table.rows] == [20, 20, 20, 20]  # a quarter of 0.4 is within the bound, of 0.6 is not


@given(mean_tables)
def test_smoothed_losses_never_rise_with_m_nor_fall_with_the_step(means: list[list[float]]) -> None:
    fitted = smooth(means)
    assert np.all(np.diff(fitted, axis=0) <= 1e-6)
    assert np.all(np.diff(fitted, axis=1) >= -1e-6)
    assert np.isclose(fitted.mean(), np.mean(means), atol=1e-6)


@given(mean_tables, st.floats(0, 0.5))
def test_table_survives_storage(means: list[list[float]], bound: float) -> None:
    table = fit(means, num_steps=50, bound=bound)  # the table's own constructor refuses a falling row
    document = json.dumps({"table": dataclasses.asdict(table), "recipe": "x"})
    assert stage_map_from_json(document) == table


def test_means_are_taken_by_bin() -> None:
    measured = [PairLoss(score=edge, losses=(edge, 1, 0, 0, 0, 0, loss)) for edge in EDGES for loss in (0.0, 1.0)]
    assert mean_losses(measured) == [[edge, 1, 0, 0, 0, 0, 0.5] for edge in EDGES]


def test_pairs_fill_every_bin_and_repeat_from_their_seed() -> None:
    pairs = draw_pairs(2, seed=3)
    assert sorted(bin_of(pair.score) for pair in pairs) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert pairs == draw_pairs(2, seed=3)
