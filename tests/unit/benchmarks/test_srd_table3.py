"""The region benchmark takes pairs that have a region, and counts those too large to pay."""

import dataclasses
import itertools
import json
import sys

import pytest

from benchmarks import srd_table3
from benchmarks.srd_table3 import BOUNDARIES, DENSE, FULL, RADII, find_cases, name_of
from reprise.wan.presets import ModelPreset, tiny, tiny_4step
from training.pairs import PRESETS, Studio, keep_all


def small() -> ModelPreset:
    return dataclasses.replace(tiny_4step(), transformer_path=None, default_num_frames=5)


def test_cases_name_an_object_that_was_found() -> None:
    studio = Studio(keep_all(small(), (1, 3)))
    for case in itertools.islice(find_cases(studio, seed=0), 2):
        plan = case.arms[name_of((0, 0))].plan
        assert plan.boundaries == BOUNDARIES[4]
        assert plan.region_phrase in case.stored.masks
        assert case.stored.masks[str(plan.region_phrase)].any()
        assert {arm.plan.boundaries.k1 for name, arm in case.arms.items() if name != FULL} == {1}
        assert case.arms[DENSE].plan.boundaries.k2 == 1
        assert set(case.stored.trajectory) >= set(plan.source_steps)


def test_json_holds_every_radius_and_the_summary(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(PRESETS, "tiny-4step", small)
    monkeypatch.setattr(srd_table3, "RADII", (*RADII, (8, 8)))
    monkeypatch.setattr(sys, "argv", ["srd_table3", "--json", "--pairs", "2"])
    srd_table3.main()
    document = json.loads(capsys.readouterr().out)
    rows = {row["arm"]: row for row in document["rows"]}
    assert list(rows) == [FULL, DENSE, *map(name_of, RADII), name_of((8, 8))]
    assert (rows[DENSE]["token_share"], rows[DENSE]["score_loss"]) == (0.75, 0.0)
    none, one = rows[name_of((0, 0))], rows[name_of((0, 1))]
    assert 0 < none["compute"] < one["compute"] < 1
    assert none["edit_share"] == none["compute"] > 0
    assert one["edit_share"] == none["edit_share"]
    assert none["token_share"] == pytest.approx((2 * none["compute"] + 1) / 4)
    # A region of the whole picture falls back: dense, in the score and the times, not in the region's own columns.
    whole = rows[name_of((8, 8))]
    assert (whole["too_large"], whole["regions"], whole["compute"]) == (2, 0, None)
    assert (whole["score"], whole["clip_score"]) == (rows[DENSE]["score"], rows[DENSE]["clip_score"])
    assert all(row["too_large"] + row["regions"] == 2 for name, row in rows.items() if name.startswith("SRD"))
    assert document["summary"].keys() >= {"compute_00", "speedup_00", "speedup_default", "score_loss_default"}
    assert document["summary"]["compute_00"] == none["compute"]


def test_the_bundled_presets_have_a_row() -> None:
    for preset in (tiny(), tiny_4step()):
        assert (preset.edit_radius, preset.see_radius) in RADII
        assert preset.num_inference_steps in BOUNDARIES
