"""Calibrate F(m; N) of the bundled model: `python -m training.stage_map`.

Chorus section 3.1. Pairs of a source and a target, a paraphrase or one attribute apart, as many in every bin of m,
are generated in full and with the target resumed from the source's latent at every candidate step. The loss of a step
is the number of the target's attributes, of seven, that the exact scorer finds in the full run and not in the resumed
one. The second gate is part of what is measured: where the differing words allow fewer steps, those are run. A few
pairs a bin make noisy means, so isotonic regression smooths them: loss may not rise with m, nor fall with the step. A
bin's K1 is then the largest step whose loss stays within the bound. K2 equals K1: regions are not denoised apart yet.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import multiprocessing
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from actors.engines.open_clip import OpenClipEmbedder
from reprise.chorus.clip import ClipSpec, generate_clip
from reprise.chorus.gate import change_kinds, lower_boundaries
from reprise.chorus.plan import MissReason, ReusePlan, plan_miss
from reprise.chorus.prompt_diff import align_diff
from reprise.chorus.stages import StageBoundaries, StageMap, StageRow
from reprise.tinyworld import SceneSpec, change_one, is_held_out, sample_scene, score_video, write_prompt
from reprise.wan.model import WanModel, load
from reprise.wan.presets import WEIGHTS, tiny

SEED, PARAPHRASE_SHARE, LOSS_BOUND = 51, 0.3, 0.1
STEPS: Final = (3, 5, 10, 15, 20, 25, 30)
EDGES: Final = (0.65, 0.75, 0.85, 0.95)
"""Lower ends of the bins of m; the first is tau."""

MAX_ROUNDS: Final = 1000

FloatArray = NDArray[np.float64]

_model: WanModel | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    """A source, a target that may start from it, and their matching score."""

    source: str
    target: str
    scene: SceneSpec
    """What the target must show."""
    score: float
    seed: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PairLoss:
    """Attributes lost at each candidate step against the target's full run; negative where some were gained."""

    score: float
    losses: tuple[float, ...]


def bin_of(score: float) -> int:
    """Give the place of a score in EDGES, -1 under the first."""
    return int(np.searchsorted(EDGES, score, side="right")) - 1


def draw_pairs(count: int, *, seed: int) -> list[Pair]:
    """Draw `count` held-out pairs of every bin."""
    embedder = OpenClipEmbedder(f"local-dir:{WEIGHTS / 'tiny_clip'}")
    rng = np.random.default_rng(seed)
    pairs: list[Pair] = []
    room = [count] * len(EDGES)
    while any(room):
        scene = sample_scene(rng, num_objects=1)
        other = scene if rng.random() < PARAPHRASE_SHARE else change_one(scene, rng)
        if not is_held_out(other):
            continue
        source, target = write_prompt(scene, rng), write_prompt(other, rng)
        score = float(embedder.embed(source) @ embedder.embed(target))
        place = bin_of(score)
        if place >= 0 and room[place]:
            room[place] -= 1
            pairs.append(Pair(source=source, target=target, scene=other, score=score, seed=seed + len(pairs)))
    return pairs


def measure_pair(pair: Pair) -> PairLoss:
    """Generate the source, the target in full and the target from every candidate step."""
    global _model
    if _model is None:
        torch.set_num_threads(1)
        preset = tiny()
        rows = tuple(StageRow(min_score=float(i), k1=k, k2=k) for i, k in enumerate(STEPS))
        rows = tuple(dataclasses.replace(row, min_score=row.min_score / len(STEPS)) for row in rows)
        every = StageMap(tau=0.0, num_steps=preset.num_inference_steps, rows=rows)
        _model = load(dataclasses.replace(preset, stage_map=every))
    source = generate_clip(_model, _spec(_model, pair.source, pair.seed), plan_miss(MissReason.OFF))
    spec = _spec(_model, pair.target, pair.seed + 1_000_000)
    full = len(score_video(generate_clip(_model, spec, plan_miss(MissReason.OFF)).frames_FHWC, pair.scene).found())
    assert source.trajectory is not None
    kinds = change_kinds(align_diff(pair.source, pair.target))
    gated = [
        lower_boundaries(StageBoundaries(k1=step, k2=step), kinds, num_steps=spec.num_steps)[0].k1 for step in STEPS
    ]
    lost = {0: 0.0}
    for step in set(gated) - {0}:
        plan = ReusePlan(
            boundaries=StageBoundaries(k1=step, k2=step),
            source_id="s",
            source_seed=pair.seed,
            matching_score=pair.score,
        )
        clip = generate_clip(_model, spec, plan, source.trajectory.at(step))
        lost[step] = float(full - len(score_video(clip.frames_FHWC, pair.scene).found()))
    return PairLoss(score=pair.score, losses=tuple(lost[step] for step in gated))


