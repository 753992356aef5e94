"""Key frames: every frame has one in its own temporal group, and masks spread within groups only."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.chorus.key_frames import KeyFramePlan, fill_gaps, plan_key_frames, propagate


def group_of(frame: int, stride: int) -> int:
    """Number the groups of the causal autoencoder: the first frame alone, then runs."""
    return 0 if frame == 0 else 1 + (frame - 1) // stride


@given(num_frames=st.integers(1, 200), stride=st.integers(1, 20))
def test_each_group_has_one_key_frame_of_its_own(num_frames: int, stride: int) -> None:
    plan = plan_key_frames(num_frames, stride=stride)
    assert len(plan.source_of) == num_frames
    assert [group_of(frame, stride) for frame in plan.frames] == list(range(group_of(num_frames - 1, stride) + 1))
    for frame, source in enumerate(plan.source_of):
        key = plan.frames[source]
        assert group_of(key, stride) == group_of(frame, stride)
        assert abs(key - frame) <= stride // 2


def test_stride_one_segments_every_frame() -> None:
    assert plan_key_frames(4, stride=1) == KeyFramePlan(frames=(0, 1, 2, 3), source_of=(0, 1, 2, 3))


def test_a_short_last_group_has_its_own_middle() -> None:
    assert plan_key_frames(8, stride=4).frames == (0, 2, 6)
    assert plan_key_frames(6, stride=4).frames == (0, 2, 5)


@pytest.mark.parametrize(("num_frames", "stride"), [(0, 4), (5, 0)])
def test_no_frames_or_no_stride_is_refused(num_frames: int, stride: int) -> None:
    with pytest.raises(ValueError, match=f"num_frames={num_frames}, stride={stride}"):
        plan_key_frames(num_frames, stride=stride)


def masks(*marked: int) -> np.ndarray[tuple[int, ...], np.dtype[np.bool_]]:
    """Key frame k marks pixel marked[k] of a row; a negative number marks none."""
    made = np.zeros((len(marked), 1, 10), np.bool_)
    for k, pixel in enumerate(marked):
        if pixel >= 0:
            made[k, 0, pixel] = True
    return made


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ((1, 2, 3), (1, 2, 3)),
        ((1, -1, -1, 4), (1, 1, 4, 4)),
        ((-1, 2, 3, -1), (2, 2, 3, 3)),
        ((-1, 2, -1, 3), (2, 2, 2, 3)),
        ((-1, 2, -1, -1), (-1, 2, -1, -1)),
        ((-1, -1), (-1, -1)),
    ],
)
def test_gaps_take_the_nearest_mask_when_most_frames_have_one(before: tuple[int, ...], after: tuple[int, ...]) -> None:
    assert np.array_equal(fill_gaps(masks(*before)), masks(*after))


def test_spreading_repeats_the_key_frames_masks() -> None:
    plan = plan_key_frames(9, stride=4)
    assert np.array_equal(propagate(masks(7, 8, 9), plan), masks(7, 8, 8, 8, 8, 9, 9, 9, 9))
    with pytest.raises(ValueError, match="each of 3 key frames, got 2"):
        propagate(masks(7, 8), plan)
