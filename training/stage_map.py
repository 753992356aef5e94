"""Calibrate F(m; N) of a bundled model: `python -m training.stage_map --preset tiny-4step`.

Chorus section 3.1. Pairs of a source and a target, a paraphrase or one attribute apart, as many in every bin of m,
are generated in full and with the target resumed from the source at every candidate step. The loss is the number of
the target's attributes, of seven, that the exact scorer finds in the full run and not in the resumed one. The second
gate, amplification and masks are those that the server uses: where the differing words allow fewer steps, those are
run. First K1 is chosen with K2 equal to it, then K2 over the pairs that have a region. A few pairs a bin make noisy
means, so isotonic regression smooths them: loss may not rise with m, nor fall with the step. A bin's K is then the
largest step whose loss stays within the bound.
"""

import argparse
import concurrent.futures
import dataclasses
import itertools
import json
import multiprocessing
import pathlib
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import isotonic_regression

from reprise.chorus.stages import StageBoundaries, StageMap, StageRow
from reprise.wan.presets import WEIGHTS, ModelPreset
from training.pairs import PRESETS, Pair, Studio, draw_pairs, keep_all, num_found, plan_at

SEED: Final = 51
LOSS_BOUND: Final = 0.14
"""Two points of a hundred, of the score of seven attributes."""
EDGES: Final = (0.65, 0.75, 0.85, 0.95)
"""Lower ends of the bins of m at 50 steps; the first is tau. At four steps it is 0.75, as in the paper."""
CANDIDATES: Final = {50: (3, 5, 10, 15, 20, 25, 30, 35, 40), 4: (1, 2, 3)}
MAX_ROUNDS: Final = 1000

FloatArray = NDArray[np.float64]

_studio: Studio | None = None


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PairLoss:
    """Attributes lost at each candidate step against the target's full run; negative where some were gained."""

    score: float
    losses: tuple[float, ...]


def edges_of(preset: ModelPreset) -> tuple[float, ...]:
    """Give the bins of a preset: from its tau up."""
    return tuple(edge for edge in EDGES if edge >= preset.tau)


def bin_of(score: float, edges: Sequence[float]) -> int:
    """Give the place of a score in the edges, -1 under the first."""
    return int(np.searchsorted(edges, score, side="right")) - 1


def measure_pair(preset: ModelPreset, pair: Pair, k1: int | None = None) -> PairLoss | None:
    """Generate source and target in full, and the target from every candidate step.

    Without `k1` both boundaries are the candidate; with it K2 alone, and None when no candidate gives a region.
    """
    global _studio
    steps = CANDIDATES[preset.num_inference_steps]
    if _studio is None:
        _studio = Studio(keep_all(preset, steps))
    studio, seed = _studio, pair.seed + 1_000_000
    stored = studio.store(studio.full(pair.source, pair.seed), source_id="s", prompt=pair.source, seed=pair.seed)
    full = num_found(studio.full(pair.target, seed), pair.scene)
    lost: dict[StageBoundaries, float] = {}
    losses, has_region = [], False
    for step in steps:
        wanted = StageBoundaries(k1=step if k1 is None else k1, k2=step if k1 is None else max(step, k1))
        plan = plan_at(stored, wanted, prompt=pair.target, seed=seed, score=pair.score, tau=preset.tau)
        if not plan.is_hit:
            lost[plan.boundaries] = 0.0
        elif plan.boundaries not in lost:
            clip = studio.reuse(stored, plan, prompt=pair.target, seed=seed)
            lost[plan.boundaries] = float(full - num_found(clip, pair.scene))
            has_region = has_region or clip.plan.region_phrase is not None
        losses.append(lost[plan.boundaries])
    return None if k1 is not None and not has_region else PairLoss(score=pair.score, losses=tuple(losses))


