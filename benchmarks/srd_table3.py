"""What selective region denoising saves, by how far its masks grow: `python -m benchmarks.srd_table3 [--json]`.

Chorus table 3. Stage 1 and amplification are fixed; between K1 and K2 the target is denoised in full, or only inside
the object that the prompts' differing words name, grown by (r, r') latent cells to what is edited and what is seen.
Only pairs with such an object, found in the source's clip, are taken, and only where the second gate leaves K1 and K2
as they are. `compute` is the share of the tokens that a step of stage 2 computes; a region so large that it could save
nothing is denoised in full and counted in `too_large`: that clip is in every column but the region's own.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Iterator, Sequence
from typing import Final

from benchmarks.ablation import (
    WIDTH_NOTE,
    Arm,
    Case,
    Take,
    ablation_parser,
    amplification_of,
    draw_hits,
    measure,
    no_reuse,
    numbers,
    row_of,
    score_gain,
    store_source,
    target_seed,
    time_ratio,
)
from benchmarks.quality import Judge
from benchmarks.report import Report, Scalar, publish
from reprise.chorus.plan import RegionReason
from reprise.chorus.stages import StageBoundaries
from reprise.wan.presets import ModelPreset
from training.pairs import PRESETS, Studio, keep_all, plan_at

FULL, DENSE = "no reuse", "no SRD"
BOUNDARIES: Final = {4: StageBoundaries(k1=1, k2=3), 50: StageBoundaries(k1=10, k2=40)}
"""K1 and K2 by N."""
RADII: Final = ((0, 0), (0, 1), (1, 1), (1, 2), (2, 3))
"""r and r' in cells of the tiny model's 8x8 grid; the bundled presets' own is among them."""
BATCH: Final = 50
SEED_STRIDE: Final = 10_000


def name_of(radii: tuple[int, int]) -> str:
    """Name an arm as the paper does."""
    return f"SRD{radii}"


def find_cases(studio: Studio, *, seed: int) -> Iterator[Case]:
    """Give pairs that have a region, with their arms, for ever."""
    preset = studio.model.preset
    boundaries = BOUNDARIES[preset.num_inference_steps]
    for batch in itertools.count():  # most pairs have no region: drawn until the caller has enough
        for pair in draw_hits(preset, BATCH, seed=seed + SEED_STRIDE * batch):
            studio.model = dataclasses.replace(studio.model, preset=preset)
            stored = store_source(studio, pair)
            plan = plan_at(
                stored, boundaries, prompt=pair.target, seed=target_seed(pair), score=pair.score, tau=preset.tau
            )
            if plan.boundaries != boundaries or plan.region_phrase not in stored.masks:
                continue
            dense = plan.without_region(RegionReason.NOT_ALLOWED)
            regions = {
                name_of(radii): Arm(
                    preset=dataclasses.replace(preset, edit_radius=radii[0], see_radius=radii[1]), plan=plan
                )
                for radii in RADII
            }
            arms = {FULL: no_reuse(preset), DENSE: Arm(preset=preset, plan=dense), **regions}
            yield Case(pair=pair, stored=stored, arms=arms)


def region_columns(takes: Sequence[Take]) -> dict[str, Scalar]:
    """Average what is stage 2's own over the clips that had one; nothing where none had."""
    works = [take.work for take in takes if take.work.num_region_steps]
    see = [work.see_share for work in works if work.see_share is not None]
    edit = [work.edit_share for work in works if work.edit_share is not None]
    steps_ms = [1000 * work.region_s / work.num_region_steps for work in works]
    return {
        "compute": statistics.fmean(see) if see else None,
        "edit_share": statistics.fmean(edit) if edit else None,
        "stage2_step_ms": statistics.median(steps_ms) if steps_ms else None,
        "regions": len(works),
        "too_large": sum(take.region_reason is RegionReason.TOO_LARGE for take in takes),
    }


def dense_columns(takes: Sequence[Take]) -> dict[str, Scalar]:
    """Give the same of clips whose stage 2 is dense."""
    step_ms = statistics.median(1000 * take.work.dense_s / take.work.num_dense_steps for take in takes)
    return {"compute": 1.0, "edit_share": 1.0, "stage2_step_ms": step_ms, "regions": 0, "too_large": 0}


def report(preset: ModelPreset, *, num_pairs: int, seed: int) -> Report:
    """Measure every arm on as many pairs that have a region."""
    boundaries = BOUNDARIES[preset.num_inference_steps]
    amplification, notes = amplification_of(preset)
    kept = dataclasses.replace(keep_all(preset, (boundaries.k1, boundaries.k2)), amplification=amplification)
    studio = Studio(kept)
    takes = measure(studio, Judge(), itertools.islice(find_cases(studio, seed=seed), num_pairs))
    rows: dict[str, dict[str, Scalar]] = {}
    for name, arm in takes.items():
        gain, error = (None, None) if name == FULL else score_gain(arm, takes[DENSE])
        rows[name] = {
            "arm": name,
            **({} if name == FULL else dense_columns(arm) if name == DENSE else region_columns(arm)),
            **row_of(arm, takes[FULL]),
            "speedup_dense": None if name == FULL else time_ratio(takes[DENSE], arm),
            "score_loss": None if gain is None else 0.0 - gain,
            "score_loss_error": error,
        }
    default = rows[name_of((preset.edit_radius, preset.see_radius))]
    return Report(
        name="srd_table3",
        parameters={
            "preset": preset.name,
            "weights": studio.model.fingerprint,
            "steps": preset.num_inference_steps,
            "k1": boundaries.k1,
            "k2": boundaries.k2,
            "pairs": num_pairs,
            "tau": preset.tau,
            "edit_radius": preset.edit_radius,
            "see_radius": preset.see_radius,
            **dataclasses.asdict(amplification),
        },
        rows=list(rows.values()),
        summary=numbers(
            {
                "compute_00": rows[name_of((0, 0))]["compute"],
                "speedup_00": rows[name_of((0, 0))]["speedup"],
                "compute_default": default["compute"],
                "speedup_default": default["speedup"],
                "score_loss_default": default["score_loss"],
            }
        ),
        notes=[
            *notes,
            "speed-ups are medians of the ratios within each pair: `speedup` against no reuse, `speedup_dense` against "
            "a dense start from the same K1",
            "compute, edit_share and stage2_step_ms are of the clips counted in regions; every other column is of all",
            WIDTH_NOTE,
        ],
    )


def main() -> None:
    """Run the benchmark."""
    options = ablation_parser(__doc__ or "", pairs=60).parse_args()
    publish(report(PRESETS[options.preset](), num_pairs=options.pairs, seed=options.seed), options)


if __name__ == "__main__":
    main()
