"""A small causal video autoencoder with the interface of diffusers' AutoencoderKLWan.

8x in space, 4x in time, 1 + 4k frames. A latent sees only its own four frames (the first one sees the
first frame, repeated); a decoded group sees its own latent and the one before. So encoding and decoding
stream exactly: the only state between calls is the previous latent. Knows nothing about the tiny world.

Shape letters: B batch, C channels, T frames, H height, W width in pixels; L latent frames, h, w latent grid.
"""

from typing import Any, cast

import torch
from diffusers import ModelMixin
from diffusers.configuration_utils import ConfigMixin, register_to_config
from diffusers.models.autoencoders.vae import DecoderOutput, DiagonalGaussianDistribution
from diffusers.models.modeling_outputs import AutoencoderKLOutput
from torch import Tensor, nn
from torch.nn import functional as F

_GROUP, _PATCH = 4, 8


class ResidualBlock(nn.Module):
    """Two 3x3 convolutions around which the identity passes; starts as the identity."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = nn.GroupNorm(8, channels), nn.Conv2d(channels, channels, 3, padding=1)
        self.norm2, self.conv2 = nn.GroupNorm(8, channels), nn.Conv2d(channels, channels, 3, padding=1)
        nn.init.zeros_(self.conv2.weight)
        nn.init.zeros_(cast(Tensor, self.conv2.bias))

    def forward(self, x: Tensor) -> Tensor:
        """Refine a feature map (N, C, H, W)."""
        y = self.conv1(F.silu(self.norm1(x)))
        return cast(Tensor, x + self.conv2(F.silu(self.norm2(y))))


class AutoencoderKLTiny(ModelMixin, ConfigMixin):  # type: ignore[misc]
    """Encode (B, 3, 1 + 4k, 8h, 8w) in -1..1 to (B, z_dim, 1 + k, h, w) and back."""

    @register_to_config  # type: ignore[untyped-decorator]
    def __init__(
        self,
        z_dim: int = 16,
        channels: int = 128,
        detail_channels: int = 48,
        latents_mean: list[float] | None = None,
        latents_std: list[float] | None = None,
        scale_factor_temporal: int = _GROUP,
        scale_factor_spatial: int = _PATCH,
    ) -> None:
        super().__init__()
        if (scale_factor_temporal, scale_factor_spatial) != (_GROUP, _PATCH):
            raise ValueError(
                f"scale factors are fixed at ({_GROUP}, {_PATCH}), got "
                f"scale_factor_temporal={scale_factor_temporal}, scale_factor_spatial={scale_factor_spatial}"
            )
        self.register_to_config(latents_mean=latents_mean or [0.0] * z_dim, latents_std=latents_std or [1.0] * z_dim)
        self.detail_channels = detail_channels
        self.encode_in = nn.Conv2d(3 * _GROUP * _PATCH**2, channels, 1)
        self.encode_blocks = nn.Sequential(*[ResidualBlock(channels) for _ in range(2)])
        self.encode_out = nn.Conv2d(channels, 2 * z_dim, 1)
        self.decode_in = nn.Conv2d(2 * z_dim, channels, 3, padding=1)
        self.decode_blocks = nn.Sequential(*[ResidualBlock(channels) for _ in range(3)])
        self.decode_split = nn.Conv2d(channels, 4 * _GROUP * detail_channels, 1)
        self.detail_block = ResidualBlock(detail_channels)
        self.decode_out = nn.Conv2d(detail_channels, 48, 3, padding=1)

    def moments(self, video_BCTHW: Tensor) -> Tensor:
        """Encode to mean and log variance stacked on the channels, (B, 2 z_dim, L, h, w)."""
        first = video_BCTHW[:, :, :1].expand(-1, -1, _GROUP - 1, -1, -1)
        video = torch.cat([first, video_BCTHW], 2)
        B, _, T, H, W = video.shape
        L, h, w = T // _GROUP, H // _PATCH, W // _PATCH
        patches = video.view(B, 3, L, _GROUP, h, _PATCH, w, _PATCH).permute(0, 2, 1, 3, 5, 7, 4, 6)
        x = patches.reshape(B * L, -1, h, w).contiguous(memory_format=torch.channels_last)
        x = self.encode_out(self.encode_blocks(self.encode_in(x)))
        return cast(Tensor, x.view(B, L, -1, h, w).transpose(1, 2))

    def decode_group(self, latents_BCLhw: Tensor, previous_BC1hw: Tensor | None = None) -> Tensor:
        """Decode latents to frames; four a latent, one for the very first when there is no `previous`."""
        B, _, L, h, w = latents_BCLhw.shape
        before = torch.zeros_like(latents_BCLhw[:, :, :1]) if previous_BC1hw is None else previous_BC1hw
        pair = torch.cat([torch.cat([before, latents_BCLhw[:, :, :-1]], 2), latents_BCLhw], 1)
        x = pair.transpose(1, 2).reshape(B * L, -1, h, w).contiguous(memory_format=torch.channels_last)
        x = self.decode_split(self.decode_blocks(self.decode_in(x)))
        # Split each latent into its four frames and each cell into 2x2, then refine and unfold by 4.
        x = x.view(B * L, _GROUP, self.detail_channels, 2, 2, h, w).permute(0, 1, 2, 5, 3, 6, 4)
        x = x.reshape(B * L * _GROUP, self.detail_channels, 2 * h, 2 * w)
        x = self.decode_out(self.detail_block(x.contiguous(memory_format=torch.channels_last)))
        video = F.pixel_shuffle(x, 4).view(B, L * _GROUP, 3, _PATCH * h, _PATCH * w).transpose(1, 2)
        return video if previous_BC1hw is not None else video[:, :, _GROUP - 1 :]

    def encode(self, x: Tensor, return_dict: bool = True) -> Any:
        """Encode frames (B, 3, T, H, W); `T` must be 1 + 4k, `H` and `W` multiples of 8."""
        _, _, T, H, W = x.shape
        if T % _GROUP != 1 or H % _PATCH or W % _PATCH:
            raise ValueError(f"expected 1 + {_GROUP}k frames and sides divisible by {_PATCH}, got {T} x {H} x {W}")
        posterior = DiagonalGaussianDistribution(self.moments(x))
        return AutoencoderKLOutput(latent_dist=posterior) if return_dict else (posterior,)

    def decode(self, z: Tensor, return_dict: bool = True) -> Any:
        """Decode latents (B, z_dim, L, h, w) to frames in -1..1."""
        video = self.decode_group(z).clamp(-1, 1)
        return DecoderOutput(sample=video) if return_dict else (video,)
