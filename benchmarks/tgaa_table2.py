"""What each half of amplification adds to full reuse: `python -m benchmarks.tgaa_table2 [--json]`.

Chorus table 2. Targets one attribute apart from their source start from its latent at half of N; the second gate is not
asked, so the source's scene fights the prompt's as hard as it can. Amplification (TGAA) is then switched on by halves:
the outputs of cross-attention, the keys of the differing words, both. `score` is the share of the target's attributes
that the exact scorer finds, in points of 100; `score_gain` compares it with stage 1 alone, pair by pair.
"""

import dataclasses
from collections.abc import Sequence
from typing import Final

from benchmarks.ablation import (
    FALLBACK,
    WIDTH_NOTE,
    Arm,
    Case,
    ablation_parser,
    amplification_of,
    draw_hits,
    measure,
    no_reuse,
    numbers,
    row_of,
    score_gain,
    stage_one_plan,
    store_source,
    time_ratio,
)
from benchmarks.quality import Judge
from benchmarks.report import Report, Scalar, publish
from reprise.chorus.gains import AmplificationConfig
from reprise.wan.presets import ModelPreset
from training.pairs import PRESETS, Pair, Studio, keep_all

FULL, STAGE1, OUTPUT, KEY, BOTH = "no reuse", "stage 1", "+ output", "+ key", "+ both"
START_SHARE: Final = 0.5
"""K1 as a share of N."""


def setting_for(preset: ModelPreset) -> tuple[AmplificationConfig, list[str]]:
    """Give the calibrated setting; where it leaves a half alone, with the fallback's peak for that half, and say so."""
    calibrated, notes = amplification_of(preset)
    tried = dataclasses.replace(
        calibrated,
        key_peak=FALLBACK.key_peak if calibrated.key_peak == 1 else calibrated.key_peak,
        output_peak=FALLBACK.output_peak if calibrated.output_peak == 1 else calibrated.output_peak,
    )
    if tried != calibrated:
        notes = [*notes, f"peaks of 1 would make equal rows: {tried} is ablated in place of {calibrated}"]
    return tried, notes


def settings_of(both: AmplificationConfig) -> dict[str, AmplificationConfig | None]:
    """Give the setting of every arm that reuses."""
    return {
        STAGE1: None,
        OUTPUT: dataclasses.replace(both, key_peak=1.0),
        KEY: dataclasses.replace(both, output_peak=1.0),
        BOTH: both,
    }


def arms_of(preset: ModelPreset, pair: Pair, both: AmplificationConfig, *, k1: int) -> dict[str, Arm]:
    """Give the rows of the table for one pair."""
    plan = stage_one_plan(pair, k1)
    reusing = {
        name: Arm(preset=dataclasses.replace(preset, amplification=setting), plan=plan)
        for name, setting in settings_of(both).items()
    }
    return {FULL: no_reuse(preset), **reusing}


def report(preset: ModelPreset, pairs: Sequence[Pair]) -> Report:
    """Measure every arm on the pairs."""
    k1 = int(START_SHARE * preset.num_inference_steps)
    both, notes = setting_for(preset)
    studio = Studio(keep_all(preset, (k1,)))
    kept = studio.model.preset
    takes = measure(
        studio,
        Judge(),
        (Case(pair=pair, stored=store_source(studio, pair), arms=arms_of(kept, pair, both, k1=k1)) for pair in pairs),
    )
    rows: dict[str, dict[str, Scalar]] = {}
    for name, arm in takes.items():
        gain, error = (None, None) if name == FULL else score_gain(arm, takes[STAGE1])
        rows[name] = {"arm": name, **row_of(arm, takes[FULL]), "score_gain": gain, "score_gain_error": error}
    chosen = {
        f"{field}_{label}": rows[name][field]
        for field in ("score", "clip_score", "target_wins")
        for label, name in (("stage1", STAGE1), ("both", BOTH))
    }
    return Report(
        name="tgaa_table2",
        parameters={
            "preset": preset.name,
            "weights": studio.model.fingerprint,
            "steps": preset.num_inference_steps,
            "k1": k1,
            "pairs": len(pairs),
            "tau": preset.tau,
            **dataclasses.asdict(both),
        },
        rows=list(rows.values()),
        summary=numbers(
            {
                **chosen,
                "speedup_both": rows[BOTH]["speedup"],
                "overhead_both": time_ratio(takes[BOTH], takes[STAGE1]),
            }
        ),
        notes=[
            *notes,
            "speed-ups and the overhead are medians of the ratios within each pair, against no reuse and stage 1 alone",
            WIDTH_NOTE,
        ],
    )


def main() -> None:
    """Run the benchmark."""
    options = ablation_parser(__doc__ or "", pairs=150).parse_args()
    preset = PRESETS[options.preset]()
    publish(report(preset, draw_hits(preset, options.pairs, seed=options.seed)), options)


if __name__ == "__main__":
    main()
