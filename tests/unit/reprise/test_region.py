"""Which rows of a token sequence a region computes, and the moves between the two."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from reprise.chorus.masks import Grid, RegionMasks, align_to_tokens, coverage, region_masks, to_token_grid
from reprise.chorus.region import (
    KERNEL_TILE,
    MAX_SEE_SHARE,
    NUM_LENGTHS,
    bucket_step,
    can_pay,
    gather_region,
    merge_latents,
    region_index,
    scatter_region,
)
from tests.unit.reprise.regions import GRID, PATCHES, random_masks

region_seeds = st.integers(0, 10_000)


@given(
    seed=region_seeds,
    share=st.floats(0.01, 0.5),
    radii=st.tuples(st.integers(0, 2), st.integers(0, 2)),
    step=st.integers(1, 40),
    patch=st.sampled_from(sorted(PATCHES.values())),
)
def test_index_holds_the_masks_and_rounds_their_lengths_up(
    seed: int, share: float, radii: tuple[int, int], step: int, patch: Grid
) -> None:
    masks = random_masks(seed, share=share, radii=(radii[0], sum(radii)))
    index = region_index(masks, patch, length_step=step)
    edit_S, see_S = (to_token_grid(mask, patch).flatten() for mask in (masks.edit_THW, masks.see_THW))
    assert index.num_tokens == len(see_S)
    assert bool((index.see_R.diff() > 0).all())  # rising, none twice
    assert set(see_S.nonzero()[:, 0].tolist()) <= set(index.see_R.tolist())
    assert index.num_see == min(-(-int(see_S.sum()) // step) * step, len(see_S))
    assert torch.equal(index.written_rows, edit_S.nonzero()[:, 0])
    assert (
        len(set(index.edit_E.tolist())) == len(index.edit_E) == min(-(-int(edit_S.sum()) // step) * step, index.num_see)
    )
    if step == 1:
        assert torch.equal(index.see_R, see_S.nonzero()[:, 0])
        assert len(index.edit_E) == index.num_edit


@given(seed=region_seeds, step=st.integers(2, 60))
def test_lengths_fill_up_with_the_nearest_tokens(seed: int, step: int) -> None:
    masks = random_masks(seed, share=0.01)
    index = region_index(masks, (1, 1, 1), length_step=step)
    places = torch.stack(torch.meshgrid(*(torch.arange(n) for n in GRID), indexing="ij"), -1).view(-1, 3)

    def distances(mask_THW: Tensor) -> Tensor:
        """Largest difference in frame, row or column to the nearest set cell, of every cell."""
        cells = places[mask_THW.flatten()]
        return (places[:, None] - cells[None]).abs().amax(2).amin(1)

    is_seen_S = torch.zeros(index.num_tokens, dtype=torch.bool)
    is_seen_S[index.see_R] = True
    to_see_S, to_edit_S = distances(masks.see_THW), distances(masks.edit_THW)
    if not is_seen_S.all():
        assert to_see_S[is_seen_S].max() <= to_see_S[~is_seen_S].min()
    is_computed_S = torch.zeros_like(is_seen_S)
    is_computed_S[index.see_R[index.edit_E]] = True
    if not torch.equal(is_computed_S, is_seen_S):
        assert to_edit_S[is_computed_S].max() <= to_edit_S[is_seen_S & ~is_computed_S].min()


def test_a_token_counts_if_any_of_its_cells_does() -> None:
    base_THW = torch.zeros(GRID, dtype=torch.bool)
    base_THW[2, 3, 5] = True
    masks = region_masks(base_THW, edit_radius=0, see_radius=1)
    index = region_index(masks, (1, 2, 2))
    # Frame 2 of 3 x 5 tokens; the cell lies in row 1, column 2; one cell around it reaches row 2 and column 3.
    assert index.written_rows.tolist() == [2 * 15 + 1 * 5 + 2]
    assert index.see_R.tolist() == [2 * 15 + row * 5 + column for row in (1, 2) for column in (2, 3)]
    assert index.num_see / index.num_tokens == pytest.approx(coverage(align_to_tokens(masks, (1, 2, 2)).see_THW))


def test_an_empty_region_is_refused() -> None:
    empty_THW = torch.zeros(GRID, dtype=torch.bool)
    masks = RegionMasks(base_THW=empty_THW, edit_THW=empty_THW, see_THW=~empty_THW)
    with pytest.raises(ValueError, match="ask can_pay first"):
        region_index(masks, (1, 1, 1))


@pytest.mark.parametrize(
    ("share", "pays"), [(0.0, False), (0.001, True), (MAX_SEE_SHARE, True), (0.9, False), (1.0, False)]
)
def test_nothing_and_nearly_everything_do_not_pay(share: float, pays: bool) -> None:
    assert can_pay(share) is pays


@given(num_tokens=st.integers(1, 80_000))
def test_bucketed_lengths_are_few_and_of_whole_tiles(num_tokens: int) -> None:
    step = bucket_step(num_tokens)
    assert step % KERNEL_TILE == 0
    assert -(-num_tokens // step) <= NUM_LENGTHS


@given(tiles=st.integers(1, 80), share=st.floats(0, 1))
def test_a_region_that_pays_is_never_rounded_up_to_the_whole(tiles: int, share: float) -> None:
    num_tokens = tiles * NUM_LENGTHS * KERNEL_TILE
    step = bucket_step(num_tokens)
    if can_pay(share):
        assert -(-int(share * num_tokens) // step) * step < num_tokens
    elif share > 0:
        assert -(-share * num_tokens // step) * step == num_tokens


@given(seed=region_seeds, batch=st.integers(1, 2))
def test_gather_and_scatter_are_inverse(seed: int, batch: int) -> None:
    index = region_index(random_masks(seed), (1, 1, 1))
    generator = torch.Generator().manual_seed(seed)
    rows_BRD = torch.randn(batch, index.num_see, 5, generator=generator)
    full_BSD = scatter_region(rows_BRD, index.see_R, num_tokens=index.num_tokens)
    assert torch.equal(gather_region(full_BSD, index.see_R), rows_BRD)
    tokens_BSD = torch.randn(batch, index.num_tokens, 5, generator=generator)
    again_BSD = scatter_region(gather_region(tokens_BSD, index.see_R), index.see_R, num_tokens=index.num_tokens)
    is_seen_S = torch.zeros(index.num_tokens, dtype=torch.bool)
    is_seen_S[index.see_R] = True
    assert torch.equal(again_BSD, tokens_BSD * is_seen_S[:, None])


def test_merging_keeps_the_edit_and_takes_the_rest_from_the_source() -> None:
    edit_THW = random_masks(1).edit_THW
    latent, source = torch.randn(2, 4, *GRID), torch.randn(2, 4, *GRID)
    merged = merge_latents(latent, source, edit_THW)
    assert torch.equal(merged[..., edit_THW], latent[..., edit_THW])
    assert torch.equal(merged[..., ~edit_THW], source[..., ~edit_THW])
    mask = edit_THW.float()
    assert torch.equal(merged, mask * latent + (1 - mask) * source)  # as eq. 6 is written
    poisoned = latent.masked_fill(~edit_THW, float("nan"))
    assert torch.equal(merge_latents(poisoned, source, edit_THW), merged)
