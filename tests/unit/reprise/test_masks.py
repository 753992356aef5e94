"""Region masks against plain restatements of their definitions."""

import dataclasses

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from reprise.chorus.masks import (
    Grid,
    RegionMasks,
    align_to_tokens,
    coverage,
    dilate,
    region_masks,
    to_latent_grid,
    to_token_grid,
)

SIDES = st.integers(1, 9)


@st.composite
def masks(draw: st.DrawFn, sides: st.SearchStrategy[int] = SIDES) -> Tensor:
    """Draw a mask of any grid, odd ones included, sparse more often than dense."""
    shape = draw(st.integers(1, 3)), draw(sides), draw(sides)
    cells = draw(st.sets(st.tuples(*(st.integers(0, size - 1) for size in shape)), max_size=6))
    mask_THW = torch.zeros(shape, dtype=torch.bool)
    for cell in cells:
        mask_THW[cell] = True
    return mask_THW


def frame_of(latent_frame: int, stride: int) -> range:
    return range(1) if latent_frame == 0 else range(1 + stride * (latent_frame - 1), 1 + stride * latent_frame)


@given(
    grid=st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(1, 4)),
    stride=st.integers(1, 4),
    cell=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    seed=st.integers(0, 99),
)
def test_a_cell_is_set_if_any_of_its_pixels_is(grid: Grid, stride: int, cell: tuple[int, int], seed: int) -> None:
    T, H, W = grid
    p, q = cell
    generator = torch.Generator().manual_seed(seed)
    pixels_FHW = torch.rand(1 + stride * (T - 1), H * p, W * q, generator=generator) < 0.1
    mask_THW = to_latent_grid(pixels_FHW, grid)
    assert mask_THW.shape == grid
    for t in range(T):
        frames_FHW = pixels_FHW[frame_of(t, stride)]
        for y in range(H):
            for x in range(W):
                block = frames_FHW[:, y * p : (y + 1) * p, x * q : (x + 1) * q]
                assert bool(mask_THW[t, y, x]) == bool(block.any())


def test_first_latent_frame_is_the_first_video_frame_alone() -> None:
    # 17 frames are 1 + 4 * 4: one of the first, then fours.
    for frame, expected in ((0, 0), (1, 1), (4, 1), (5, 2), (16, 4)):
        pixels_FHW = torch.zeros(17, 64, 64, dtype=torch.bool)
        pixels_FHW[frame, 63, 8] = True
        assert to_latent_grid(pixels_FHW, (5, 8, 8)).nonzero().tolist() == [[expected, 7, 1]]


@pytest.mark.parametrize(
    ("shape", "grid"),
    [
        ((16, 64, 64), (5, 8, 8)),
        ((17, 60, 64), (5, 8, 8)),
        ((17, 64, 60), (5, 8, 8)),
        ((2, 8, 8), (1, 8, 8)),
        ((1, 8, 8), (5, 8, 8)),
    ],
)
def test_video_off_the_grid_is_refused(shape: tuple[int, ...], grid: Grid) -> None:
    with pytest.raises(ValueError, match=f"got a pixel mask of {shape[0]} frames of {shape[1]}x{shape[2]}"):
        to_latent_grid(torch.zeros(shape, dtype=torch.bool), grid)


@pytest.mark.parametrize("mask", [torch.zeros(1, 2, 2), torch.zeros(2, 2, dtype=torch.bool)])
def test_anything_but_a_boolean_grid_is_refused(mask: Tensor) -> None:
    with pytest.raises(ValueError, match=r"expected a boolean (pixel )?mask of three axes"):
        to_latent_grid(mask, (1, 2, 2))
    with pytest.raises(ValueError, match="expected a boolean mask of three axes"):
        dilate(mask, 1)


@given(mask_THW=masks(), radius=st.integers(0, 12))
def test_dilation_is_the_convolution_of_equation_5(mask_THW: Tensor, radius: int) -> None:
    kernel = torch.ones(1, 1, 2 * radius + 1, 2 * radius + 1)
    convolved = F.conv2d(mask_THW[:, None].float(), kernel, padding=radius)[:, 0]
    assert torch.equal(dilate(mask_THW, radius), convolved > 0.5)


