"""A source's latents between stored points, and how far its region sees."""

import pytest
import torch

from reprise.chorus.plan import RegionReason
from reprise.chorus.source import Region, Source, find_region

GRID = (3, 8, 8)
PATCH = (1, 1, 1)
SIGMAS = [1.0, 0.8, 0.5, 0.2, 0.0]


def square(side: int) -> torch.Tensor:
    """Mark a square of `side` cells in the middle of 9 frames of 64 x 64 pixels."""
    mask_FHW = torch.zeros(9, 64, 64, dtype=torch.bool)
    begin = 8 * ((8 - side) // 2)
    mask_FHW[:, begin : begin + 8 * side, begin : begin + 8 * side] = True
    return mask_FHW


def region_of(side: int) -> Region | RegionReason:
    return find_region(Source(points={}, mask_FHW=square(side)), GRID, PATCH, edit_radius=1, see_radius=3)


@pytest.mark.parametrize(("side", "edit", "see"), [(1, 3, 7), (2, 4, 6), (4, 6, 6)])
def test_it_sees_as_far_as_pays(side: int, edit: int, see: int) -> None:
    """Seven eighths of 64 tokens are 56: 7 x 7 pays and 8 x 8 does not."""
    region = region_of(side)
    assert isinstance(region, Region)
    assert (region.edit_share, region.see_share) == (edit**2 / 64, see**2 / 64)


def test_a_region_that_is_nearly_all_or_nothing_says_why_not() -> None:
    assert region_of(6) is RegionReason.TOO_LARGE
    empty = Source(points={}, mask_FHW=torch.zeros(9, 64, 64, dtype=torch.bool))
    for source in (empty, Source(points={})):
        assert find_region(source, GRID, PATCH, edit_radius=1, see_radius=3) is RegionReason.NO_MASK


def test_following_its_velocity_gives_its_next_latent() -> None:
    generator = torch.Generator().manual_seed(0)
    points = {step: torch.randn(1, 2, 3, 4, 4, generator=generator) for step in (1, 3)}
    source = Source(points=points)
    for step in (1, 2):
        ahead = source.latent(step, sigmas=SIGMAS) + (SIGMAS[step + 1] - SIGMAS[step]) * source.velocity(
            step, sigmas=SIGMAS
        )
        assert torch.allclose(ahead, source.latent(step + 1, sigmas=SIGMAS), atol=1e-6)
