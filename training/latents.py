"""Render and encode the training set: `python -m training.latents --clips 40000 --frames 17`.

Writes shards of normalised latents, the scenes they show (prompts are worded afresh at every use) and, per
latent cell, which shape covers it (the label of an auxiliary loss). Held-out scenes never enter.

Shape letters: B clips, C latent channels, L latent frames, h, w latent grid, T, H, W pixels.
"""

import argparse
import dataclasses
import os
import pathlib

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reprise.tinyworld import Rendering, SceneSpec, is_held_out, render_scene, sample_scene
from reprise.tinyworld.scene import SHAPES
from reprise.wan.tiny_vae import AutoencoderKLTiny
from training.recipe import RUNS, WEIGHTS, load_half
from training.vae import to_video

SEED, BATCH = 21, 16
SHARD_CLIPS, SHARD_FRAMES = 2000, 34_000
"""Most clips and most frames of one shard."""


@dataclasses.dataclass(frozen=True, slots=True)
class LatentSet:
    """Latents (n, C, L, h, w) fp16, cell labels (n, L, h, w) uint8 (0: none, 1 + shape), their scenes."""

    latents: Tensor
    cells: Tensor
    scenes: list[SceneSpec]


def load_vae() -> AutoencoderKLTiny:
    """Load the trained autoencoder in float32."""
    folder = WEIGHTS / "tiny" / "vae"
    vae = AutoencoderKLTiny.from_config(AutoencoderKLTiny.load_config(folder))
    load_half(vae, folder / "diffusion_pytorch_model.safetensors")
    return vae.eval().requires_grad_(False).to(memory_format=torch.channels_last)  # type: ignore[no-any-return]


def normalise(vae: AutoencoderKLTiny, latents: Tensor) -> Tensor:
    """Scale raw latents to zero mean and unit variance a channel, as the video model sees them."""
    mean = torch.tensor(vae.config.latents_mean).view(1, -1, 1, 1, 1)
    return (latents - mean) / torch.tensor(vae.config.latents_std).view(1, -1, 1, 1, 1)


def label_cells(scene: SceneSpec, rendering: Rendering) -> NDArray[np.uint8]:
    """Label each latent cell (L, h, w) with 1 + the shape that covers most of it, 0 below a quarter."""
    masks = rendering.masks_KTHW.astype(np.float32)
    masks = np.concatenate([np.repeat(masks[:, :1], 3, 1), masks], 1)
    K, T, H, W = masks.shape
    share = masks.reshape(K, T // 4, 4, H // 8, 8, W // 8, 8).mean((2, 4, 6))
    shapes = np.array([1 + SHAPES.index(item.shape) for item in scene.objects], np.uint8)
    return np.where(share.max(0) > 0.25, shapes[share.argmax(0)], 0).astype(np.uint8)


def make_shard(vae: AutoencoderKLTiny, index: int, num_frames: int) -> dict[str, object]:
    """Render and encode one shard, determined by its index."""
    rng = np.random.default_rng((SEED, num_frames, index))
    scenes: list[SceneSpec] = []
    while len(scenes) < clips_per_shard(num_frames):
        scene = sample_scene(rng)
        if not is_held_out(scene):
            scenes.append(scene)
    latents, cells = [], []
    for first in range(0, len(scenes), BATCH):
        batch = scenes[first : first + BATCH]
        renderings = [render_scene(scene, num_frames, rng) for scene in batch]
        video = to_video(torch.from_numpy(np.stack([item.frames_THWC for item in renderings])))
        latents.append(normalise(vae, vae.moments(video).chunk(2, 1)[0]).half())
        cells += [label_cells(scene, item) for scene, item in zip(batch, renderings, strict=True)]
    return {"latents": torch.cat(latents), "cells": torch.from_numpy(np.stack(cells)), "scenes": scenes}


def clips_per_shard(num_frames: int) -> int:
    """Give how many clips of a length lie in one file."""
    return min(SHARD_CLIPS, SHARD_FRAMES // num_frames)


def shard_path(index: int, num_frames: int) -> pathlib.Path:
    """Name a shard's file."""
    return RUNS / "latents" / f"{num_frames}-{index:03d}.pt"


def load_latents(num_frames: int) -> LatentSet:
    """Load every shard written so far."""
    shards = [torch.load(path, weights_only=False) for path in sorted((RUNS / "latents").glob(f"{num_frames}-*.pt"))]
    if not shards:
        raise FileNotFoundError(f"no latents of {num_frames} frames in {RUNS}: run python -m training.latents first")
    return LatentSet(
        torch.cat([shard["latents"] for shard in shards]),
        torch.cat([shard["cells"] for shard in shards]),
        [scene for shard in shards for scene in shard["scenes"]],
    )


def main() -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=24_000)
    parser.add_argument("--frames", type=int, default=17)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    vae = load_vae()
    (RUNS / "latents").mkdir(parents=True, exist_ok=True)
    for index in range(-(-args.clips // clips_per_shard(args.frames))):
        path = shard_path(index, args.frames)
        if not path.exists():
            torch.save(make_shard(vae, index, args.frames), f"{path}.new")
            os.replace(f"{path}.new", path)
            print(f"{path} written", flush=True)


if __name__ == "__main__":
    main()
