"""The trajectory benchmark gives the keys it promises, and its measure is a PSNR."""

import json
import sys

import numpy as np
import pytest

from benchmarks import trajectory
from benchmarks.trajectory import BEST_PSNR, STORAGES, Storage, grid_for, psnr
from reprise.chorus.grid import make_grid
from reprise.chorus.stages import StageMap, StageRow


def test_json_holds_every_setting_and_the_summary(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["trajectory", "--json", "--pairs", "2", "--steps", "6"])
    trajectory.main()
    document = json.loads(capsys.readouterr().out)
    assert document["summary"].keys() >= {"bytes_share", "score_loss"}
    rows = {(row["dtype"], row["max_gap_share"]): row for row in document["rows"]}
    assert len(rows) == len(STORAGES)
    exact, default, coarse = rows["float32", 0.1], rows["float16", 0.1], rows["float16", 0.4]
    # At six steps the default grid stores every step up to 0.8 N, so float32 rebuilds exactly.
    assert (exact["latent_psnr_least"], exact["video_psnr_least"]) == (BEST_PSNR, BEST_PSNR)
    assert exact["score_loss"] == 0
    assert exact["bytes_share"] == 2 * default["bytes_share"]
    assert exact["bytes_share"] == pytest.approx(4 / 6)
    assert document["summary"]["bytes_share"] == default["bytes_share"]
    assert default["bytes_per_entry"] == 4 * 2 * document["parameters"]["exact_bytes"] // (6 * 4)
    assert coarse["points"] == 2
    assert coarse["latent_psnr_mean"] < default["latent_psnr_mean"] < BEST_PSNR


@pytest.mark.parametrize("config", STORAGES)
def test_starts_lie_between_grid_points_at_50_steps(config: Storage) -> None:
    grid = grid_for(config, num_steps=50)
    assert grid.steps[-1] == 40
    assert all(len(grid.bracket(round(share * 50))) == 2 for share in trajectory.START_SHARES)


def test_psnr_of_a_known_error() -> None:
    exact = np.zeros((4, 4), np.float32)
    assert psnr(exact, exact + 1, peak=10.0) == pytest.approx(20.0)
    assert psnr(exact, exact, peak=10.0) == BEST_PSNR


def test_the_default_grid_is_the_one_that_is_stored() -> None:
    rows = (StageRow(min_score=0.0, k1=40, k2=40),)
    stored = make_grid(StageMap(tau=0.0, num_steps=50, rows=rows), num_steps=50)
    assert grid_for(trajectory.DEFAULT, num_steps=50) == stored
