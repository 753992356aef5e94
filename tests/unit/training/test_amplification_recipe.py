"""Calibrating amplification: the weakest setting that does as well as the best, and a document that can be read."""

import dataclasses

import pytest

from reprise.chorus.gains import AmplificationConfig
from reprise.wan.presets import tiny_4step
from training.amplification import calibrate, choose, every_setting
from training.pairs import draw_pairs


def test_settings_rise_in_strength_from_none() -> None:
    settings = every_setting()
    assert settings[0] == AmplificationConfig(key_peak=1.0, output_peak=1.0, decay=1.0)
    assert (settings[-1].key_peak, settings[-1].output_peak, settings[-1].floor) == (4.0, 1.3, 1.0)
    assert len(set(settings)) == len(settings)


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ([[5, 5, 6, 6], [5, 6, 6, 7], [5, 5, 6, 6], [5, 6, 7, 7]], 3),
        ([[5, 6, 5], [5, 6, 6], [6, 7, 6]], 1),
        ([[7, 7, 7], [6, 6, 6]], 0),
        ([[3, 5, 5], [6, 5, 5], [6, 7, 6]], 0),
        ([[3, 5, 6]], 0),
    ],
)
def test_gains_are_chosen_only_where_they_clearly_help(found: list[list[int]], chosen: int) -> None:
    assert choose(found) == chosen


def test_a_calibration_tries_every_setting() -> None:
    preset = dataclasses.replace(tiny_4step(), transformer_path=None, default_num_frames=5)
    pairs = draw_pairs(1, edges=(0.75,), seed=3, edits_only=True)
    document = calibrate(preset, pairs, workers=1)
    assert len(document["tried"]) == len(every_setting())
    assert AmplificationConfig(**document["amplification"]) in every_setting()
