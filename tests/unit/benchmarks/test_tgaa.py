"""The two amplification benchmarks give every row they promise, and toggle what they say."""

import dataclasses
import json
import pathlib
import sys
from typing import Any

import pytest
from PIL import Image

from benchmarks import tgaa_fig10, tgaa_table2
from benchmarks.ablation import FALLBACK, draw_hits
from benchmarks.tgaa_fig10 import KEY_PEAKS, OUTPUT_PEAKS, Point, best_of, grid_around, spread
from benchmarks.tgaa_table2 import BOTH, FULL, KEY, OUTPUT, STAGE1, arms_of, setting_for
from reprise.chorus.gains import AmplificationConfig
from reprise.wan.presets import ModelPreset, tiny_4step
from training.pairs import PRESETS

STRONG = AmplificationConfig(key_peak=4.0, output_peak=1.5, decay=1.0)


def small() -> ModelPreset:
    return dataclasses.replace(tiny_4step(), transformer_path=None, default_num_frames=5, amplification=STRONG)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setitem(PRESETS, "tiny-4step", small)

    def run_main(module: Any, *arguments: str) -> Any:
        monkeypatch.setattr(sys, "argv", [module.__name__, "--json", "--pairs", "2", *arguments])
        module.main()
        return json.loads(capsys.readouterr().out)

    return run_main


def test_table2_has_its_rows_and_summary(run: Any) -> None:
    document = run(tgaa_table2)
    rows = {row["arm"]: row for row in document["rows"]}
    assert list(rows) == [FULL, STAGE1, OUTPUT, KEY, BOTH]
    assert [row["token_share"] for row in rows.values()] == [1.0, 0.5, 0.5, 0.5, 0.5]
    assert rows[FULL]["speedup"] == 1.0
    assert rows[STAGE1]["score_gain"] == 0.0
    summary = document["summary"]
    wanted = {f"{name}_{arm}" for name in ("score", "clip_score", "target_wins") for arm in ("stage1", "both")}
    assert summary.keys() == wanted | {"speedup_both", "overhead_both"}
    assert summary["score_both"] == rows[BOTH]["score"]
    assert summary["clip_score_both"] != summary["clip_score_stage1"]
    assert (document["parameters"]["k1"], document["parameters"]["key_peak"]) == (2, 4.0)


def test_arms_toggle_one_half_each_from_one_plan() -> None:
    preset = small()
    (pair,) = draw_hits(preset, 1, seed=0)
    arms = arms_of(preset, pair, STRONG, k1=2)
    halves = {name: arm.preset.amplification for name, arm in arms.items() if name != FULL}
    assert halves == {
        STAGE1: None,
        OUTPUT: AmplificationConfig(key_peak=1.0, output_peak=1.5, decay=1.0),
        KEY: AmplificationConfig(key_peak=4.0, output_peak=1.0, decay=1.0),
        BOTH: STRONG,
    }
    assert not arms[FULL].plan.is_hit
    assert len({id(arm.plan) for name, arm in arms.items() if name != FULL}) == 1
    assert (arms[BOTH].plan.boundaries.k1, arms[BOTH].plan.boundaries.k2) == (2, 2)


def test_halves_that_the_calibration_left_alone_are_ablated_at_the_fallback() -> None:
    weak = AmplificationConfig(key_peak=1.0, output_peak=1.5, decay=2.0)
    tried, notes = setting_for(dataclasses.replace(small(), amplification=weak))
    assert tried == AmplificationConfig(key_peak=FALLBACK.key_peak, output_peak=1.5, decay=2.0)
    assert "in place of" in notes[-1]
    assert setting_for(small()) == (STRONG, [])


def test_fig10_has_every_point_twice_and_draws_its_sheet(run: Any, tmp_path: pathlib.Path) -> None:
    sheet = tmp_path / "sheet.png"
    document = run(tgaa_fig10, "--contact-sheet", str(sheet))
    full, *rows = document["rows"]
    grid = grid_around(STRONG)
    assert full["arm"] == FULL
    for kind in (False, True):
        peaks = [(row["key_peak"], row["output_peak"]) for row in rows if row["m_as_tau"] is kind]
        assert peaks == [(setting.key_peak, setting.output_peak) for setting in grid]
    by_name = {row["arm"]: row for row in rows}
    # No gain is no gain at any m; a far too strong one tells m from tau.
    plain, forced = (by_name[f"key 1, output 1{suffix}"] for suffix in ("", ", m = tau"))
    assert (plain["score"], plain["clip_score"]) == (forced["score"], forced["clip_score"])
    name = f"key {KEY_PEAKS[-1]:g}, output 1.5"
    assert by_name[name]["clip_score"] != by_name[f"{name}, m = tau"]["clip_score"]
    assert document["summary"].keys() >= {
        "best_key_peak",
        "best_output_peak",
        "score_weak",
        "score_best",
        "flicker_overoutput",
    }
    assert document["summary"]["score_best"] == max(row["score"] for row in rows if not row["m_as_tau"])
    assert Image.open(sheet).size[1] > 2 * 7 * 96


def test_the_grid_moves_one_peak_at_a_time_and_repeats_none() -> None:
    grid = grid_around(STRONG)
    assert (grid[0].key_peak, grid[0].output_peak) == (1.0, 1.0)
    assert grid[1] == STRONG
    assert len(set(grid)) == len(grid) == 2 + len(KEY_PEAKS) + len(OUTPUT_PEAKS)
    assert all(setting.key_peak == 4.0 or setting.output_peak == 1.5 for setting in grid[1:])
    plain = grid_around(grid[0])
    assert len(plain) == len(KEY_PEAKS) + len(OUTPUT_PEAKS) - 1


def test_the_weakest_of_equals_is_best() -> None:
    peaks = ((3.0, 1.0, 2.0), (2.0, 1.3, 2.0), (2.0, 1.0, 2.0), (1.0, 1.0, 0.0))
    rows: dict[Point, dict[str, float]] = {}
    for key, output, gain in peaks:
        setting = AmplificationConfig(key_peak=key, output_peak=output, decay=1.0)
        rows[Point(setting=setting, m_as_tau=False)] = {"score_gain": gain}
        rows[Point(setting=setting, m_as_tau=True)] = {"score_gain": -gain}
    best = [best_of(rows, m_as_tau=kind) for kind in (False, True)]
    assert [(point.setting.key_peak, point.m_as_tau) for point in best] == [(2.0, False), (1.0, True)]
    assert best[0].setting.output_peak == 1.0


def test_the_sheet_spreads_over_m() -> None:
    pairs = draw_hits(small(), 9, seed=2)
    scores = sorted(pair.score for pair in pairs)
    assert [pair.score for pair in spread(pairs)] == [scores[place] for place in (0, 3, 5, 8)]
    assert len(spread(pairs[:1])) == 1
