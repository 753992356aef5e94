"""A small network that marks what a noun phrase names in a frame: the segmentation model of the bundled family.

Chorus section 3.3.1 asks a pretrained model for the pixels of a phrase; this one is of a size that can be trained on a
CPU. A frame is read once, in cells of 4x4 pixels, whatever the number of phrases; each phrase then scales and shifts
the cells' features. Frames wrap around: the left edge is the right one's neighbour. Knows nothing about tokenizers,
key frames or the tiny world.

Shape letters: N frames, P phrases, T tokens, C channels, H, W pixels, h, w cells.
"""

from typing import cast

import torch
import torch.nn.functional as F
from diffusers import ModelMixin
from diffusers.configuration_utils import ConfigMixin, register_to_config
from torch import Tensor, nn

CELL = 4
"""Side of a cell in pixels; frames are multiples of it."""


class WrappedBlock(nn.Module):
    """Two 3x3 convolutions on a torus around which the identity passes; starts as the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.GroupNorm(8, channels), nn.GroupNorm(8, channels)
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, padding_mode="circular")
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, padding_mode="circular")
        nn.init.zeros_(self.conv2.weight)
        nn.init.zeros_(cast(Tensor, self.conv2.bias))

    def forward(self, x_NChw: Tensor) -> Tensor:
        """Refine a feature map."""
        y = self.conv1(F.silu(self.norm1(x_NChw)))
        return cast(Tensor, x_NChw + self.conv2(F.silu(self.norm2(y))))


class PhraseSegmenter(ModelMixin, ConfigMixin):  # type: ignore[misc]
    """Give, for frames and tokenised phrases, a logit per pixel and one for whether the phrase is in the frame."""

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self,
        vocab_size: int = 640,
        pad_token_id: int = 0,
        channels: int = 64,
        num_blocks: int = 3,
        text_channels: int = 64,
    ) -> None:
        super().__init__()
        self.pad_token_id = pad_token_id
        self.words = nn.Embedding(vocab_size, text_channels)
        self.word_context = nn.Conv1d(text_channels, text_channels, 3, padding=1)
        self.phrase_out = nn.Linear(text_channels, 2 * channels)
        self.cells_in = nn.Conv2d(3 * CELL**2, channels, 1)
        self.blocks = nn.Sequential(*[WrappedBlock(channels) for _ in range(num_blocks)])
        self.cells_norm = nn.GroupNorm(8, channels)
        self.hidden = nn.Conv2d(channels, channels, 1)
        self.mask_out = nn.Conv2d(channels, CELL**2, 1)
        self.presence_out = nn.Linear(2 * channels, 1)

    def encode_phrases(self, tokens_PT: Tensor) -> Tensor:
        """Encode padded phrases to (P, 2C); words in any order, parts of one word by their neighbours."""
        is_word_PT1 = (tokens_PT != self.pad_token_id).unsqueeze(-1).float()
        x = (self.words(tokens_PT) * is_word_PT1).transpose(1, 2)
        x = (x + F.silu(self.word_context(x))).transpose(1, 2)
        mean_PC = (x * is_word_PT1).sum(1) / is_word_PT1.sum(1).clamp(min=1)
        return cast(Tensor, self.phrase_out(mean_PC))

    def forward(self, frames_NCHW: Tensor, tokens_NPT: Tensor) -> tuple[Tensor, Tensor]:
        """Give mask logits (N, P, H, W) and presence logits (N, P).

        Frames lie in -1..1; each has its own P phrases. Raises ValueError when a side is no multiple of a cell.
        """
        N, P, _ = tokens_NPT.shape
        H, W = frames_NCHW.shape[2:]
        if H % CELL or W % CELL:
            raise ValueError(f"expected sides that are multiples of {CELL}, got frames of {H}x{W}")
        cells_NChw = self.cells_norm(self.blocks(self.cells_in(F.pixel_unshuffle(frames_NCHW, CELL))))
        scale, shift = self.encode_phrases(tokens_NPT.flatten(0, 1)).view(N, P, -1, 1, 1).chunk(2, 2)
        seen = F.silu(cells_NChw.unsqueeze(1) * (1 + scale) + shift).flatten(0, 1)
        seen = F.silu(self.hidden(seen))
        masks_NPHW = F.pixel_shuffle(self.mask_out(seen), CELL).view(N, P, H, W)
        pooled = torch.cat([seen.amax((2, 3)), seen.mean((2, 3))], 1)
        return masks_NPHW, self.presence_out(pooled).view(N, P)