@given(mask_THW=masks(), first=st.integers(0, 4), second=st.integers(0, 4))
def test_dilations_add_up_and_stay_in_their_frame(mask_THW: Tensor, first: int, second: int) -> None:
    assert torch.equal(dilate(dilate(mask_THW, first), second), dilate(mask_THW, first + second))
    assert torch.equal(dilate(mask_THW, first).flatten(1).any(1), mask_THW.flatten(1).any(1))


def test_dilation_stops_at_the_border_and_does_not_wrap() -> None:
    mask_THW = torch.zeros(2, 5, 7, dtype=torch.bool)
    mask_THW[0, 0, 6] = True
    expected = torch.zeros_like(mask_THW)
    expected[0, :3, 4:] = True
    assert torch.equal(dilate(mask_THW, 2), expected)
    with pytest.raises(ValueError, match="got -1"):
        dilate(mask_THW, -1)


def test_coverage_is_the_share_of_set_cells() -> None:
    mask_THW = torch.zeros(2, 5, 7, dtype=torch.bool)
    assert coverage(mask_THW) == 0
    mask_THW[1, :, :2] = True
    assert coverage(mask_THW) == pytest.approx(1 / 7)
    assert coverage(torch.ones_like(mask_THW)) == 1


@given(mask_THW=masks(), radii=st.tuples(st.integers(0, 9), st.integers(0, 9)))
def test_the_hierarchy_holds_for_every_pair_of_radii(mask_THW: Tensor, radii: tuple[int, int]) -> None:
    edit_radius, see_radius = sorted(radii)
    found = region_masks(mask_THW, edit_radius=edit_radius, see_radius=see_radius)
    assert torch.equal(found.base_THW, mask_THW)
    assert not (found.base_THW & ~found.edit_THW).any()
    assert not (found.edit_THW & ~found.see_THW).any()
    assert torch.equal(found.see_THW, dilate(mask_THW, see_radius))


def test_seeing_less_than_is_edited_is_refused_with_both_values() -> None:
    base_THW = torch.ones(1, 2, 2, dtype=torch.bool)
    with pytest.raises(ValueError, match="edit_radius=14 and see_radius=8"):
        region_masks(base_THW, edit_radius=14, see_radius=8)
    with pytest.raises(ValueError, match="edit_radius=-1"):
        region_masks(base_THW, edit_radius=-1, see_radius=8)


@pytest.mark.parametrize("field", ["edit_THW", "see_THW"])
def test_masks_out_of_order_or_of_two_shapes_are_refused(field: str) -> None:
    found = region_masks(torch.ones(1, 2, 2, dtype=torch.bool), edit_radius=0, see_radius=0)
    with pytest.raises(ValueError, match="base within edit within see"):
        dataclasses.replace(found, **{field: torch.zeros(1, 2, 2, dtype=torch.bool)})
    with pytest.raises(ValueError, match="three masks of one shape"):
        dataclasses.replace(found, **{field: torch.ones(1, 2, 3, dtype=torch.bool)})


@given(mask_THW=masks(st.integers(1, 4).map(lambda n: 2 * n)), radius=st.integers(0, 3))
def test_aligned_masks_are_the_least_whole_tokens(mask_THW: Tensor, radius: int) -> None:
    found = region_masks(mask_THW, edit_radius=radius, see_radius=radius + 1)
    whole: RegionMasks = align_to_tokens(found, (1, 2, 2))
    assert torch.equal(whole.base_THW, mask_THW)
    for grown, plain in ((whole.edit_THW, found.edit_THW), (whole.see_THW, found.see_THW)):
        assert not (plain & ~grown).any()
        blocks, wanted = (
            torch.stack([mask[:, y::2, x::2] for y in range(2) for x in range(2)], 3) for mask in (grown, plain)
        )
        assert torch.equal(blocks.all(3), blocks.any(3))  # constant inside a token
        assert torch.equal(blocks.all(3), wanted.any(3))  # and no token without a reason
        assert torch.equal(to_token_grid(plain, (1, 2, 2)), blocks.all(3))


def test_a_patch_of_one_cell_changes_nothing() -> None:
    mask_THW = torch.rand(3, 5, 7, generator=torch.Generator().manual_seed(0)) < 0.3
    assert torch.equal(to_token_grid(mask_THW, (1, 1, 1)), mask_THW)


def test_a_grid_that_the_patch_does_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match=r"patch=\(1, 2, 2\) divides, got \(3, 5, 6\)"):
        to_token_grid(torch.ones(3, 5, 6, dtype=torch.bool), (1, 2, 2))
