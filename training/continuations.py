"""Render and encode what a live stream goes through: `python -m training.continuations --clips 12000`.

Each sample is a picture and the clip that follows it when the prompt holds, changes in one attribute, or is another
one. The picture has been through the VAE, as a boundary frame has when it is served, and is encoded alone, on the
first-frame path. Held-out scenes never enter as what is asked for.

Shape letters: B clips, C latent channels, L latent frames, h, w latent grid, T, H, W pixels.
"""

import argparse
import dataclasses
import os
from typing import Final

import numpy as np
import torch
from torch import Tensor

from reprise.tinyworld import SceneSpec, change_one, is_held_out, render_scene, sample_scene
from reprise.wan.tiny_vae import AutoencoderKLTiny
from training.latents import load_vae, normalise
from training.recipe import RUNS
from training.vae import to_video

SEED, BATCH, SHARD_CLIPS = 81, 20, 1000
NUM_FRAMES: Final = 33
"""One picture and eight latents of four frames."""
HOLD_SHARE, EDIT_SHARE = 0.4, 0.45
"""Of the samples, in how many the prompt holds and in how many one attribute changes; the rest shows another scene."""


@dataclasses.dataclass(frozen=True, slots=True)
class Continuations:
    """Pictures (n, C, 1, h, w) fp16, first frames (n, C, 1, h, w) fp16 and latents (n, C, L, h, w) fp16 of clips."""

    boundaries: Tensor
    """What is seen when the clip begins."""
    firsts: Tensor
    """The clip's own first frame, for a start from nothing."""
    latents: Tensor
    """Of the frames after the first."""
    scenes: list[SceneSpec]
    """What is asked for."""


def draw_before(scene: SceneSpec, rng: np.random.Generator) -> SceneSpec:
    """Draw what was shown before a scene was asked for."""
    draw = rng.random()
    if draw < HOLD_SHARE:
        return scene
    return change_one(scene, rng) if draw < HOLD_SHARE + EDIT_SHARE else sample_scene(rng)


@torch.no_grad()
def seen_again(vae: AutoencoderKLTiny, first_BCTHW: Tensor) -> Tensor:
    """Encode single frames, decode them, and encode what is seen; normalised latents of one frame."""
    decoded = vae.decode(vae.moments(first_BCTHW).chunk(2, 1)[0]).sample
    return normalise(vae, vae.moments(decoded).chunk(2, 1)[0])


def make_shard(vae: AutoencoderKLTiny, index: int) -> dict[str, object]:
    """Render and encode one shard, determined by its index; the same draws place both scenes alike."""
    rng = np.random.default_rng((SEED, index))
    scenes: list[SceneSpec] = []
    while len(scenes) < SHARD_CLIPS:
        scene = sample_scene(rng)
        if not is_held_out(scene):
            scenes.append(scene)
    boundaries, firsts, latents = [], [], []
    for first in range(0, len(scenes), BATCH):
        places = range(first, first + BATCH)
        before = [render_scene(draw_before(scenes[i], rng), 1, np.random.default_rng((SEED, index, i))) for i in places]
        clips = [render_scene(scenes[i], NUM_FRAMES, np.random.default_rng((SEED, index, i))) for i in places]
        pictures = to_video(torch.from_numpy(np.stack([item.frames_THWC for item in before])))
        video = to_video(torch.from_numpy(np.stack([item.frames_THWC for item in clips])))
        encoded = normalise(vae, vae.moments(video).chunk(2, 1)[0])
        boundaries.append(seen_again(vae, pictures).half())
        firsts.append(encoded[:, :, :1].half())
        latents.append(encoded[:, :, 1:].half())
    return {
        "boundaries": torch.cat(boundaries),
        "firsts": torch.cat(firsts),
        "latents": torch.cat(latents),
        "scenes": scenes,
    }


def load_continuations() -> Continuations:
    """Load every shard written so far."""
    shards = [torch.load(path, weights_only=False) for path in sorted((RUNS / "continuations").glob("*.pt"))]
    if not shards:
        raise FileNotFoundError(f"no continuations in {RUNS}: run python -m training.continuations first")
    boundaries, firsts, latents = (
        torch.cat([shard[name] for shard in shards]) for name in ("boundaries", "firsts", "latents")
    )
    return Continuations(boundaries, firsts, latents, [scene for shard in shards for scene in shard["scenes"]])


def main() -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clips", type=int, default=12_000)
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    vae = load_vae()
    folder = RUNS / "continuations"
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(-(-args.clips // SHARD_CLIPS)):
        path = folder / f"{index:03d}.pt"
        if not path.exists():
            torch.save(make_shard(vae, index), f"{path}.new")
            os.replace(f"{path}.new", path)
            print(f"{path} written", flush=True)


if __name__ == "__main__":
    main()