def _spec(model: WanModel, prompt: str, seed: int) -> ClipSpec:
    preset = model.preset
    width, height = preset.sizes[preset.default_size]
    return ClipSpec(
        prompt=prompt,
        negative_prompt="",
        seed=seed,
        num_steps=preset.num_inference_steps,
        guidance_scale=preset.guidance_scale,
        width=width,
        height=height,
        num_frames=preset.default_num_frames,
    )


def mean_losses(measured: list[PairLoss]) -> list[list[float]]:
    """Give the mean loss of every candidate step, by bin; every bin needs a pair."""
    inside: list[list[tuple[float, ...]]] = [[] for _ in EDGES]
    for item in measured:
        inside[bin_of(item.score)].append(item.losses)
    return [[round(float(loss), 4) for loss in np.mean(losses, axis=0)] for losses in inside]


def smooth(means: list[list[float]]) -> FloatArray:
    """Fit means (bins, steps) by values that never rise along the bins and never fall along the steps.

    Alternates the two regressions until both hold; bins count alike, as they hold as many pairs.
    """
    fitted = np.asarray(means, np.float64)
    for _ in range(MAX_ROUNDS):
        along_bins = np.stack([isotonic_regression(column, increasing=False).x for column in fitted.T], 1)
        along_steps = np.stack([isotonic_regression(row).x for row in along_bins])
        if np.allclose(along_steps, along_bins, atol=1e-9):
            break
        fitted = along_steps
    return along_steps


def fit(means: list[list[float]], *, num_steps: int, bound: float) -> StageMap:
    """Choose K1 of every bin from the mean losses (bins, steps)."""
    rows: list[StageRow] = []
    for low, losses in zip(EDGES, smooth(means), strict=True):
        allowed = [step for step, loss in zip(STEPS, losses, strict=True) if loss <= bound + 1e-9]
        if allowed:
            rows.append(StageRow(min_score=low, k1=max(allowed), k2=max(allowed)))
    return StageMap(tau=EDGES[0], num_steps=num_steps, rows=tuple(rows))


def main() -> None:
    """Run the recipe and store the table with the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=12, help="in every bin")
    parser.add_argument("--bound", type=float, default=LOSS_BOUND)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    pairs = draw_pairs(args.pairs, seed=SEED)
    with concurrent.futures.ProcessPoolExecutor(args.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        measured = list(pool.map(measure_pair, pairs))
    means = mean_losses(measured)
    table = fit(means, num_steps=tiny().num_inference_steps, bound=args.bound)
    bins = [
        {"min_score": low, "pairs": args.pairs, "mean_loss": dict(zip(map(str, STEPS), losses, strict=True))}
        for low, losses in zip(EDGES, means, strict=True)
    ]
    document = {
        "table": dataclasses.asdict(table),
        "recipe": f"python -m training.stage_map --pairs {args.pairs} --bound {args.bound}",
        "loss": "attributes of the target, of seven, that the scorer finds in a full run and not in the resumed one",
        "bins": bins,
    }
    (WEIGHTS / "tiny" / "stage_map.json").write_text(json.dumps(document, indent=2) + "\n")
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
