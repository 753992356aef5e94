"""Attention of latent frames that do not all see the same, as training packs a whole video into one forward.

Frames that see the same attend together and to nothing else: no mask, so a fast kernel, and no work for what is not
seen. Knows nothing about why a frame sees another.

Shape letters: T frames that look, U frames looked at, G of them, S tokens that look, R rows looked at, N heads, K head
width, D width.
"""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from reprise.wan.blocks import attend_heads, project_attended


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class FrameGroup:
    """Frames that see the same: their numbers, and the numbers of those that they see, both rising."""

    frames_G: Tensor
    seen_G: Tensor


def group_frames(sees_TU: Tensor) -> list[FrameGroup]:
    """Sort frames by what they see; raise ValueError when one sees nothing, not even itself."""
    if not bool(sees_TU.any(1).all()):
        blind = (~sees_TU.any(1)).nonzero().flatten().tolist()
        raise ValueError(f"every frame must see at least one, got frames that see none: {blind}")
    patterns_GU, place_T = torch.unique(sees_TU, dim=0, return_inverse=True)
    return [
        FrameGroup((place_T == number).nonzero().flatten(), pattern_U.nonzero().flatten())
        for number, pattern_U in enumerate(patterns_GU)
    ]


def attend_in_groups(
    attention: Any, query_BSNK: Tensor, key_BRNK: Tensor, value_BRNK: Tensor, groups: list[FrameGroup], num_frames: int
) -> Tensor:
    """Attend group by group and project: (B, S, D). `num_frames` is T."""
    size = query_BSNK.shape[1] // num_frames
    query, key, value = (_by_frame(rows, size) for rows in (query_BSNK, key_BRNK, value_BRNK))
    parts = [
        attend_heads(
            attention,
            query.index_select(1, group.frames_G).flatten(1, 2),
            key.index_select(1, group.seen_G).flatten(1, 2),
            value.index_select(1, group.seen_G).flatten(1, 2),
        )
        for group in groups
    ]
    order_T = torch.cat([group.frames_G for group in groups]).argsort()
    attended = _by_frame(torch.cat(parts, 1), size).index_select(1, order_T)
    return project_attended(attention, attended.flatten(1, 2))


def _by_frame(rows: Tensor, size: int) -> Tensor:
    """Give (B, frames, tokens of one frame, N, K)."""
    return rows.view(rows.shape[0], -1, size, *rows.shape[2:])
