"""Fit TeaCache to the bundled model: `python -m training.teacache_fit`.

Liu et al., CVPR 2025, section 3.3: full runs show how far the output moves between successive steps; a polynomial of
degree 4 predicts that from the distance of the timestep projections. It is fitted over schedules down to four steps:
fitted to the usual one alone, it falls below zero at the distances of a short one, which would skip every step.
Then thresholds are tried on held-out scenes. Stored with the weights is the largest that loses no more of the
attributes the exact scorer finds than the bound, and whose clips stay near those of full runs: the scorer reads coarse
facts, which survive long after details have gone.
"""

import argparse
import dataclasses
import itertools
import json
import math
import pathlib
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reprise.sampling import SolverState, run_steps
from reprise.teacache import TeaCacheConfig, plan_computed
from reprise.tinyworld import SceneSpec, is_held_out, sample_scene, score_video, write_prompt
from reprise.wan.model import (
    WanModel,
    decode_video,
    draw_noise,
    encode_prompt,
    load,
    predict_velocity,
    solver_for,
)
from reprise.wan.presets import WEIGHTS, tiny
from reprise.wan.teacache import TeaCacheRun, projection_distances

SEED, DEGREE, LOSS_BOUND, NUM_ATTRIBUTES = 61, 4, 0.005, 7
LEAST_PSNR: Final = 30.0
"""In dB, of the chosen threshold's clips."""
FIT_STEPS: Final = (50, 25, 12, 6, 4)
THRESHOLDS: Final = (0.05, 0.1, 0.2, 0.3)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """One threshold over all trial scenes, against full runs of the same seeds."""

    threshold: float
    skipped_share: float
    """Of the forwards of a run."""
    attributes_lost: float
    """Share of the scorer's attributes that the full run's clip shows and this one's does not, fewer gained ones."""
    video_psnr: float
    """Mean over the clips against those of full runs, in dB."""


def draw_scenes(count: int, *, held_out: bool, seed: int) -> list[tuple[SceneSpec, str]]:
    """Draw single-object scenes and word them; those that training saw, or those it did not."""
    rng = np.random.default_rng((seed, held_out))
    scenes = (sample_scene(rng, num_objects=1) for _ in itertools.count())
    chosen = itertools.islice((scene for scene in scenes if is_held_out(scene) is held_out), count)
    return [(scene, write_prompt(scene, rng)) for scene in chosen]


def relative_changes(outputs: Sequence[Tensor]) -> list[float]:
    """Give the relative L1 distance of each output to the one before."""
    return [float((b - a).abs().mean() / a.abs().mean()) for a, b in itertools.pairwise(outputs)]


def measure_outputs(model: WanModel, prompt: str, *, seed: int, num_steps: int) -> list[float]:
    """Run a prompt in full and give the changes of its conditional output."""
    embedding, negative = encode_prompt(model, prompt), encode_prompt(model, "")
    outputs: list[Tensor] = []

    def predict(latent_BCTHW: Tensor, timestep: Tensor) -> Tensor:
        outputs.append(predict_velocity(model, latent_BCTHW, timestep, embedding, None, 1.0))
        unguided_BCTHW = predict_velocity(model, latent_BCTHW, timestep, negative, None, 1.0)
        return unguided_BCTHW + model.preset.guidance_scale * (outputs[-1] - unguided_BCTHW)

    for _ in run_steps(solver_for(model, num_steps=num_steps), start(model, seed), predict):
        pass
    return relative_changes(outputs)


def start(model: WanModel, seed: int) -> SolverState:
    """Give the start noise at the preset's default size."""
    preset = model.preset
    width, height = preset.sizes[preset.default_size]
    noise = draw_noise(model, seed=seed, width=width, height=height, num_frames=preset.default_num_frames)
    return SolverState(latent_BCTHW=noise)


def fit_polynomial(distances: Sequence[float], changes: Sequence[float]) -> tuple[float, ...]:
    """Fit the change of the output to the distance of the timestep projections, highest power first."""
    return tuple(float(value) for value in np.polyfit(distances, changes, DEGREE))


def generate(model: WanModel, prompt: str, *, seed: int, config: TeaCacheConfig) -> NDArray[np.uint8]:
    """Generate a clip's frames_FHWC under a setting."""
    preset = model.preset
    solver = solver_for(model, num_steps=preset.num_inference_steps)
    run = TeaCacheRun(
        model,
        config,
        encode_prompt(model, prompt),
        encode_prompt(model, ""),
        preset.guidance_scale,
        timesteps_N=solver.timesteps,
    )
    *_, last = run_steps(solver, start(model, seed), run.predict)
    return decode_video(model, last.latent_BCTHW)


