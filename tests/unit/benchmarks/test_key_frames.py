"""The key-frame benchmark: its measure on known masks, its keys, and the real clip where it is installed."""

import json
import pathlib
import sys

import numpy as np
import pytest

from benchmarks import key_frames
from benchmarks.key_frames import REAL_RADIUS, compare, read_real_mask, spread
from load_tests.traces import DATA

CLIP = DATA / "masks" / "car-shadow"


def test_overlap_counts_cells_of_the_latent_grid() -> None:
    true = np.zeros((5, 16, 32), np.bool_)
    true[:, 0, 0] = True
    true[4, 0, 31] = True
    marked = np.zeros_like(true)
    marked[:, 7, 7] = True
    overlap = compare(true, marked, radius=1)
    # Three true cells, of which the last one's neighbour but one is marked.
    assert (overlap.iou, overlap.recall, overlap.recall_edit) == pytest.approx((2 / 3,) * 3)
    assert overlap.coverage_edit == 8 / 16
    assert compare(true, marked, radius=3).recall_edit == 1


def test_json_holds_both_kinds_of_mask_and_the_summary(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    monkeypatch.setattr(key_frames, "DATA", tmp_path)
    monkeypatch.setattr(sys, "argv", ["key_frames", "--json", "--clips", "4"])
    key_frames.main()
    document = json.loads(capsys.readouterr().out)
    assert "REPRISE_DATA" in document["notes"][0]
    assert {(row["masks"], row["stride"]) for row in document["rows"]} == {
        (masks, stride) for masks in ("true", "segmenter") for stride in key_frames.STRIDES
    }
    assert document["summary"]["tiny_segmenter_recall_edit"] > 0.9


@pytest.mark.skipif(not CLIP.is_dir(), reason=f"needs the clip {CLIP}: set REPRISE_DATA to the folder that has it")
def test_key_frames_of_a_real_clip_cover_its_object() -> None:
    mask = read_real_mask(CLIP)
    assert mask.shape == (13, 480, 832)
    overlap = compare(mask, spread(mask, stride=4), radius=REAL_RADIUS)
    # What docs quote: python -m benchmarks.key_frames.
    assert overlap.iou == pytest.approx(0.909, abs=0.001)
    assert overlap.recall_edit == 1
    assert compare(mask, mask, radius=0).iou == 1
