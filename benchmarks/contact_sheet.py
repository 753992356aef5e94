"""A contact sheet: clips as rows of evenly spaced frames, each row with its name, in one picture.

Knows nothing about what the clips are.

Shape letters: F frames, H, W pixels, C colour channels.
"""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

NUM_COLUMNS: Final = 6
CELL, GAP, LABEL_WIDTH, TITLE_HEIGHT = 96, 4, 190, 20
PAPER, INK = (255, 255, 255), (0, 0, 0)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Block:
    """Clips that belong together, under one title."""

    title: str
    clips: Mapping[str, NDArray[np.uint8]]
    """Frames (F, H, W, C) by the name of the row."""


def draw_sheet(blocks: Sequence[Block]) -> Image.Image:
    """Draw every block below the last one."""
    width = LABEL_WIDTH + NUM_COLUMNS * (CELL + GAP)
    height = sum(TITLE_HEIGHT + len(block.clips) * (CELL + GAP) for block in blocks)
    sheet = Image.new("RGB", (width, height), PAPER)
    pen = ImageDraw.Draw(sheet)
    y = 0
    for block in blocks:
        pen.text((GAP, y + GAP), block.title, fill=INK)
        y += TITLE_HEIGHT
        for name, frames_FHWC in block.clips.items():
            pen.text((GAP, y + CELL // 2), name, fill=INK)
            for column, frame in enumerate(evenly(len(frames_FHWC))):
                cell = Image.fromarray(frames_FHWC[frame]).resize((CELL, CELL), Image.Resampling.NEAREST)
                sheet.paste(cell, (LABEL_WIDTH + column * (CELL + GAP), y))
            y += CELL + GAP
    return sheet


def evenly(num_frames: int) -> list[int]:
    """Give the frames that are shown, from the first to the last."""
    return [round(place) for place in np.linspace(0, num_frames - 1, NUM_COLUMNS).tolist()]


def save_sheet(blocks: Sequence[Block], path: pathlib.Path) -> None:
    """Write the sheet in the format that the file's name asks for."""
    draw_sheet(blocks).save(path)
