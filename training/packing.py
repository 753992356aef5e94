"""Whole videos in one causal forward, by masks over latent frames (FlashForward, C.1).

What a chunk or block reads in training is what it reads when served: the windows are those of `Layout`. Frames come in
two streams that never see each other but by the masks here. Knows nothing about models, noise or losses.

Shape letters: A anchors, R latent frames of the chunks, T frames that look, U frames looked at.
"""

import dataclasses

import torch
from torch import Tensor

from reprise.flashforward.layout import Layout


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Crop:
    """Some neighbouring chunks of a video."""

    layout: Layout
    chunks: range

    @property
    def positions(self) -> range:
        """Give the latents of the chunks."""
        return range(
            self.layout.chunk_positions(self.chunks[0]).start, self.layout.chunk_positions(self.chunks[-1]).stop
        )

    @property
    def anchors(self) -> range:
        """Give the anchors that the chunks see."""
        return range(self.layout.window_of(self.chunks[0]).start, self.layout.window_of(self.chunks[-1]).stop)


def planner_mask(layout: Layout) -> Tensor:
    """Tell what anchors see (2A, 2A): clean copies first, seen by their block and later ones, then noisy ones."""
    count = layout.num_anchors
    sees_TU = torch.zeros(2 * count, 2 * count, dtype=torch.bool)
    for block in range(layout.num_blocks):
        history, own = layout.history_anchors_of(block), layout.block_anchors_of(block)
        for shift in (0, count):
            rows = slice(shift + own.start, shift + own.stop)
            sees_TU[rows, history.start : history.stop] = True
            sees_TU[rows, rows] = True
    return sees_TU


def renderer_mask(crop: Crop) -> Tensor:
    """Tell what FlashForward's chunks see (R, A + R): clean anchors first, then the chunks at their own stage."""
    anchors, first = crop.anchors, crop.positions.start
    num_anchors = len(anchors)
    sees_TU = torch.zeros(len(crop.positions), num_anchors + len(crop.positions), dtype=torch.bool)
    for chunk in crop.chunks:
        own = crop.layout.chunk_positions(chunk)
        rows = slice(own.start - first, own.stop - first)
        window = crop.layout.window_of(chunk)
        sees_TU[rows, window.start - anchors.start : window.stop - anchors.start] = True
        sees_TU[rows, num_anchors + _history_start(crop, chunk) : num_anchors + rows.stop] = True
    return sees_TU


def history_mask(crop: Crop) -> Tensor:
    """Tell what the baselines' chunks see (2R, 2R): encoded copies first, seen by later chunks, then the noisy ones."""
    count, first = len(crop.positions), crop.positions.start
    sees_TU = torch.zeros(2 * count, 2 * count, dtype=torch.bool)
    for chunk in crop.chunks:
        own = crop.layout.chunk_positions(chunk)
        begin, end = own.start - first, own.stop - first
        sees_TU[begin:end, _history_start(crop, chunk) : end] = True
        sees_TU[count + begin : count + end, _history_start(crop, chunk) : begin] = True
        sees_TU[count + begin : count + end, count + begin : count + end] = True
    return sees_TU


def _history_start(crop: Crop, chunk: int) -> int:
    """Give the first frame of the crop that a chunk sees."""
    history = crop.layout.history_chunks_of(chunk)
    first_chunk = max(history.start, crop.chunks.start)
    return crop.layout.chunk_positions(first_chunk).start - crop.positions.start
