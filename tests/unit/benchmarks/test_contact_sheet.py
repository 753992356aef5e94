"""A contact sheet shows every clip's first and last frame where its row is."""

import pathlib

import numpy as np
from PIL import Image

from benchmarks.contact_sheet import CELL, GAP, LABEL_WIDTH, NUM_COLUMNS, TITLE_HEIGHT, Block, evenly, save_sheet


def test_frames_are_spread_from_first_to_last() -> None:
    assert evenly(17) == [0, 3, 6, 10, 13, 16]
    assert evenly(1) == [0] * NUM_COLUMNS


def test_rows_hold_their_clips_in_order(tmp_path: pathlib.Path) -> None:
    ramp = np.arange(0, 170, 10, dtype=np.uint8)
    rising = np.broadcast_to(ramp[:, None, None, None], (17, 8, 8, 3)).copy()
    falling = rising[::-1].copy()
    block = Block(title="title", clips={"rising": rising, "falling": falling})
    path = tmp_path / "sheet.png"
    save_sheet([block, block], path)
    sheet = np.asarray(Image.open(path))
    assert sheet.shape == (2 * (TITLE_HEIGHT + 2 * (CELL + GAP)), LABEL_WIDTH + NUM_COLUMNS * (CELL + GAP), 3)
    columns = [LABEL_WIDTH + column * (CELL + GAP) for column in (0, NUM_COLUMNS - 1)]
    for top in (TITLE_HEIGHT, 2 * TITLE_HEIGHT + 2 * (CELL + GAP)):
        assert [int(sheet[top, column, 0]) for column in columns] == [0, 160]
        assert [int(sheet[top + CELL + GAP, column, 0]) for column in columns] == [160, 0]
