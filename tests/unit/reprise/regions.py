"""Small regions, and transformers on which hidden tokens and amplified words make a difference."""

import dataclasses
import pathlib
from typing import Any

import torch
from diffusers import WanTransformer3DModel
from torch import Tensor

from reprise.chorus.masks import Grid, RegionMasks, region_masks
from reprise.wan.model import WanModel, load
from reprise.wan.presets import tiny

PATCHES: dict[str, Grid] = {"patch 2": (1, 2, 2), "patch 1": (1, 1, 1)}
GRID: Grid = (3, 6, 10)


def random_masks(seed: int, *, share: float = 0.1, grid: Grid = GRID, radii: tuple[int, int] = (0, 1)) -> RegionMasks:
    """Draw a base mask that is never empty, and dilate it."""
    base_THW = torch.rand(grid, generator=torch.Generator().manual_seed(seed)) < share
    base_THW[1, 2, 3] = True
    return region_masks(base_THW, edit_radius=radii[0], see_radius=radii[1])


def full_masks() -> RegionMasks:
    """Give the masks of a scene that differs everywhere."""
    return region_masks(torch.ones(GRID, dtype=torch.bool), edit_radius=0, see_radius=0)


def latent_of(seed: int, batch: int = 1, grid: Grid = GRID) -> Tensor:
    """Draw a latent of 16 channels."""
    return torch.randn(batch, 16, *grid, generator=torch.Generator().manual_seed(seed))


def transformer(patch: Grid) -> Any:
    """Build a transformer with random weights whose attention is far from even."""
    torch.manual_seed(3)
    built = WanTransformer3DModel(
        patch_size=patch,
        num_attention_heads=2,
        attention_head_dim=12,
        in_channels=16,
        out_channels=16,
        text_dim=32,
        freq_dim=32,
        ffn_dim=32,
        num_layers=3,
        rope_max_seq_len=32,
    )
    for block in built.blocks:
        torch.nn.init.normal_(block.attn1.norm_q.weight, 2.0)
        torch.nn.init.normal_(block.attn2.norm_q.weight, 2.0)
    return built.eval().requires_grad_(False)


def small_model(folder: pathlib.Path, patch: Grid) -> WanModel:
    """Load a checkpoint of the conftest and give it such a transformer."""
    preset = dataclasses.replace(
        tiny(), path=str(folder), sizes={"32x32": (32, 32)}, default_size="32x32", max_sequence_length=16
    )
    return dataclasses.replace(load(preset), transformer=transformer(patch))


def patch_of(model: WanModel) -> Grid:
    """Give the patch of a model's transformer."""
    patch: Grid = tuple(model.transformer.config.patch_size)
    return patch
