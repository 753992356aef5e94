"""Calibrate token-guided amplification of a bundled model: `python -m training.amplification --preset tiny-4step`.

Chorus section 3.2. Targets one attribute apart from their source go on from its latent at a step that is late for
them, so that the source's scene fights the prompt's. Every setting is tried on the same pairs and seeds. The one with
the most attributes of the target, of seven, found by the exact scorer is stored where it beats no gains by two
standard errors; else amplification stays off.
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

from reprise.chorus.gains import AmplificationConfig
from reprise.chorus.plan import ReusePlan
from reprise.chorus.prompt_diff import align_diff
from reprise.chorus.stages import StageBoundaries
from reprise.wan.presets import WEIGHTS, ModelPreset
from training.pairs import PRESETS, Pair, Studio, draw_pairs, keep_all, num_found
from training.stage_map import edges_of

SEED: Final = 71
KEY_PEAKS: Final = (1.0, 1.5, 2.0, 3.0, 4.0)
OUTPUT_PEAKS: Final = (1.0, 1.3)
FLOORS: Final = (0.0, 1.0)
DECAY: Final = 1.0
LATE: Final = {50: (20, 25, 30), 4: (1, 2)}
"""Steps at which targets take over, one after the other over the pairs; the gate is not asked."""

_studio: Studio | None = None


def every_setting() -> list[AmplificationConfig]:
    """Give the settings that are tried, the weakest first; without gains one is enough."""
    peaks = sorted(itertools.product(KEY_PEAKS, OUTPUT_PEAKS), key=lambda pair: (pair[0] - 1) / 3 + (pair[1] - 1) / 0.3)
    return [
        AmplificationConfig(key_peak=key, output_peak=output, decay=DECAY, floor=floor)
        for floor, (key, output) in itertools.product(FLOORS, peaks)
        if floor == 0 or (key, output) != (1, 1)
    ]


def measure_pair(preset: ModelPreset, pair: Pair, k1: int) -> list[int]:
    """Give the attributes of the target that the clip of every setting shows."""
    global _studio
    if _studio is None:
        _studio = Studio(keep_all(preset, LATE[preset.num_inference_steps]))
    studio, seed = _studio, pair.seed + 1_000_000
    stored = studio.store(studio.full(pair.source, pair.seed), source_id="s", prompt=pair.source, seed=pair.seed)
    plan = ReusePlan(
        boundaries=StageBoundaries(k1=k1, k2=k1),
        source_id="s",
        source_seed=pair.seed,
        matching_score=pair.score,
        diff=align_diff(pair.source, pair.target),
        source_steps=(k1,),
    )
    found = []
    for setting in every_setting():
        studio.amplify(setting)
        found.append(num_found(studio.reuse(stored, plan, prompt=pair.target, seed=seed), pair.scene))
    return found


def choose(found: Sequence[Sequence[int]]) -> int:
    """Give the place of the best setting where it beats the first, no gains, by two standard errors; else 0.

    `found` holds a row per pair; differences are paired, as all settings see the same pairs. Of many settings the best
    is always a little better by chance, and gains can do harm, so they have to show that they help.
    """
    table = np.asarray(found, np.float64)
    best = int(table.mean(0).argmax())
    gain = table[:, best] - table[:, 0]
    error = gain.std(ddof=1) / np.sqrt(len(table)) if len(table) > 1 else np.inf
    return best if gain.mean() > 2 * error + 1e-9 else 0


def calibrate(preset: ModelPreset, pairs: Sequence[Pair], *, workers: int) -> dict[str, Any]:
    """Measure every pair and give the document to store."""
    steps = LATE[preset.num_inference_steps]
    starts = [steps[index % len(steps)] for index in range(len(pairs))]
    context = multiprocessing.get_context("spawn")
    with concurrent.futures.ProcessPoolExecutor(workers, mp_context=context) as pool:
        found = list(pool.map(measure_pair, itertools.repeat(preset), pairs, starts))
    settings, means = every_setting(), np.mean(found, axis=0)
    return {
        "amplification": dataclasses.asdict(settings[choose(found)]),
        "tried": [
            {**dataclasses.asdict(setting), "attributes_found": round(float(mean), 4)}
            for setting, mean in zip(settings, means, strict=True)
        ],
        "pairs": len(pairs),
        "starts": list(steps),
    }


def main() -> None:
    """Run the recipe and store the setting with the weights."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="tiny")
    parser.add_argument("--pairs", type=int, default=12, help="in every bin of m")
    parser.add_argument("--workers", type=int, default=2)
    args = parser.parse_args()
    preset = PRESETS[args.preset]()
    pairs = draw_pairs(args.pairs, edges=edges_of(preset), seed=SEED, edits_only=True)
    document = calibrate(preset, pairs, workers=args.workers)
    document["recipe"] = f"python -m training.amplification --preset {args.preset} --pairs {args.pairs}"
    folder = pathlib.Path(preset.transformer_path or WEIGHTS / "tiny")
    (folder / "amplification.json").write_text(json.dumps(document, indent=2) + "\n")
    print(json.dumps(document, indent=2))


if __name__ == "__main__":
    main()
