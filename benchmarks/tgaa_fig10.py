"""How much amplification is too much: `python -m benchmarks.tgaa_fig10 [--contact-sheet PATH] [--json]`.

Chorus figure 10. From the calibrated setting one peak at a time is moved, from none to far too strong, on the same
pairs and seeds; stage 1 is that of table 2. `motion_kept` is the share of the full clips' motions that are still
there, over the pairs in which source and target move the same way; `flicker` is how much the ground changes from frame
to frame. Gains shrink as m grows; every setting is therefore also tried as if each pair's m were tau, where peaks count
in full (`m_as_tau`). The summary's `best` is the row with the highest score, the weakest of equals; names that end in
`_at_tau` are of the second kind.
"""

import argparse
import dataclasses
import pathlib
import statistics
from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from benchmarks.ablation import (
    Arm,
    Case,
    Take,
    ablation_parser,
    amplification_of,
    draw_hits,
    measure,
    motion_kept,
    no_reuse,
    numbers,
    row_of,
    run_arm,
    score_gain,
    stage_one_plan,
    store_source,
)
from benchmarks.contact_sheet import Block, save_sheet
from benchmarks.quality import Judge
from benchmarks.report import Report, Scalar, publish
from benchmarks.tgaa_table2 import START_SHARE
from reprise.chorus.gains import AmplificationConfig
from reprise.wan.presets import ModelPreset
from training.pairs import PRESETS, Pair, Studio, keep_all

KEY_PEAKS: Final = (1.0, 1.5, 2.0, 3.0, 5.0, 8.0, 12.0)
OUTPUT_PEAKS: Final = (1.0, 1.15, 1.3, 1.6, 2.0, 3.0, 4.0)
FULL: Final = "no reuse"
NUM_SHEET_PAIRS: Final = 4


def grid_around(calibrated: AmplificationConfig) -> list[AmplificationConfig]:
    """Give the settings that are tried: none, the calibrated one, and each peak moved alone; no setting twice."""
    keys = [dataclasses.replace(calibrated, key_peak=peak) for peak in KEY_PEAKS]
    outputs = [dataclasses.replace(calibrated, output_peak=peak) for peak in OUTPUT_PEAKS]
    weak = dataclasses.replace(calibrated, key_peak=1.0, output_peak=1.0)
    return list(dict.fromkeys([weak, calibrated, *keys, *outputs]))


def over_keyed(calibrated: AmplificationConfig) -> AmplificationConfig:
    """Amplify keys far too much."""
    return dataclasses.replace(calibrated, key_peak=KEY_PEAKS[-1])


def over_output(calibrated: AmplificationConfig) -> AmplificationConfig:
    """Amplify outputs far too much."""
    return dataclasses.replace(calibrated, output_peak=OUTPUT_PEAKS[-1])


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Point:
    """One row of the grid."""

    setting: AmplificationConfig
    m_as_tau: bool

    @property
    def name(self) -> str:
        """Name the arm by its peaks."""
        peaks = f"key {self.setting.key_peak:g}, output {self.setting.output_peak:g}"
        return f"{peaks}, m = tau" if self.m_as_tau else peaks


def arm_of(preset: ModelPreset, pair: Pair, point: Point, *, k1: int) -> Arm:
    """Make the arm of a point for one pair."""
    plan = stage_one_plan(pair, k1)
    if point.m_as_tau:
        plan = dataclasses.replace(plan, matching_score=preset.tau)
    return Arm(preset=dataclasses.replace(preset, amplification=point.setting), plan=plan)


def case_of(studio: Studio, preset: ModelPreset, pair: Pair, points: Sequence[Point], *, k1: int) -> Case:
    """Make one pair's source and its arms."""
    arms = {point.name: arm_of(preset, pair, point, k1=k1) for point in points}
    return Case(pair=pair, stored=store_source(studio, pair), arms={FULL: no_reuse(preset), **arms})


def sheet_block(studio: Studio, case: Case, named: Mapping[str, Point]) -> Block:
    """Show one pair at some points, below its source and the clip without reuse."""
    clips = {
        "source": studio.full(case.pair.source, case.pair.seed).frames_FHWC,
        FULL: run_arm(studio, case, case.arms[FULL]).frames_FHWC,
    }
    for name, point in named.items():
        clips[f"{name}\n{point.name}"] = run_arm(studio, case, case.arms[point.name]).frames_FHWC
    return Block(title=f"m {case.pair.score:.2f}: {case.pair.source} -> {case.pair.target}", clips=clips)


def spread(pairs: Sequence[Pair]) -> list[Pair]:
    """Take a few pairs of the contact sheet, evenly from the lowest m to the highest."""
    places = np.linspace(0, len(pairs) - 1, min(NUM_SHEET_PAIRS, len(pairs)))
    return [sorted(pairs, key=lambda pair: pair.score)[round(place)] for place in places.tolist()]


