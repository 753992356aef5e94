"""The key-frame strategy: which frames of a video are segmented, and which frames take a key frame's mask.

Chorus section 3.3.1: masks are made for sparsely sampled frames only and spread within their temporal group. Groups are
those of the causal video autoencoder, the first frame alone and then equal runs, so a latent frame takes its mask from
frames of its own. Knows nothing about segmenters.

Shape letters: F video frames, K key frames, H, W pixels.
"""

import dataclasses

import numpy as np
from numpy.typing import NDArray


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class KeyFramePlan:
    """Frames to segment, rising, and for every video frame the place in `frames` whose mask it takes."""

    frames: tuple[int, ...]
    source_of: tuple[int, ...]


def plan_key_frames(num_frames: int, *, stride: int) -> KeyFramePlan:
    """Choose the first frame, and the middle one of each run of `stride` frames after it; the last run may be shorter.

    The middle is at most half a run away from any frame, so that what moves is missed by as little as can be.

    >>> plan_key_frames(9, stride=4)
    KeyFramePlan(frames=(0, 2, 6), source_of=(0, 1, 1, 1, 1, 2, 2, 2, 2))
    """
    if num_frames < 1 or stride < 1:
        raise ValueError(f"expected at least one frame and a stride of at least 1, got {num_frames=}, {stride=}")
    starts = range(1, num_frames, stride)
    middles = [(start + min(start + stride, num_frames) - 1) // 2 for start in starts]
    later = [1 + (frame - 1) // stride for frame in range(1, num_frames)]
    return KeyFramePlan(frames=(0, *middles), source_of=(0, *later))


def fill_gaps(masks_KHW: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Give an empty key frame the mask of the nearest one that is not, if at least half of them are not.

    A segmenter that misses an object in one frame of many leaves a hole in which the old object would stay; too large a
    region only costs time. What is seen in fewer frames is left alone: it came or went, or is a false alarm.
    """
    found = np.flatnonzero(masks_KHW.any((1, 2)))
    if len(found) == len(masks_KHW) or 2 * len(found) < len(masks_KHW):
        return masks_KHW
    nearest = np.abs(np.arange(len(masks_KHW))[:, None] - found).argmin(1)
    filled: NDArray[np.bool_] = masks_KHW[found[nearest]]
    return filled


def propagate(masks_KHW: NDArray[np.bool_], plan: KeyFramePlan) -> NDArray[np.bool_]:
    """Spread the key frames' masks over all frames, (F, H, W)."""
    if len(masks_KHW) != len(plan.frames):
        raise ValueError(f"expected one mask for each of {len(plan.frames)} key frames, got {len(masks_KHW)}")
    spread: NDArray[np.bool_] = masks_KHW[list(plan.source_of)]
    return spread
