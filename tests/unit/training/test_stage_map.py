"""Calibrating F: the largest step under the bound, never falling with m, and a table that survives storage."""

import dataclasses
import json

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from reprise.chorus.stages import stage_map_from_json
from reprise.wan.presets import tiny, tiny_4step
from training.pairs import draw_pairs
from training.stage_map import (
    EDGES,
    PairLoss,
    bin_of,
    calibrate,
    edges_of,
    largest_within,
    mean_losses,
    smooth,
    table_of,
)

STEPS = (3, 5, 10, 15, 20, 25, 30)
NOTHING = [1.0] * len(STEPS)
mean_tables = st.lists(
    st.lists(st.floats(-2, 4), min_size=len(STEPS), max_size=len(STEPS)), min_size=len(EDGES), max_size=len(EDGES)
)


def test_a_bin_takes_the_largest_step_within_the_bound() -> None:
    low, high = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5], [0.0, 0.0, 0.0, 0.0, 0.05, 0.3, 0.3]
    assert largest_within([NOTHING, low, high, high], STEPS, bound=0.1) == [0, 5, 20, 20]


def test_a_bin_without_pairs_takes_its_lower_neighbours_step() -> None:
    low = [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.5]
    assert largest_within([None, low, None, None], STEPS, bound=0.1) == [0, 5, 5, 5]


def test_noise_that_rises_with_m_is_averaged_out() -> None:
    lucky, unlucky = [0.0] * len(STEPS), [0.0, 0.0, 0.1, 0.2, 0.4, 0.6, 0.6]
    chosen = largest_within([lucky, lucky, lucky, unlucky], STEPS, bound=0.1)
    assert chosen == [20, 20, 20, 20]  # a quarter of 0.4 is within the bound, of 0.6 is not


@given(mean_tables)
def test_smoothed_losses_never_rise_with_m_nor_fall_with_the_step(means: list[list[float]]) -> None:
    fitted = smooth(means)
    assert np.all(np.diff(fitted, axis=0) <= 1e-6)
    assert np.all(np.diff(fitted, axis=1) >= -1e-6)
    assert np.isclose(fitted.mean(), np.mean(means), atol=1e-6)


@given(mean_tables, mean_tables, st.floats(0, 0.5))
def test_table_survives_storage(first: list[list[float]], second: list[list[float]], bound: float) -> None:
    k1s, k2s = (largest_within(means, STEPS, bound=bound) for means in (first, second))
    table = table_of(EDGES, k1s, k2s, num_steps=50)  # the table's own constructor refuses a falling row
    document = json.dumps({"table": dataclasses.asdict(table), "recipe": "x"})
    assert stage_map_from_json(document) == table


def test_means_are_taken_by_bin() -> None:
    measured = [PairLoss(score=edge, losses=(edge, 1, 0, loss)) for edge in EDGES[1:] for loss in (0.0, 1.0)]
    assert mean_losses(measured, EDGES) == [None, *([edge, 1, 0, 0.5] for edge in EDGES[1:])]


def test_pairs_fill_every_bin_and_repeat_from_their_seed() -> None:
    pairs = draw_pairs(2, edges=EDGES, seed=3)
    assert sorted(bin_of(pair.score, EDGES) for pair in pairs) == [0, 0, 1, 1, 2, 2, 3, 3]
    assert pairs == draw_pairs(2, edges=EDGES, seed=3)
    assert edges_of(tiny()) == EDGES
    assert edges_of(tiny_4step()) == EDGES[1:]


def test_a_calibration_gives_a_table_and_what_it_was_fitted_to() -> None:
    preset = dataclasses.replace(tiny_4step(), transformer_path=None, default_num_frames=5)
    pairs = draw_pairs(1, edges=edges_of(preset), seed=3)
    document = calibrate(preset, pairs, bound=7.0, workers=1)
    assert [row["k1"] for row in document["table"]["rows"]] == [3, 3, 3], "every loss is within the bound"
    assert [list(row["mean_loss_by_k1"]) for row in document["bins"]] == [["1", "2", "3"]] * 3
    assert stage_map_from_json(json.dumps(document)).tau == 0.75
