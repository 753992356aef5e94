"""What compressed trajectories cost: `python -m benchmarks.trajectory [--json]`.

Sources are generated in full and every state kept in float32: that is exact storage. Each grid and dtype then rebuilds
them. `latent_psnr` compares the states that enter steps 1 to 0.8 N, rebuilt, with the exact ones; the peak is the
range of the exact latent. Then a prompt that differs from the source's in one attribute goes on from the rebuilt state
at a step between grid points, and from the exact one: `video_psnr` compares the two clips, `score_loss` is the loss of
attributes that the exact scorer finds, in points of 100. The summary is of the default grid and dtype.
"""

import dataclasses
import math
import statistics
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from benchmarks.report import Report, Scalar, argument_parser, publish
from reprise.chorus.compression import DEFAULT_DTYPE, compress, entry_bytes, exact_bytes, rebuild
from reprise.chorus.grid import MAX_GAP_SHARE, TrajectoryGrid, steps_needed
from reprise.chorus.stages import StageBoundaries
from reprise.sampling import SolverState
from reprise.tinyworld import (
    AttributeScore,
    SceneSpec,
    change_one,
    is_held_out,
    sample_scene,
    score_video,
    write_prompt,
)
from reprise.wan.model import WanModel, decode_video, denoise, draw_noise, encode_prompt, load, solver_for
from reprise.wan.presets import tiny

LAST_SHARE: Final = 0.8
"""Of N: the largest K2 that the grids must reach."""
START_SHARES: Final = (0.14, 0.26, 0.46)
"""K1 as shares of N, one after the other over the pairs; between the grid points of every grid at N = 50."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Storage:
    """One way to keep a run."""

    dtype: str = DEFAULT_DTYPE
    max_gap_share: float = MAX_GAP_SHARE


DEFAULT: Final = Storage()
STORAGES: Final = (
    *(Storage(max_gap_share=share) for share in (0.04, 0.1, 0.2, 0.4)),
    Storage(dtype="bfloat16"),
    Storage(dtype="float32"),
)
BEST_PSNR: Final = 100.0
"""Shown for equal values too, whose ratio has no logarithm."""
NUM_ATTRIBUTES: Final = len(dataclasses.fields(AttributeScore))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Sample:
    """What one pair gave under one setting."""

    latent_psnrs: list[float]
    video_psnr: float
    attributes_lost: float
    """Against the clip from the exact state, in points of 100; below zero when more were found."""


def psnr(exact: NDArray[np.float32], other: NDArray[np.float32], *, peak: float) -> float:
    """Give the peak signal-to-noise ratio in dB."""
    error = float(np.square(exact.astype(np.float64) - other).mean())
    return BEST_PSNR if error == 0 else min(BEST_PSNR, 10 * math.log10(peak**2 / error))


def grid_for(storage: Storage, *, num_steps: int) -> TrajectoryGrid:
    """Give even steps up to LAST_SHARE of the run; at the default gap they are those that the server stores."""
    last = int(LAST_SHARE * num_steps)
    num_parts = math.ceil(last / max(1, math.floor(storage.max_gap_share * num_steps + 1e-9)))
    return TrajectoryGrid(
        num_steps=num_steps, steps=tuple(last * part // num_parts for part in range(1, num_parts + 1))
    )


def draw_pair(rng: np.random.Generator) -> tuple[str, SceneSpec, str]:
    """Draw a source's prompt, a target scene one attribute apart that training held out, and its prompt."""
    while True:
        scene = sample_scene(rng, num_objects=1)
        target = change_one(scene, rng)
        if is_held_out(target):
            return write_prompt(scene, rng), target, write_prompt(target, rng)


def run_states(model: WanModel, prompt: str, start: SolverState, *, num_steps: int) -> list[Tensor]:
    """Run a prompt from a state to the end; give the latents that enter each later step, the last one included."""
    embedding, negative = encode_prompt(model, prompt), encode_prompt(model, "")
    solver = solver_for(model, num_steps=num_steps)
    steps = denoise(model, solver, start, embedding, negative, model.preset.guidance_scale)
    return [state.latent_BCTHW for state in steps]


