"""How much memory a model and one clip of it take, by arithmetic, before anything is loaded or downloaded.

One clip runs at a time on a device, and its largest moment is one of two: a forward of the transformer, which grows
with the tokens, or the decoding of the frames, which grows with the picture. Counts what tensors hold; HEADROOM is
for what a library adds on top. Standard library only; knows nothing about devices.
"""

import dataclasses
from collections.abc import Mapping
from typing import Final

GIB: Final = 2**30
HEADROOM: Final = 1.1
"""For work spaces of kernels, and for what an allocator holds in pieces too small to use again."""
_BYTES: Final[Mapping[str, int]] = {"float32": 4, "bfloat16": 2, "float16": 2}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MemoryNeed:
    """Bytes on the device of a loaded model that makes one clip."""

    weights: int
    forward: int
    decode: int

    @property
    def peak(self) -> int:
        """Give the largest moment, with headroom."""
        return round(HEADROOM * (self.weights + max(self.forward, self.decode)))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MemoryCosts:
    """What one architecture takes; `python -m benchmarks.memory_plan` measures each of them anew."""

    text_encoder_parameters: int
    transformer_parameters: int
    vae_parameters: int
    forward_elements_per_token: float
    """Of the transformer's dtype, at a forward's largest moment."""
    decode_elements_per_pixel: float
    """Of the VAE's dtype, at the largest moment, for a pixel of one frame; the video itself comes on top."""
    token_frames: int = 4
    token_pixels: int = 16
    """Frames, and pixels of a side, that one token stands for."""

    def need(
        self,
        *,
        width: int,
        height: int,
        num_frames: int,
        text_encoder_dtype: str,
        transformer_dtype: str,
        vae_dtype: str,
    ) -> MemoryNeed:
        """Predict the need of one clip."""
        latents = (num_frames - 1) // self.token_frames + 1
        tokens = latents * (width // self.token_pixels) * (height // self.token_pixels)
        decoded = (self.decode_elements_per_pixel + 3 * num_frames) * width * height
        return MemoryNeed(
            weights=self.text_encoder_parameters * _BYTES[text_encoder_dtype]
            + self.transformer_parameters * _BYTES[transformer_dtype]
            + self.vae_parameters * _BYTES[vae_dtype],
            forward=round(self.forward_elements_per_token * tokens) * _BYTES[transformer_dtype],
            decode=round(decoded) * _BYTES[vae_dtype],
        )
