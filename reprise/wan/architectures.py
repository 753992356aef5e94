"""The published shapes of the Wan family, to build models of without their weights.

The keyword arguments are those of the diffusers and transformers classes; a checkpoint brings its own `config.json`,
which this code never overrides. What memory plans, speed measurements and tests of real sizes share.
"""

import contextlib
import dataclasses
import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel
from transformers import UMT5Config, UMT5EncoderModel

from reprise.wan.presets import WEIGHTS
from reprise.wan.tiny_vae import AutoencoderKLTiny

UMT5_XXL: Final = {
    "vocab_size": 256384,
    "d_model": 4096,
    "d_kv": 64,
    "d_ff": 10240,
    "num_layers": 24,
    "num_heads": 64,
    "feed_forward_proj": "gated-gelu",
}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Architecture:
    """What tells one published size from another; everything else is the class's default."""

    transformer: Mapping[str, Any]
    vae: Mapping[str, Any]
    vae_class: type[Any] = AutoencoderKLWan
    text_encoder: Mapping[str, Any] = dataclasses.field(default_factory=lambda: UMT5_XXL)

    def build_transformer(self, dtype: torch.dtype, **changes: Any) -> WanTransformer3DModel:
        """Build the transformer with random weights on the default device."""
        with _default_dtype(dtype):
            return WanTransformer3DModel(**{**self.transformer, **changes}).eval().requires_grad_(False)

    def build_vae(self, dtype: torch.dtype) -> Any:
        """Build the autoencoder."""
        with _default_dtype(dtype):
            return self.vae_class(**self.vae).eval().requires_grad_(False)

    def build_text_encoder(self, dtype: torch.dtype) -> UMT5EncoderModel:
        """Build the text encoder."""
        with _default_dtype(dtype):
            return UMT5EncoderModel(UMT5Config(**self.text_encoder)).eval().requires_grad_(False)


@contextlib.contextmanager
def _default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


def tiny() -> Architecture:
    """Give the bundled model, as its own configuration says."""

    def config(part: str) -> dict[str, Any]:
        written: dict[str, Any] = json.loads((WEIGHTS / "tiny" / part / "config.json").read_text())
        return {key: value for key, value in written.items() if not key.startswith("_")}

    return Architecture(
        transformer=config("transformer"),
        vae=config("vae"),
        vae_class=AutoencoderKLTiny,
        text_encoder=config("text_encoder"),
    )


def wan21_1_3b() -> Architecture:
    """Give Wan2.1-T2V-1.3B."""
    return Architecture(transformer={"num_attention_heads": 12, "num_layers": 30, "ffn_dim": 8960}, vae={})


def wan21_14b() -> Architecture:
    """Give Wan2.1-T2V-14B."""
    return Architecture(transformer={"num_attention_heads": 40, "num_layers": 40, "ffn_dim": 13824}, vae={})


def wan22_ti2v_5b() -> Architecture:
    """Give Wan2.2-TI2V-5B, whose autoencoder makes one latent of 16x16 pixels."""
    return Architecture(
        transformer={
            "num_attention_heads": 24,
            "num_layers": 30,
            "ffn_dim": 14336,
            "in_channels": 48,
            "out_channels": 48,
        },
        vae={
            "base_dim": 160,
            "decoder_base_dim": 256,
            "z_dim": 48,
            "in_channels": 12,
            "out_channels": 12,
            "patch_size": 2,
            "is_residual": True,
            "scale_factor_spatial": 16,
            "latents_mean": [0.0] * 48,
            "latents_std": [1.0] * 48,
        },
    )
