"""Fitting TeaCache: the polynomial is found again, thresholds stop at the first loss, scenes are those asked for."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from reprise.teacache import TeaCacheConfig
from reprise.tinyworld import is_held_out, render_scene
from training.teacache_fit import (
    LEAST_PSNR,
    Trial,
    choose_threshold,
    compare,
    draw_scenes,
    fit_polynomial,
    relative_changes,
)


def trial(threshold: float, lost: float, video_psnr: float = LEAST_PSNR) -> Trial:
    return Trial(threshold=threshold, skipped_share=0.5, attributes_lost=lost, video_psnr=video_psnr)


def test_polynomial_is_found_again_highest_power_first() -> None:
    coefficients = (5.0, -4.0, 3.0, -0.5, 0.1)
    distances = np.linspace(0.02, 0.9, 40)
    assert fit_polynomial(list(distances), list(np.polyval(coefficients, distances))) == pytest.approx(coefficients)


def test_changes_are_relative_to_the_earlier_output() -> None:
    outputs = [torch.full((2, 2), value) for value in (2.0, 3.0, -3.0)]
    assert relative_changes(outputs) == pytest.approx([0.5, 2.0])


def test_threshold_is_the_last_before_the_first_loss() -> None:
    trials = [trial(0.1, 0.0), trial(0.2, 0.01), trial(0.3, 0.02), trial(0.4, -0.1)]
    assert choose_threshold(trials, bound=0.01) == 0.2
    assert choose_threshold(trials, bound=0.02) == 0.4
    assert choose_threshold(trials[2:], bound=0.01) == 0.0
    assert choose_threshold([trial(0.1, 0.0), trial(0.2, 0.0, LEAST_PSNR - 0.1)], bound=0.01) == 0.1


@given(losses=st.lists(st.floats(-0.2, 0.2), max_size=8), bound=st.floats(0, 0.2))
def test_no_threshold_up_to_the_chosen_one_loses_more(losses: list[float], bound: float) -> None:
    trials = [trial((index + 1) / 10, lost) for index, lost in enumerate(losses)]
    chosen = choose_threshold(trials, bound=bound)
    assert all(item.attributes_lost <= bound for item in trials if item.threshold <= chosen)


def test_scenes_are_held_out_or_not_and_repeat_from_their_seed() -> None:
    for held_out in (True, False):
        scenes = draw_scenes(4, held_out=held_out, seed=3)
        assert [is_held_out(scene) for scene, _ in scenes] == [held_out] * 4
        assert scenes == draw_scenes(4, held_out=held_out, seed=3)


def test_a_trial_counts_what_the_full_clip_shows_and_the_other_does_not() -> None:
    scenes = [scene for scene, _ in draw_scenes(2, held_out=True, seed=3)]
    full = [render_scene(scene, 5, np.random.default_rng(0)).frames_THWC for scene in scenes]
    config = TeaCacheConfig(threshold=0.1, coefficients=(1.0,))
    same = compare(config, scenes, full, full, skipped_share=0.5)
    assert (same.attributes_lost, same.threshold, same.skipped_share) == (0.0, 0.1, 0.5)
    black = [np.zeros_like(clip) for clip in full]
    worse = compare(config, scenes, full, black, skipped_share=0.5)
    assert worse.attributes_lost > 0.5
    assert worse.video_psnr < same.video_psnr
