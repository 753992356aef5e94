"""A pixel mask as bytes, to keep the masks of a source's phrases beside its latents (Chorus, 3.3.1).

Magic, three sizes, then the packed bits deflated: a mask repeats itself from frame to frame, so that the bytes are few.
The same mask always gives the same bytes. Knows no store.

Shape letters: F video frames, H, W pixels.
"""

import math
import struct
import zlib
from typing import Final

import numpy as np
from numpy.typing import NDArray

MAGIC: Final = b"RPM1"
_HEADER: Final = struct.Struct("<4s3I")
_LEVEL: Final = 1
_MAX_PIXELS: Final = 1 << 32


def pack_mask(mask_FHW: NDArray[np.bool_]) -> bytes:
    """Give the stored form of a boolean mask; raise ValueError for anything else."""
    if mask_FHW.dtype != np.bool_ or mask_FHW.ndim != 3:
        raise ValueError(f"expected a boolean mask of three axes, got {mask_FHW.dtype} of shape {mask_FHW.shape}")
    return _HEADER.pack(MAGIC, *mask_FHW.shape) + zlib.compress(np.packbits(mask_FHW).tobytes(), _LEVEL)


def unpack_mask(data: bytes) -> NDArray[np.bool_]:
    """Give the mask (F, H, W) back; raise ValueError when the bytes are no whole mask.

    No more is inflated than the header's sizes allow, whatever the bytes say.
    """
    if len(data) < _HEADER.size or data[:4] != MAGIC:
        raise ValueError(f"expected a mask that begins with {MAGIC!r}, got {len(data)} bytes that do not")
    shape = _HEADER.unpack_from(data)[1:]
    num_pixels = math.prod(shape)
    if num_pixels > _MAX_PIXELS:
        raise ValueError(f"expected a mask of at most {_MAX_PIXELS} pixels, got shape {shape}")
    num_bytes = -(-num_pixels // 8)
    inflate = zlib.decompressobj()
    try:
        bits = inflate.decompress(data[_HEADER.size :], num_bytes + 1)
    except zlib.error as error:
        raise ValueError(f"expected deflated bits of a mask of shape {shape}, got {error}") from error
    if len(bits) != num_bytes or not inflate.eof or inflate.unused_data:
        raise ValueError(f"expected {num_bytes} bytes for a mask of shape {shape}, got {len(bits)}, or an unclean end")
    return np.unpackbits(np.frombuffer(bits, np.uint8), count=num_pixels).astype(np.bool_).reshape(shape)
