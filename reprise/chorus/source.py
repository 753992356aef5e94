"""A source's side of a reused run: its latents at any step of a plan, and the region that stage 2 works in.

Chorus sections 3.1 and 3.3. Latents between stored points are rebuilt. Symbols: K1, K2 stage boundaries, sigma noise
level. Knows nothing about stores or how masks are made.

Shape letters: B batch, C channels, T latent frames, H, W latent grid; in mask_FHW: F frames, H, W pixels.
"""

import dataclasses
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from reprise.chorus.compression import rebuild
from reprise.chorus.masks import Grid, align_to_tokens, coverage, region_masks, to_latent_grid
from reprise.chorus.plan import RegionReason
from reprise.chorus.region import RegionIndex, can_pay, region_index


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Source:
    """What was fetched for one plan."""

    points: Mapping[int, Tensor]
    """Stored latents (B, C, T, H, W) by the step that they enter, on the model's device."""
    mask_FHW: Tensor | None = None
    """Pixels of the object inside which stage 2 works, boolean, on the host; None has no stage 2."""

    def latent(self, step: int, *, sigmas: Sequence[float]) -> Tensor:
        """Give the latent that enters a step, in float32; `sigmas` are the N + 1 noise levels of the schedule."""
        return rebuild(self.points, step, sigmas=sigmas)

    def velocity(self, step: int, *, sigmas: Sequence[float]) -> Tensor:
        """Give the mean velocity of the source over a step: following it in a straight line gives its next latent."""
        change_BCTHW = self.latent(step + 1, sigmas=sigmas) - self.latent(step, sigmas=sigmas)
        return change_BCTHW / (sigmas[step + 1] - sigmas[step])


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Region:
    """Where stage 2 works."""

    edit_THW: Tensor
    """Latent cells that are denoised, boolean; elsewhere the latent is the source's."""
    index: RegionIndex

    def to(self, device: torch.device) -> "Region":
        """Move to the device of the latents; once a clip."""
        return Region(edit_THW=self.edit_THW.to(device), index=self.index.to(device))

    @property
    def edit_share(self) -> float:
        """Share of tokens that are denoised."""
        return self.index.num_edit / self.index.num_tokens

    @property
    def see_share(self) -> float:
        """Share of tokens that take part."""
        return self.index.num_see / self.index.num_tokens


def find_region(source: Source, grid: Grid, patch: Grid, *, edit_radius: int, see_radius: int) -> Region | RegionReason:
    """Project the object's mask to the latent grid and dilate it; a reason where a region would save nothing.

    Sees as far as `see_radius`, or less, down to `edit_radius`, where only that leaves enough out to pay.
    """
    if source.mask_FHW is None or not source.mask_FHW.any():
        return RegionReason.NO_MASK
    base_THW = to_latent_grid(source.mask_FHW, grid)
    for radius in range(see_radius, edit_radius - 1, -1):
        masks = align_to_tokens(region_masks(base_THW, edit_radius=edit_radius, see_radius=radius), patch)
        if can_pay(coverage(masks.see_THW)):
            return Region(edit_THW=masks.edit_THW, index=region_index(masks, patch))
    return RegionReason.TOO_LARGE