def compare(
    config: TeaCacheConfig,
    scenes: Sequence[SceneSpec],
    full: Sequence[NDArray[np.uint8]],
    clips: Sequence[NDArray[np.uint8]],
    *,
    skipped_share: float,
) -> Trial:
    """Compare the clips of a setting with those of full runs."""
    lost = [
        len(score_video(whole, scene).found()) - len(score_video(clip, scene).found())
        for scene, whole, clip in zip(scenes, full, clips, strict=True)
    ]
    errors = [np.square(a.astype(np.float64) - b).mean() for a, b in zip(full, clips, strict=True)]
    return Trial(
        threshold=config.threshold,
        skipped_share=skipped_share,
        attributes_lost=sum(lost) / (len(scenes) * NUM_ATTRIBUTES),
        video_psnr=float(np.mean([10 * np.log10(255**2 / max(error, 1e-6)) for error in errors])),
    )


def choose_threshold(trials: Sequence[Trial], *, bound: float) -> float:
    """Take the largest threshold before the first that loses too much; 0 when the first one does."""
    allowed = itertools.takewhile(
        lambda trial: trial.attributes_lost <= bound and trial.video_psnr >= LEAST_PSNR, trials
    )
    return max((trial.threshold for trial in allowed), default=0.0)


def main() -> None:
    """Run the recipe and store the setting with the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--prompts", type=int, default=4, help="runs to fit to, at each number of steps")
    parser.add_argument("--trials", type=int, default=16, help="scenes to try each threshold on")
    parser.add_argument("--bound", type=float, default=LOSS_BOUND)
    parser.add_argument("--out", type=pathlib.Path, default=WEIGHTS / "tiny" / "teacache.json")
    args = parser.parse_args()
    torch.set_num_threads(1)
    model = load(tiny())
    distances: list[float] = []
    changes: list[float] = []
    for num_steps in FIT_STEPS:
        apart = projection_distances(model.transformer, solver_for(model, num_steps=num_steps).timesteps)
        for index, (_, prompt) in enumerate(draw_scenes(args.prompts, held_out=False, seed=SEED)):
            # Without the last: that step is always computed, and its jump would bend the whole polynomial.
            distances += apart[:-1]
            changes += measure_outputs(model, prompt, seed=SEED + index, num_steps=num_steps)[:-1]
    coefficients = fit_polynomial(distances, changes)
    residual = float(np.std(np.polyval(coefficients, distances) - np.array(changes)))
    trial_scenes, prompts = zip(*draw_scenes(args.trials, held_out=True, seed=SEED), strict=True)
    apart = projection_distances(
        model.transformer, solver_for(model, num_steps=model.preset.num_inference_steps).timesteps
    )

    def clips(config: TeaCacheConfig) -> list[NDArray[np.uint8]]:
        return [generate(model, text, seed=SEED + 1000 + index, config=config) for index, text in enumerate(prompts)]

    full = clips(TeaCacheConfig(threshold=0.0, coefficients=coefficients))
    trials = []
    for threshold in THRESHOLDS:
        config = TeaCacheConfig(threshold=threshold, coefficients=coefficients)
        plan = plan_computed(apart, config)
        share = plan.count(False) / len(plan)
        trials.append(compare(config, trial_scenes, full, clips(config), skipped_share=share))
        print(json.dumps(dataclasses.asdict(trials[-1])), flush=True)
    found_in_full = [len(score_video(*pair).found()) for pair in zip(full, trial_scenes, strict=True)]
    config = TeaCacheConfig(threshold=choose_threshold(trials, bound=args.bound), coefficients=coefficients)
    options = f"--prompts {args.prompts} --trials {args.trials} --bound {args.bound}"
    document = {
        "teacache": dataclasses.asdict(config),
        "recipe": f"python -m training.teacache_fit {options}",
        "weights": model.fingerprint,
        "fit": {
            "num_steps": FIT_STEPS,
            "points": len(distances),
            "distance_range": [min(distances), max(distances)],
            "mean_change": math.fsum(changes) / len(changes),
            "residual_deviation": residual,
        },
        "trials": [dataclasses.asdict(trial) for trial in trials],
        "attributes_found_in_full": sum(found_in_full) / (len(full) * NUM_ATTRIBUTES),
    }
    args.out.write_text(json.dumps(document, indent=2) + "\n")
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
