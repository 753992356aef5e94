"""Which tokens stage 2 computes, and the moves between a full grid and those rows (Chorus, 3.3.2 and 3.3.3, eq. 6).

The work outside the region is skipped, not masked: the seen tokens are gathered into a shorter sequence. Where
lengths must come from a short list, because kernels are compiled per length, the sequence is filled up with the
real tokens nearest to the region: more context instead of padding, and no attention mask.
Knows nothing about models, solvers or where masks come from.

Shape letters: B batch, C latent channels, T latent frames, H, W latent cells, S tokens of the whole grid, R seen
tokens, E edited tokens, N tokens of any selection, D width.
"""

import dataclasses
import math
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor

from reprise.chorus.masks import Grid, RegionMasks, to_token_grid

NUM_LENGTHS: Final = 8
"""Lengths to which `bucket_step` limits a grid; torch.compile keeps this many versions of a function by default."""
KERNEL_TILE: Final = 128
"""Rows that attention and matrix kernels on GPUs take at a time; a length in between costs as much as the next."""
MAX_SEE_SHARE: Final = 1 - 1 / NUM_LENGTHS
"""Share of seen tokens up to which stage 2 pays: above it, the rounded length is the full one and saves nothing."""


def can_pay(see_share: float) -> bool:
    """Tell whether region denoising can save work: something is seen, but not more than MAX_SEE_SHARE of the tokens.

    Ask with `coverage` of the token mask before `region_index`; where the answer is no, compute in full.
    """
    return 0 < see_share <= MAX_SEE_SHARE


def bucket_step(num_tokens: int) -> int:
    """Give the step between lengths for compiled kernels: about NUM_LENGTHS of them, each of whole kernel tiles."""
    return math.ceil(num_tokens / NUM_LENGTHS / KERNEL_TILE) * KERNEL_TILE


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RegionIndex:
    """Rows of a token sequence: those that are seen and, among them, those whose velocity is wanted."""

    see_R: Tensor
    """Places of the seen tokens in the full sequence, int64, rising."""
    edit_E: Tensor
    """Places of the computed rows within `see_R`, int64: the `num_edit` wanted ones, rising, then those that fill up
    the length."""
    num_edit: int
    num_tokens: int
    """S, of the full grid."""

    @property
    def num_see(self) -> int:
        """Count the seen tokens, those that fill up the length included."""
        return len(self.see_R)

    @property
    def written_rows(self) -> Tensor:
        """Give the places in the full sequence that are written; rows that fill up the length are not."""
        return self.see_R[self.edit_E[: self.num_edit]]

    def to(self, device: torch.device) -> "RegionIndex":
        """Move to the device of the tokens; once a clip, not once a step."""
        return dataclasses.replace(self, see_R=self.see_R.to(device), edit_E=self.edit_E.to(device))


def region_index(masks: RegionMasks, patch: Grid, *, length_step: int = 1) -> RegionIndex:
    """Index the tokens of a region, by edit and see mask of the latent grid; a token counts if any of its cells does.

    Both lengths are rounded up to a multiple of `length_step`, or to all there is: see with the tokens nearest to the
    region, edit with the nearest seen ones. 1 keeps them exact; take `bucket_step` where kernels are compiled.
    Raises ValueError for an empty region: ask `can_pay` first.
    """
    edit_THW, see_THW = to_token_grid(masks.edit_THW, patch), to_token_grid(masks.see_THW, patch)
    num_edit, num_tokens = int(edit_THW.sum()), see_THW.numel()
    if num_edit == 0:
        raise ValueError("the edit mask is empty, so there is nothing to denoise: ask can_pay first")
    num_see = min(_round_up(int(see_THW.sum()), length_step), num_tokens)
    seen_THW = _grow(see_THW, num_see, within_THW=torch.ones_like(see_THW))
    computed_THW = _grow(edit_THW, min(_round_up(num_edit, length_step), num_see), within_THW=seen_THW)
    wanted_R = edit_THW.flatten()[seen_THW.flatten()]
    filling_R = computed_THW.flatten()[seen_THW.flatten()] & ~wanted_R
    return RegionIndex(
        see_R=_places(seen_THW.flatten()),
        edit_E=torch.cat([_places(wanted_R), _places(filling_R)]),
        num_edit=num_edit,
        num_tokens=num_tokens,
    )


def gather_region(tokens_BSD: Tensor, rows_N: Tensor) -> Tensor:
    """Take rows of a sequence; `scatter_region` is the inverse on them."""
    return tokens_BSD.index_select(1, rows_N)


def scatter_region(tokens_BND: Tensor, rows_N: Tensor, *, num_tokens: int) -> Tensor:
    """Put rows back to their places in a sequence that is zero elsewhere; the inverse of `gather_region`."""
    shape = (tokens_BND.shape[0], num_tokens, *tokens_BND.shape[2:])
    return tokens_BND.new_zeros(shape).index_copy(1, rows_N, tokens_BND)


def merge_latents(latent_BCTHW: Tensor, source_BCTHW: Tensor, edit_THW: Tensor) -> Tensor:
    """Keep the latent where it is edited and take the source's, after the same step, elsewhere (eq. 6).

    Selected, not multiplied: what was never computed may hold anything, even a NaN. Cell by cell, so a multistep
    solver's history merges with the source's own in the same way. All three lie on one device.
    """
    return torch.where(edit_THW, latent_BCTHW, source_BCTHW)


def _round_up(count: int, step: int) -> int:
    return math.ceil(count / step) * step


def _places(mask: Tensor) -> Tensor:
    return mask.nonzero()[:, 0]


def _grow(mask_THW: Tensor, count: int, *, within_THW: Tensor) -> Tensor:
    """Add the cells of `within_THW` that are nearest to the mask until it has `count`.

    Near in frames, rows and columns alike, the largest of the three differences; ties in order of the sequence.
    """
    grown_S, within_S, front_THW = mask_THW.flatten().clone(), within_THW.flatten(), mask_THW
    while (num_missing := count - int(grown_S.sum())) > 0:
        front_THW = F.max_pool3d(front_THW[None].float(), 3, stride=1, padding=1)[0] > 0
        nearest = _places(front_THW.flatten() & within_S & ~grown_S)
        grown_S[nearest[:num_missing]] = True
    return grown_S.view_as(mask_THW)
