"""A stored mask as a picture that a page can draw over its video. Knows nothing about stores or routes.

Shape letters: F frames, H, W pixels.
"""

import dataclasses
import io

from PIL import Image

from reprise.chorus.mask_codec import unpack_mask


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MaskPicture:
    """All frames in one picture, from top to bottom; opaque inside the object, clear outside."""

    png: bytes
    num_frames: int


def draw_mask(stored: bytes) -> MaskPicture:
    """Draw a packed mask; raises ValueError for what is none."""
    mask_FHW = unpack_mask(stored)
    alpha = Image.fromarray(mask_FHW.reshape(-1, mask_FHW.shape[2])).convert("L")
    picture = Image.merge("LA", (Image.new("L", alpha.size, 255), alpha))
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return MaskPicture(png=buffer.getvalue(), num_frames=len(mask_FHW))
