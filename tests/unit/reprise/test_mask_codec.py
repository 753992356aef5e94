"""Masks as bytes: what goes in comes out, and bytes that are no mask are told from those that are."""

import struct
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from numpy.typing import NDArray

from reprise.chorus.mask_codec import MAGIC, pack_mask, unpack_mask

MASK = np.random.default_rng(0).random((5, 9, 7)) > 0.5


@given(arrays(np.bool_, st.tuples(st.integers(1, 6), st.integers(1, 20), st.integers(1, 20))))
def test_a_mask_survives_and_its_bytes_are_its_own(mask: NDArray[np.bool_]) -> None:
    packed = pack_mask(mask)
    again = unpack_mask(packed)
    assert again.dtype == np.bool_
    assert np.array_equal(again, mask)
    assert pack_mask(again) == packed


def test_the_unpacked_mask_may_be_changed() -> None:
    mask = unpack_mask(pack_mask(MASK))
    mask[0, 0, 0] = not mask[0, 0, 0]
    assert not np.array_equal(mask, MASK)


def test_a_mask_that_repeats_itself_takes_far_less_than_its_bits() -> None:
    """A disc in the 81 frames of a 480p clip, the same within each group of four, moving between groups."""
    y, x = np.mgrid[:480, :832]
    groups = [(y - 240) ** 2 + (x - 200 - 20 * group) ** 2 < 100**2 for group in range(21)]
    mask = np.stack([groups[(frame + 3) // 4] for frame in range(81)])
    assert len(pack_mask(mask)) < mask.size / 8 / 20


@pytest.mark.parametrize("mask", [MASK.astype(np.uint8), MASK[0], MASK[None]])
def test_only_boolean_videos_are_packed(mask: NDArray[np.bool_]) -> None:
    with pytest.raises(ValueError, match="expected a boolean mask of three axes"):
        pack_mask(mask)


def test_every_changed_or_missing_byte_of_the_bits_is_noticed() -> None:
    packed = pack_mask(MASK)
    header = 4 + 3 * 4
    for place in range(header, len(packed)):
        changed = bytearray(packed)
        changed[place] ^= 0xFF
        with pytest.raises(ValueError, match="expected"):
            unpack_mask(bytes(changed))
    for size in range(len(packed)):
        with pytest.raises(ValueError, match="expected"):
            unpack_mask(packed[:size])
    with pytest.raises(ValueError, match="unclean end"):
        unpack_mask(packed + b"x")


def test_sizes_that_do_not_fit_the_bits_are_refused_before_anything_is_inflated() -> None:
    bomb = zlib.compress(bytes(1 << 24))
    with pytest.raises(ValueError, match="expected 8 bytes"):
        unpack_mask(struct.pack("<4s3I", MAGIC, 4, 4, 4) + bomb)
    with pytest.raises(ValueError, match="at most"):
        unpack_mask(struct.pack("<4s3I", MAGIC, 2**32 - 1, 2**32 - 1, 2**32 - 1) + bomb)
