"""Chunks, anchors and windows lie where the paper's figure has them, and cover a video of any length."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.flashforward.layout import Layout

lengths = st.integers(1, 2000)


def test_81_latents_are_cut_as_in_the_paper() -> None:
    layout = Layout(num_latents=81)
    assert (layout.num_chunks, layout.num_anchors, layout.num_blocks) == (27, 9, 3)
    assert [layout.anchor_position(anchor) for anchor in range(9)] == list(range(0, 81, 10))
    assert [layout.block_anchors_of(block) for block in range(3)] == [range(3), range(3, 6), range(6, 9)]
    # Windows 0-10-20, 20-30-40 and so on; each guides six or seven chunks (A.1).
    windows = [layout.window_of(chunk) for chunk in range(27)]
    assert windows == [range(3)] * 7 + [range(2, 5)] * 7 + [range(4, 7)] * 6 + [range(6, 9)] * 7
    assert layout.history_chunks_of(2) == range(2)
    assert layout.history_chunks_of(26) == range(21, 26)
    assert [layout.blocks_needed(chunk) for chunk in (0, 6, 7, 13, 14, 26)] == [1, 1, 2, 2, 3, 3]


def test_a_block_sees_the_anchors_of_two_blocks_at_most() -> None:
    layout = Layout(num_latents=161)
    assert [layout.history_anchors_of(block) for block in range(4)] == [
        range(0), range(3), range(6), range(3, 9),
    ]  # fmt: skip


def test_what_is_left_is_a_shorter_chunk_a_shorter_block_and_a_narrower_window() -> None:
    layout = Layout(num_latents=85)
    assert layout.chunk_positions(layout.num_chunks - 1) == range(84, 85)
    assert layout.block_anchors_of(layout.num_blocks - 1) == range(6, 9)
    assert layout.window_of(layout.num_chunks - 1) == range(8, 9)
    assert Layout(num_latents=1).window_of(0) == range(1)


@given(lengths)
def test_chunks_and_blocks_cover_everything_once(num_latents: int) -> None:
    layout = Layout(num_latents=num_latents)
    chunks = [layout.chunk_positions(chunk) for chunk in range(layout.num_chunks)]
    assert [position for chunk in chunks for position in chunk] == list(range(num_latents))
    assert all(1 <= len(chunk) <= 3 for chunk in chunks)
    anchors = [anchor for block in range(layout.num_blocks) for anchor in layout.block_anchors_of(block)]
    assert [layout.anchor_position(anchor) for anchor in anchors] == list(range(0, num_latents, 10))


@given(lengths)
def test_every_chunk_has_anchors_around_it_and_every_anchor_is_seen(num_latents: int) -> None:
    layout = Layout(num_latents=num_latents)
    seen: set[int] = set()
    for chunk in range(layout.num_chunks):
        window, positions = layout.window_of(chunk), layout.chunk_positions(chunk)
        assert 1 <= len(window) <= 3
        assert layout.anchor_position(window[0]) <= positions[0]
        if window[-1] < layout.num_anchors - 1:
            assert len(window) == 3
            assert positions[-1] <= layout.anchor_position(window[-1]) + 1  # one latent may straddle a shared anchor
        assert window.stop <= layout.block_anchors_of(layout.blocks_needed(chunk) - 1).stop
        seen.update(window)
    assert seen == set(range(layout.num_anchors))


@pytest.mark.parametrize("field", [field.name for field in dataclasses.fields(Layout)])
def test_a_number_that_is_too_small_is_refused_by_name(field: str) -> None:
    with pytest.raises(ValueError, match=f"{field} must be at least"):
        Layout(**{"num_latents": 81, field: -1})
    with pytest.raises(ValueError, match="num_latents must be at least 1, got 0"):
        Layout(num_latents=0)


def test_a_chunk_longer_than_the_anchor_stride_is_refused() -> None:
    with pytest.raises(ValueError, match="chunk_latents must not be above anchor_stride, got 4 and 3"):
        Layout(num_latents=81, chunk_latents=4, anchor_stride=3)
    assert Layout(num_latents=81, chunk_latents=3, anchor_stride=3).num_anchors == 27