def measure_pair(model: WanModel, rng: np.random.Generator, *, seed: int, k1: int, num_steps: int) -> list[Sample]:
    """Measure every setting on one source and one target."""
    source, scene, target = draw_pair(rng)
    preset = model.preset
    width, height = preset.sizes[preset.default_size]
    noise = draw_noise(model, seed=seed, width=width, height=height, num_frames=preset.default_num_frames)
    exact = [noise, *run_states(model, source, SolverState(latent_BCTHW=noise), num_steps=num_steps)]
    sigmas: list[float] = solver_for(model, num_steps=num_steps).sigmas.tolist()

    def finish(latent_BCTHW: Tensor) -> NDArray[np.uint8]:
        start = SolverState(latent_BCTHW=latent_BCTHW, step=k1)
        return decode_video(model, run_states(model, target, start, num_steps=num_steps)[-1])

    frames = finish(exact[k1])
    found = len(score_video(frames, scene).found())
    samples = []
    for storage in STORAGES:
        grid = grid_for(storage, num_steps=num_steps)
        points = {0: noise, **{step: compress(exact[step], dtype=storage.dtype) for step in grid.steps}}
        psnrs = []
        for step in range(1, grid.steps[-1] + 1):
            latent = exact[step].numpy()
            rebuilt = rebuild(points, step, sigmas=sigmas).numpy()
            psnrs.append(psnr(latent, rebuilt, peak=float(np.ptp(latent))))
        fetched = {step: points[step] for step in steps_needed(StageBoundaries(k1=k1, k2=k1), grid)}
        other = finish(rebuild(fetched, k1, sigmas=sigmas))
        lost = found - len(score_video(other, scene).found())
        samples.append(
            Sample(
                latent_psnrs=psnrs,
                video_psnr=psnr(frames.astype(np.float32), other.astype(np.float32), peak=255.0),
                attributes_lost=100 * lost / NUM_ATTRIBUTES,
            )
        )
    return samples


def row_of(storage: Storage, samples: Sequence[Sample], *, num_steps: int, num_elements: int) -> dict[str, Scalar]:
    """Average one setting over the pairs."""
    grid = grid_for(storage, num_steps=num_steps)
    num_bytes = entry_bytes(grid, num_elements=num_elements, dtype=storage.dtype)
    losses = [sample.attributes_lost for sample in samples]
    return {
        "dtype": storage.dtype,
        "max_gap_share": storage.max_gap_share,
        "points": len(grid.steps),
        "bytes_per_entry": num_bytes,
        "bytes_share": num_bytes / exact_bytes(num_steps, num_elements=num_elements),
        "latent_psnr_mean": statistics.fmean(value for sample in samples for value in sample.latent_psnrs),
        "latent_psnr_least": min(value for sample in samples for value in sample.latent_psnrs),
        "video_psnr": statistics.fmean(sample.video_psnr for sample in samples),
        "video_psnr_least": min(sample.video_psnr for sample in samples),
        "score_loss": statistics.fmean(losses),
        "score_loss_error": statistics.stdev(losses) / math.sqrt(len(losses)) if len(losses) > 1 else None,
    }


def main() -> None:
    """Run the benchmark."""
    preset = tiny()
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--pairs", type=int, default=18, help="sources, each with one target")
    parser.add_argument("--steps", type=int, default=preset.num_inference_steps)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load(preset)
    rng = np.random.default_rng(options.seed)
    starts = [max(1, round(share * options.steps)) for share in START_SHARES]
    pairs = [
        measure_pair(model, rng, seed=options.seed + index, k1=starts[index % len(starts)], num_steps=options.steps)
        for index in range(options.pairs)
    ]
    width, height = preset.sizes[preset.default_size]
    noise = draw_noise(model, seed=0, width=width, height=height, num_frames=preset.default_num_frames)
    rows = [
        row_of(storage, samples, num_steps=options.steps, num_elements=noise.numel())
        for storage, samples in zip(STORAGES, zip(*pairs, strict=True), strict=True)
    ]
    chosen = rows[STORAGES.index(DEFAULT)]
    names = ("bytes_share", "score_loss", "score_loss_error", "latent_psnr_mean", "video_psnr")
    publish(
        Report(
            name="trajectory",
            parameters={
                "preset": preset.name,
                "weights": model.fingerprint,
                "steps": options.steps,
                "pairs": options.pairs,
                "starts": ", ".join(map(str, starts)),
                "last_step": int(LAST_SHARE * options.steps),
                "exact_bytes": exact_bytes(options.steps, num_elements=noise.numel()),
            },
            rows=rows,
            summary={name: value for name in names if isinstance(value := chosen[name], float)},
            notes=[
                "a PSNR is cut at 100 dB",
                "score_loss is paired: same target, seed and K1, exact against rebuilt start",
            ],
        ),
        options,
    )


if __name__ == "__main__":
    main()