def row_at(point: Point, takes: Mapping[str, Sequence[Take]], weak: Point) -> dict[str, Scalar]:
    """Average one point over the pairs."""
    arm = takes[point.name]
    gain, error = score_gain(arm, takes[weak.name])
    return {
        "arm": point.name,
        "key_peak": point.setting.key_peak,
        "output_peak": point.setting.output_peak,
        "m_as_tau": point.m_as_tau,
        **row_of(arm, takes[FULL]),
        "motion_kept": motion_kept(arm, takes[FULL]),
        "score_gain": gain,
        "score_gain_error": error,
    }


def best_of(rows: Mapping[Point, Mapping[str, Scalar]], *, m_as_tau: bool) -> Point:
    """Give the point of one kind with the highest score, the weakest of equals."""

    def rank(point: Point) -> tuple[float, float, float]:
        gain = numbers(rows[point])["score_gain"]
        return gain, -point.setting.key_peak, -point.setting.output_peak

    return max((point for point in rows if point.m_as_tau is m_as_tau), key=rank)


def report(preset: ModelPreset, pairs: Sequence[Pair], *, contact_sheet: pathlib.Path | None = None) -> Report:
    """Measure every setting on the pairs, and draw some of them where a file is named."""
    k1 = int(START_SHARE * preset.num_inference_steps)
    calibrated, notes = amplification_of(preset)
    points = [Point(setting=setting, m_as_tau=kind) for kind in (False, True) for setting in grid_around(calibrated)]
    weak, *_ = points
    studio = Studio(keep_all(preset, (k1,)))
    kept = studio.model.preset
    takes = measure(studio, Judge(), (case_of(studio, kept, pair, points, k1=k1) for pair in pairs))
    rows = {point: row_at(point, takes, weak) for point in points}
    by_m, at_tau = (best_of(rows, m_as_tau=kind) for kind in (False, True))
    keyed, output = (Point(setting=over(calibrated), m_as_tau=False) for over in (over_keyed, over_output))
    if contact_sheet is not None:
        named = {
            "weak": weak,
            "calibrated": Point(setting=calibrated, m_as_tau=False),
            "best": at_tau,
            "over-amplified keys": dataclasses.replace(keyed, m_as_tau=True),
            "over-amplified outputs": dataclasses.replace(output, m_as_tau=True),
        }
        cases = [case_of(studio, kept, pair, points, k1=k1) for pair in spread(pairs)]
        save_sheet([sheet_block(studio, case, named) for case in cases], contact_sheet)
    full = takes[FULL]
    return Report(
        name="tgaa_fig10",
        parameters={
            "preset": preset.name,
            "weights": studio.model.fingerprint,
            "steps": preset.num_inference_steps,
            "k1": k1,
            "pairs": len(pairs),
            "pairs_whose_motion_can_be_lost": sum(take.motion_can_be_lost and take.quality.has_motion for take in full),
            "tau": preset.tau,
            "score_median": statistics.median(pair.score for pair in pairs),
            **{f"calibrated_{name}": value for name, value in dataclasses.asdict(calibrated).items()},
        },
        rows=[{"arm": FULL, **row_of(full, full), "motion_kept": motion_kept(full, full)}, *rows.values()],
        summary=numbers(
            {
                "best_key_peak": by_m.setting.key_peak,
                "best_output_peak": by_m.setting.output_peak,
                "score_weak": rows[weak]["score"],
                "score_best": rows[by_m]["score"],
                "motion_best": rows[by_m]["motion_kept"],
                "motion_overkeyed": rows[keyed]["motion_kept"],
                "flicker_best": rows[by_m]["flicker"],
                "flicker_overoutput": rows[output]["flicker"],
                "best_key_peak_at_tau": at_tau.setting.key_peak,
                "best_output_peak_at_tau": at_tau.setting.output_peak,
                "score_best_at_tau": rows[at_tau]["score"],
                "motion_overkeyed_at_tau": rows[dataclasses.replace(keyed, m_as_tau=True)]["motion_kept"],
                "flicker_overoutput_at_tau": rows[dataclasses.replace(output, m_as_tau=True)]["flicker"],
            }
        ),
        notes=[
            *notes,
            f"over-amplified is a key peak of {KEY_PEAKS[-1]:g} or an output peak of {OUTPUT_PEAKS[-1]:g}; gains fall "
            "with the noise and with m from there, so those of a step are smaller",
            "score_gain is against no amplification; the best of many rows is flattered by chance: see its error",
        ],
    )


def main() -> None:
    """Run the benchmark."""
    parser = ablation_parser(__doc__ or "", pairs=60)
    parser.add_argument("--contact-sheet", type=pathlib.Path, help="write a picture of a few pairs to this file")
    options: argparse.Namespace = parser.parse_args()
    preset = PRESETS[options.preset]()
    pairs = draw_hits(preset, options.pairs, seed=options.seed)
    publish(report(preset, pairs, contact_sheet=options.contact_sheet), options)


if __name__ == "__main__":
    main()
