"""Calibrate F(m; N) of the bundled model: `python -m training.stage_map`.

Chorus section 3.1. Pairs of a source and a target, a paraphrase or one attribute apart, are generated in full and
with the target resumed from the source's latent at every candidate step. The loss of a step is the share of the
target's attributes that the exact scorer no longer finds. Scores are cut into bins; a bin's K1 is the largest step
whose mean loss stays under the bound, and never less than the bin below has. K2 equals K1: regions are not
denoised apart yet. A bin with too few pairs takes the K1 of the bin below.
"""

import argparse
import concurrent.futures
import dataclasses
import json
import multiprocessing
from typing import Final

import numpy as np
import torch

from actors.engines.open_clip import OpenClipEmbedder
from reprise.chorus.clip import ClipSpec, generate_clip
from reprise.chorus.plan import MissReason, ReusePlan, plan_miss
from reprise.chorus.stages import StageBoundaries, StageMap, StageRow
from reprise.tinyworld import SceneSpec, change_one, is_held_out, sample_scene, score_video, write_prompt
from reprise.wan.model import WanModel, load
from reprise.wan.presets import WEIGHTS, tiny

SEED, PARAPHRASE_SHARE, LOSS_BOUND, MIN_PAIRS = 51, 0.3, 0.05, 4
STEPS: Final = (3, 5, 10, 15, 20, 25)
EDGES: Final = (0.65, 0.75, 0.85, 0.95)
"""Lower ends of the bins of m; the first is tau."""
NUM_ATTRIBUTES: Final = 7

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
    """Attributes lost at each candidate step against the target's full run, as shares."""

    score: float
    losses: tuple[float, ...]


def draw_pairs(count: int, *, seed: int) -> list[Pair]:
    """Draw held-out pairs whose score reaches tau."""
    embedder = OpenClipEmbedder(f"local-dir:{WEIGHTS / 'tiny_clip'}")
    rng = np.random.default_rng(seed)
    pairs: list[Pair] = []
    while len(pairs) < count:
        scene = sample_scene(rng, num_objects=1)
        other = scene if rng.random() < PARAPHRASE_SHARE else change_one(scene, rng)
        if not is_held_out(other):
            continue
        source, target = write_prompt(scene, rng), write_prompt(other, rng)
        score = float(embedder.embed(source) @ embedder.embed(target))
        if score >= EDGES[0]:
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
    losses = []
    for step in STEPS:
        plan = ReusePlan(
            boundaries=StageBoundaries(k1=step, k2=step),
            source_id="s",
            source_seed=pair.seed,
            matching_score=pair.score,
        )
        clip = generate_clip(_model, spec, plan, source.trajectory.at(step))
        losses.append((full - len(score_video(clip.frames_FHWC, pair.scene).found())) / NUM_ATTRIBUTES)
    return PairLoss(score=pair.score, losses=tuple(losses))


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


def fit(measured: list[PairLoss], *, num_steps: int, bound: float) -> StageMap:
    """Choose K1 of every bin, never falling with m."""
    rows: list[StageRow] = []
    k1 = 0
    for low, high in zip(EDGES, (*EDGES[1:], np.inf), strict=True):
        inside = [item.losses for item in measured if low <= item.score < high]
        if len(inside) >= MIN_PAIRS:
            mean = np.mean(inside, axis=0)
            allowed = [step for step, loss in zip(STEPS, mean, strict=True) if loss <= bound]
            k1 = max(k1, max(allowed, default=0))
        if k1 > 0:
            rows.append(StageRow(min_score=low, k1=k1, k2=k1))
    return StageMap(tau=EDGES[0], num_steps=num_steps, rows=tuple(rows))


def main() -> None:
    """Run the recipe and store the table with the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=48)
    parser.add_argument("--bound", type=float, default=LOSS_BOUND)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    pairs = draw_pairs(args.pairs, seed=SEED)
    with concurrent.futures.ProcessPoolExecutor(args.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        measured = list(pool.map(measure_pair, pairs))
    table = fit(measured, num_steps=tiny().num_inference_steps, bound=args.bound)
    bins = []
    for low, high in zip(EDGES, (*EDGES[1:], np.inf), strict=True):
        inside = [item.losses for item in measured if low <= item.score < high]
        means = [round(float(loss), 4) for loss in np.mean(inside, axis=0)] if inside else []
        bins.append(
            {"min_score": low, "pairs": len(inside), "mean_loss": dict(zip(map(str, STEPS), means, strict=False))}
        )
    document = {
        "table": dataclasses.asdict(table),
        "recipe": f"python -m training.stage_map --pairs {args.pairs} --bound {args.bound}",
        "loss": "share of the target's seven attributes that the scorer finds in a full run and not in the resumed one",
        "bins": bins,
    }
    (WEIGHTS / "tiny" / "stage_map.json").write_text(json.dumps(document, indent=2) + "\n")
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
