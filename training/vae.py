"""Train the tiny video autoencoder: `python -m training.vae`.

L1 + 4 MSE + a light KL on windows of five frames (two latents), with random shifts, flips and channel
orders so that the codec learns edges and colours, not scenes. Ends by measuring latent statistics, PSNR
and how well the exact scorer still reads reconstructed held-out clips (the ceiling of any model on top).

Shape letters: B clips, T frames, H, W pixels, C channels.
"""

import argparse
import math

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reprise.tinyworld import SceneSpec, is_held_out, render_scene, sample_scene, score_video
from reprise.wan.tiny_vae import AutoencoderKLTiny
from training.recipe import WEIGHTS, Average, Run, generator_for, save_half, write_card

SEED, BATCH, WINDOW, LEARNING_RATE, KL_WEIGHT = 11, 6, 5, 2e-3, 1e-3


def render_pool(num_clips: int, num_frames: int, seed: int, *, held_out: bool) -> tuple[Tensor, list[SceneSpec]]:
    """Render clips (n, T, H, W, C) uint8 from the training or the held-out scenes, and their scenes."""
    rng = np.random.default_rng(seed)
    clips: list[NDArray[np.uint8]] = []
    scenes: list[SceneSpec] = []
    while len(clips) < num_clips:
        scene = sample_scene(rng)
        if is_held_out(scene) == held_out:
            clips.append(render_scene(scene, num_frames, rng).frames_THWC)
            scenes.append(scene)
    return torch.from_numpy(np.stack(clips)), scenes


def to_video(clips_BTHWC: Tensor) -> Tensor:
    """Turn uint8 frames into (B, C, T, H, W) in -1..1."""
    return clips_BTHWC.permute(0, 4, 1, 2, 3).float() / 127.5 - 1


def to_frames(video_BCTHW: Tensor) -> Tensor:
    """Turn (B, C, T, H, W) in -1..1 into uint8 frames (B, T, H, W, C)."""
    return ((video_BCTHW.clamp(-1, 1) + 1) * 127.5).round().byte().permute(0, 2, 3, 4, 1)


def augmented_batch(pool: Tensor, generator: torch.Generator) -> Tensor:
    """Cut random windows out of the pool and shift, flip and recolour them."""

    def draw(high: int, size: int = 1) -> list[int]:
        return torch.randint(high, (size,), generator=generator).tolist()

    starts = draw(pool.shape[1] - WINDOW + 1, BATCH)
    clips = draw(len(pool), BATCH)
    video = to_video(torch.stack([pool[i, s : s + WINDOW] for i, s in zip(clips, starts, strict=True)]))
    video = torch.roll(video, (draw(64)[0], draw(64)[0]), (3, 4))
    flip_x, flip_time, permute = draw(2, 3)
    video = video.flip(4) if flip_x else video
    video = video.flip(2) if flip_time else video
    return video[:, torch.randperm(3, generator=generator)] if permute else video


def measure(vae: AutoencoderKLTiny) -> dict[str, float]:
    """Measure reconstruction of 100 held-out clips: PSNR and the scorer's hits on single objects."""
    clips, scenes = render_pool(140, 17, 99, held_out=True)
    psnr, hits = [], []
    with torch.no_grad():
        for clip, scene in zip(clips, scenes, strict=True):
            video = to_video(clip[None])
            mean = vae.moments(video).chunk(2, 1)[0]
            back = vae.decode(mean).sample
            psnr.append(10 * math.log10(4 / (back - video).pow(2).mean().item()))
            if len(scene.objects) == 1:
                hits.append(score_video(to_frames(back)[0].numpy(), scene))
    names = ("shape", "colour", "size", "motion", "background")
    shares = {f"scorer_{name}": float(np.mean([getattr(hit, name) for hit in hits])) for name in names}
    return {"psnr_db": round(float(np.mean(psnr)), 2), "psnr_min_db": round(float(np.min(psnr)), 2), **shares}


def main() -> None:
    """Run the recipe."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    torch.manual_seed(SEED)
    vae = AutoencoderKLTiny().to(memory_format=torch.channels_last)
    optimizer = torch.optim.AdamW(vae.parameters(), lr=LEARNING_RATE, betas=(0.9, 0.99), weight_decay=1e-4)
    average = Average(vae, decay=0.998)
    pool, _ = render_pool(1500, 17, SEED, held_out=False)

    def step(index: int) -> float:
        generator = generator_for(SEED, index)
        share = index / args.steps
        scale = min(1, (index + 1) / 50) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * share)))
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * scale
        video = augmented_batch(pool, generator)
        mean, log_variance = vae.moments(video).chunk(2, 1)
        log_variance = log_variance.clamp(-12, 4)
        noise = torch.randn(mean.shape, generator=generator)
        error = vae.decode_group(mean + noise * (0.5 * log_variance).exp()) - video
        divergence = 0.5 * (mean**2 + log_variance.exp() - 1 - log_variance).mean()
        loss = error.abs().mean() + 4 * error.pow(2).mean() + KL_WEIGHT * divergence
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(vae.parameters(), 1.0)
        optimizer.step()
        average.update(vae)
        return float(error.detach().pow(2).mean())

    run = Run(name="vae", num_steps=args.steps, state={"vae": vae, "optimizer": optimizer, "average": average})
    facts = run.train(step)
    average.copy_to(vae)
    vae.eval()
    with torch.no_grad():
        clips, _ = render_pool(100, 17, 98, held_out=False)
        latents = torch.cat([vae.moments(to_video(clip[None])).chunk(2, 1)[0] for clip in clips])
    vae.register_to_config(
        latents_mean=latents.mean((0, 2, 3, 4)).tolist(), latents_std=latents.std((0, 2, 3, 4)).tolist()
    )
    folder = WEIGHTS / "tiny" / "vae"
    vae.save_config(folder)
    save_half(vae, folder / "diffusion_pytorch_model.safetensors")
    write_card(
        folder,
        title="Tiny causal video autoencoder",
        recipe=f"python -m training.vae --steps {args.steps} --threads {args.threads}",
        text="AutoencoderKLTiny, 8x space and 4x time, trained on rendered tiny-world clips (seed "
        f"{SEED}, batch {BATCH} windows of {WINDOW} frames). `loss` is the smoothed training MSE in -1..1 units; "
        "`scorer_*` is the share of single-object held-out clips whose attribute the exact scorer still reads.",
        facts={**facts, **measure(vae)},
    )


if __name__ == "__main__":
    main()