def mean_losses(measured: Sequence[PairLoss], edges: Sequence[float]) -> list[list[float] | None]:
    """Give the mean loss of every candidate step, by bin; None where no pair was measured."""
    inside: list[list[tuple[float, ...]]] = [[] for _ in edges]
    for item in measured:
        inside[bin_of(item.score, edges)].append(item.losses)
    return [[round(float(loss), 4) for loss in np.mean(losses, axis=0)] if losses else None for losses in inside]


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


def largest_within(means: Sequence[list[float] | None], steps: Sequence[int], *, bound: float) -> list[int]:
    """Choose the largest step of every bin whose smoothed loss stays within the bound; 0 when none does.

    A bin without a pair takes its lower neighbour's step.
    """
    fitted = iter(smooth([losses for losses in means if losses is not None]))
    chosen: list[int] = []
    for losses in means:
        if losses is None:
            chosen.append(chosen[-1] if chosen else 0)
        else:
            allowed = [step for step, loss in zip(steps, next(fitted), strict=True) if loss <= bound + 1e-9]
            chosen.append(max([0, *allowed]))
    return chosen


def table_of(edges: Sequence[float], k1s: Sequence[int], k2s: Sequence[int], *, num_steps: int) -> StageMap:
    """Make the table; a bin that reuses nothing has no row."""
    rows = [
        StageRow(min_score=edge, k1=k1, k2=max(k1, k2))
        for edge, k1, k2 in zip(edges, k1s, itertools.accumulate(k2s, max), strict=True)
        if k1
    ]
    return StageMap(tau=edges[0], num_steps=num_steps, rows=tuple(rows))


def calibrate(preset: ModelPreset, pairs: Sequence[Pair], *, bound: float, workers: int) -> dict[str, Any]:
    """Measure every pair and give the document to store."""
    edges, steps = edges_of(preset), CANDIDATES[preset.num_inference_steps]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        first = pool.map(measure_pair, itertools.repeat(preset), pairs)
        k1_means = mean_losses([item for item in first if item is not None], edges)
        k1s = largest_within(k1_means, steps, bound=bound)
        second = pool.map(
            measure_pair, itertools.repeat(preset), pairs, [k1s[bin_of(pair.score, edges)] or None for pair in pairs]
        )
        with_region = [
            item
            for pair, item in zip(pairs, second, strict=True)
            if item is not None and k1s[bin_of(pair.score, edges)]
        ]
    k2_means = mean_losses(with_region, edges)
    k2s = largest_within(k2_means, steps, bound=bound)
    table = table_of(edges, k1s, k2s, num_steps=preset.num_inference_steps)
    counts = [sum(bin_of(item.score, edges) == place for item in with_region) for place in range(len(edges))]
    names = [str(step) for step in steps]
    bins = [
        {
            "min_score": edge,
            "pairs": len(pairs) // len(edges),
            "mean_loss_by_k1": None if k1_losses is None else dict(zip(names, k1_losses, strict=True)),
            "pairs_with_region": count,
            "mean_loss_by_k2": None if k2_losses is None else dict(zip(names, k2_losses, strict=True)),
        }
        for edge, k1_losses, count, k2_losses in zip(edges, k1_means, counts, k2_means, strict=True)
    ]
    return {"table": dataclasses.asdict(table), "bins": bins}


def main() -> None:
    """Run the recipe and store the table with the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="tiny")
    parser.add_argument("--pairs", type=int, default=12, help="in every bin")
    parser.add_argument("--bound", type=float, default=LOSS_BOUND)
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    preset = PRESETS[args.preset]()
    pairs = draw_pairs(args.pairs, edges=edges_of(preset), seed=SEED)
    document = calibrate(preset, pairs, bound=args.bound, workers=args.workers)
    document["recipe"] = (
        f"python -m training.stage_map --preset {args.preset} --pairs {args.pairs} --bound {args.bound}"
    )
    document["loss"] = (
        "attributes of the target, of seven, that the scorer finds in a full run and not in the resumed one"
    )
    folder = pathlib.Path(preset.transformer_path or WEIGHTS / "tiny")
    (folder / "stage_map.json").write_text(json.dumps(document, indent=2) + "\n")
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
