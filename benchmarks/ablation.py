"""What the ablations of reuse share: pairs that hit, arms run side by side on each pair, a row for each arm.

Chorus section 4.3. An arm is one way to make the target of a pair. All arms of a pair get the same stored source and
the same seed and run one after the other, each pair beginning with the next arm, so that whatever slows the machine
slows all of them; times are compared within a pair. Knows nothing about which ways are compared.

Symbols: K1, K2 stage boundaries, m matching score, tau least score that is reused.
"""

import argparse
import dataclasses
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from benchmarks.quality import ClipQuality, Judge, summarise
from benchmarks.report import Scalar, argument_parser
from reprise.chorus.clip import Clip
from reprise.chorus.gains import AmplificationConfig
from reprise.chorus.plan import MissReason, RegionReason, ReusePlan, plan_miss
from reprise.chorus.prompt_diff import align_diff
from reprise.chorus.stages import StageBoundaries
from reprise.chorus.work import WorkDone
from reprise.wan.presets import ModelPreset
from training.pairs import PRESETS, Pair, StoredSource, Studio, draw_pairs

FALLBACK: Final = AmplificationConfig(key_peak=2.0, output_peak=1.15, decay=1.0)
WIDTH_NOTE: Final = (
    "on the tiny model the fixed cost of many small kernels hides most of what fewer tokens save: "
    "benchmarks.region_kernel has the ratios at real widths"
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One way to make a pair's target."""

    preset: ModelPreset
    """The model's, with the settings that this arm changes."""
    plan: ReusePlan


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Case:
    """One pair, and every arm on it, named alike and in one order over all pairs."""

    pair: Pair
    stored: StoredSource
    arms: Mapping[str, Arm]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Take:
    """What one arm gave on one pair."""

    quality: ClipQuality
    work: WorkDone
    region_reason: RegionReason | None
    """Why the run had no stage 2, where its plan might have had one."""
    motion_can_be_lost: bool
    """Source and target move the same way, so that a clip that does not was harmed and not merely unsteered."""


def ablation_parser(description: str, *, pairs: int) -> argparse.ArgumentParser:
    """Return a parser with the options that the ablations have."""
    parser = argument_parser(description)
    parser.add_argument("--preset", choices=sorted(PRESETS), default="tiny-4step", help="the paper's is of four steps")
    parser.add_argument("--pairs", type=int, default=pairs, help="sources, each with one target")
    return parser


def amplification_of(preset: ModelPreset) -> tuple[AmplificationConfig, list[str]]:
    """Give the setting of a preset and what a reader must know of it."""
    setting = preset.amplification
    if setting is None:
        return FALLBACK, [f"{preset.name} has no calibrated amplification: {FALLBACK} was taken"]
    if setting.key_peak == setting.output_peak == 1:
        return setting, [f"the calibration of {preset.name} amplifies nothing: both its peaks are 1"]
    return setting, []


def draw_hits(preset: ModelPreset, count: int, *, seed: int) -> list[Pair]:
    """Draw pairs whose scenes differ in one attribute and whose score reaches tau."""
    return draw_pairs(count, edges=(preset.tau,), seed=seed, edits_only=True)


def store_source(studio: Studio, pair: Pair) -> StoredSource:
    """Make a pair's source in full and keep what the server keeps."""
    clip = studio.full(pair.source, pair.seed)
    return studio.store(clip, source_id="source", prompt=pair.source, seed=pair.seed)


def target_seed(pair: Pair) -> int:
    """Give the seed of the pair's target, which is no source's."""
    return pair.seed + 1_000_000


def no_reuse(preset: ModelPreset) -> Arm:
    """Give the arm that makes the target in full."""
    return Arm(preset=preset, plan=plan_miss(MissReason.OFF))


def stage_one_plan(pair: Pair, k1: int) -> ReusePlan:
    """Plan a start at K1 with nothing after it but dense steps, whatever the gate would say."""
    return ReusePlan(
        boundaries=StageBoundaries(k1=k1, k2=k1),
        source_id="source",
        source_seed=pair.seed,
        matching_score=pair.score,
        diff=align_diff(pair.source, pair.target),
        source_steps=(k1,),
    )


def run_arm(studio: Studio, case: Case, arm: Arm) -> Clip:
    """Make the target of a case in one way."""
    studio.model = dataclasses.replace(studio.model, preset=arm.preset)
    return studio.reuse(case.stored, arm.plan, prompt=case.pair.target, seed=target_seed(case.pair))


def measure(studio: Studio, judge: Judge, cases: Iterable[Case]) -> dict[str, list[Take]]:
    """Run every arm of every case and judge what it made; by arm, in the order of the cases."""
    takes: dict[str, list[Take]] = {}
    for place, case in enumerate(cases):
        if place == 0:
            for arm in case.arms.values():  # warm-up: first calls of a shape cost more
                run_arm(studio, case, arm)
            takes = {name: [] for name in case.arms}
        for name in rotated(list(case.arms), by=place):
            clip = run_arm(studio, case, case.arms[name])
            takes[name].append(_judge(judge, case.pair, clip))
    return takes


def rotated(names: Sequence[str], *, by: int) -> list[str]:
    """Begin a list at another place."""
    start = by % len(names)
    return [*names[start:], *names[:start]]


def _judge(judge: Judge, pair: Pair, clip: Clip) -> Take:
    source_scene = pair.source_scene if clip.plan.is_hit else None
    moves = [scene.objects[0].motion for scene in (pair.source_scene, pair.scene)]
    return Take(
        quality=judge.judge(clip.frames_FHWC, pair.target, pair.scene, source_scene=source_scene),
        work=clip.work,
        region_reason=clip.plan.region_reason,
        motion_can_be_lost=moves[0] == moves[1] != "still",
    )


def row_of(takes: Sequence[Take], full: Sequence[Take]) -> dict[str, Scalar]:
    """Average an arm over the pairs: quality, the share of tokens that N dense steps compute, and times against full.

    `denoise_ms` and `speedup` are medians over the pairs, the second of the ratio within each.
    """
    return {
        **summarise([take.quality for take in takes]),
        "token_share": statistics.fmean(take.work.token_share for take in takes),
        "denoise_ms": 1000 * statistics.median(take.work.denoise_s for take in takes),
        "speedup": time_ratio(full, takes),
    }


def time_ratio(slow: Sequence[Take], fast: Sequence[Take]) -> float:
    """Give how many times as long one arm takes as another: the median of the pairs' ratios."""
    return statistics.median(a.work.denoise_s / b.work.denoise_s for a, b in zip(slow, fast, strict=True))


def score_gain(takes: Sequence[Take], reference: Sequence[Take]) -> tuple[float, float | None]:
    """Give the points of 100 by which an arm beats another, and the standard error of that mean over pairs."""
    gains = [100 * (a.quality.attributes - b.quality.attributes) for a, b in zip(takes, reference, strict=True)]
    error = statistics.stdev(gains) / math.sqrt(len(gains)) if len(gains) > 1 else None
    return round(statistics.fmean(gains), 6), error  # rounded, so that arms of equal sums tie


def motion_kept(takes: Sequence[Take], full: Sequence[Take]) -> float | None:
    """Give the share of the full clips' motions that an arm's clips still show; None where there were none to lose.

    Counts the pairs in which source and target move the same way.
    """
    kept = [
        take.quality.has_motion
        for take, whole in zip(takes, full, strict=True)
        if take.motion_can_be_lost and whole.quality.has_motion
    ]
    return statistics.fmean(kept) if kept else None


def numbers(values: Mapping[str, Scalar]) -> dict[str, float]:
    """Leave out of a summary what could not be measured."""
    return {name: float(value) for name, value in values.items() if isinstance(value, int | float)}
