"""Region masks: from the pixels of a source's video to what stage 2 edits and sees (Chorus, 3.3.1 and 3.3.2, eq. 5).

Masks are boolean and live on the host. A cell is one position of the latent grid, a token is the p x p cells of one
frame that a patch (1, p, p) joins. Symbols: r edit radius, r' see radius, M_base, M_edit, M_see the three masks.
Knows nothing about phrases, segmenters or models.

Shape letters: F video frames, T latent frames, H, W height and width of the grid that is meant, latent cells where
nothing else is said.
"""

import dataclasses

import torch
import torch.nn.functional as F
from torch import Tensor

Grid = tuple[int, int, int]
"""Latent frames, height and width in cells; or, as a patch, in cells a token."""


def to_latent_grid(mask_FHW: Tensor, grid: Grid) -> Tensor:
    """Project a pixel mask (F, H, W) to a latent grid (T, H, W) by max-pooling: a cell is set if any of its pixels is.

    Time is grouped as the causal VAE does: the first latent frame holds the first video frame, each later one the
    next (F - 1) / (T - 1). Raises ValueError when the video does not divide into the grid.
    """
    _check_mask(mask_FHW, "pixel mask")
    num_frames, height, width = mask_FHW.shape
    T, H, W = grid
    divides = (num_frames - 1) % (T - 1) == 0 if T > 1 else num_frames == 1
    if not divides or height % H or width % W or num_frames < T:
        raise ValueError(
            f"expected 1 + k(T - 1) frames, k at least 1, and sides that are multiples of the grid (T, H, W)={grid}, "
            f"got a pixel mask of {num_frames} frames of {height}x{width}"
        )
    cells_FHW = mask_FHW.reshape(num_frames, H, height // H, W, width // W).any(4).any(2)
    later_THW = cells_FHW[1:].reshape(T - 1, -1, H, W).any(1) if T > 1 else cells_FHW[1:]
    return torch.cat([cells_FHW[:1], later_THW])


def dilate(mask_THW: Tensor, radius: int) -> Tensor:
    """Set every cell within `radius` rows and columns of a set one, in its own frame (eq. 5).

    The all-ones kernel has 2 radius + 1 cells a side and stops at the border. It is separable: rows, then columns.
    """
    _check_mask(mask_THW, "mask")
    if radius < 0:
        raise ValueError(f"radius must be 0 or more, got {radius}")
    side = 2 * radius + 1
    rows = F.max_pool2d(mask_THW.float(), (side, 1), stride=1, padding=(radius, 0))
    return F.max_pool2d(rows, (1, side), stride=1, padding=(0, radius)) > 0


def coverage(mask: Tensor) -> float:
    """Give the share of cells that are set."""
    return float(mask.float().mean())


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class RegionMasks:
    """The hierarchy of one source: base within edit within see, checked; all boolean (T, H, W)."""

    base_THW: Tensor
    """Where source and target differ."""
    edit_THW: Tensor
    """What is denoised; all else is the source's."""
    see_THW: Tensor
    """What takes part in the computation."""

    def __post_init__(self) -> None:
        masks = {"base": self.base_THW, "edit": self.edit_THW, "see": self.see_THW}
        for name, mask in masks.items():
            _check_mask(mask, f"{name} mask")
        if not self.base_THW.shape == self.edit_THW.shape == self.see_THW.shape:
            shapes = {name: tuple(mask.shape) for name, mask in masks.items()}
            raise ValueError(f"expected three masks of one shape, got {shapes}")
        if (self.base_THW & ~self.edit_THW).any() or (self.edit_THW & ~self.see_THW).any():
            raise ValueError("expected base within edit within see: dilate the base mask, see at least as far as edit")


def region_masks(base_THW: Tensor, *, edit_radius: int, see_radius: int) -> RegionMasks:
    """Dilate M_base by r to M_edit and by r' to M_see (eq. 5); the paper's default is (8, 14) cells."""
    if not 0 <= edit_radius <= see_radius:
        raise ValueError(f"expected 0 <= edit_radius <= see_radius, got {edit_radius=} and {see_radius=}")
    return RegionMasks(base_THW=base_THW, edit_THW=dilate(base_THW, edit_radius), see_THW=dilate(base_THW, see_radius))


def to_token_grid(mask_THW: Tensor, patch: Grid) -> Tensor:
    """Project a mask of latent cells to one of tokens: a token is set if any of its cells is."""
    _check_mask(mask_THW, "mask")
    if any(size % cells for size, cells in zip(mask_THW.shape, patch, strict=True)):
        raise ValueError(f"expected a grid that {patch=} divides, got {tuple(mask_THW.shape)}")
    T, H, W = mask_THW.shape
    p, q, r = patch
    return mask_THW.reshape(T // p, p, H // q, q, W // r, r).any(5).any(3).any(1)


def align_to_tokens(masks: RegionMasks, patch: Grid) -> RegionMasks:
    """Grow edit and see to whole tokens, the least that a transformer can take in or leave out; base stays."""

    def whole(mask_THW: Tensor) -> Tensor:
        tokens_THW = to_token_grid(mask_THW, patch)
        for axis, cells in enumerate(patch):
            tokens_THW = tokens_THW.repeat_interleave(cells, dim=axis)
        return tokens_THW

    return RegionMasks(base_THW=masks.base_THW, edit_THW=whole(masks.edit_THW), see_THW=whole(masks.see_THW))


def _check_mask(mask: Tensor, name: str) -> None:
    if mask.dtype != torch.bool or mask.ndim != 3:
        raise ValueError(f"expected a boolean {name} of three axes, got {mask.dtype} of shape {tuple(mask.shape)}")
