"""What the ablations share: every arm sees the same pairs, times are compared within a pair, means are paired."""

import dataclasses

import pytest

from benchmarks.ablation import (
    FALLBACK,
    Arm,
    Case,
    Take,
    amplification_of,
    draw_hits,
    measure,
    motion_kept,
    no_reuse,
    numbers,
    rotated,
    row_of,
    run_arm,
    score_gain,
    stage_one_plan,
    store_source,
    target_seed,
    time_ratio,
)
from benchmarks.quality import ClipQuality, Judge
from reprise.chorus.gains import AmplificationConfig
from reprise.chorus.work import WorkDone
from reprise.wan.presets import ModelPreset, tiny_4step
from training.pairs import Studio, keep_all


@pytest.fixture(scope="module")
def preset() -> ModelPreset:
    return dataclasses.replace(tiny_4step(), transformer_path=None, default_num_frames=5)


def take(*, found: int = 7, seconds: float = 1.0, has_motion: bool = True, can_be_lost: bool = True) -> Take:
    quality = ClipQuality(
        attributes=found / 7, has_motion=has_motion, flicker=0.5, clip_score=90.0, target_wins=found > 4
    )
    work = WorkDone(
        num_steps=4,
        num_region_steps=0,
        num_dense_steps=2,
        num_cached_steps=0,
        edit_share=None,
        see_share=None,
        encode_prompt_s=0.0,
        region_s=0.0,
        dense_s=seconds,
    )
    return Take(quality=quality, work=work, region_reason=None, motion_can_be_lost=can_be_lost)


def test_every_arm_begins_a_pair_in_turn() -> None:
    assert [rotated(["a", "b", "c"], by=place)[0] for place in range(4)] == ["a", "b", "c", "a"]
    assert rotated(["a", "b", "c"], by=2) == ["c", "a", "b"]


def test_hits_reach_tau_and_differ_in_the_scene(preset: ModelPreset) -> None:
    pairs = draw_hits(preset, 8, seed=5)
    assert len(pairs) == 8
    assert all(pair.score >= preset.tau and pair.scene != pair.source_scene for pair in pairs)
    seeds = {pair.seed for pair in pairs} | {target_seed(pair) for pair in pairs}
    assert len(seeds) == 16


def test_a_preset_without_a_setting_takes_the_fallback_and_says_so(preset: ModelPreset) -> None:
    none = dataclasses.replace(preset, amplification=None)
    setting, notes = amplification_of(none)
    assert setting == FALLBACK
    assert "no calibrated amplification" in notes[0]
    weak = AmplificationConfig(key_peak=1.0, output_peak=1.0, decay=1.0)
    setting, notes = amplification_of(dataclasses.replace(preset, amplification=weak))
    assert setting == weak
    assert "amplifies nothing" in notes[0]
    own = AmplificationConfig(key_peak=3.0, output_peak=1.0, decay=2.0)
    assert amplification_of(dataclasses.replace(preset, amplification=own)) == (own, [])


def test_a_row_holds_medians_of_times_and_of_ratios() -> None:
    full = [take(seconds=2.0), take(seconds=4.0), take(seconds=30.0)]
    half = [take(found=7, seconds=1.0), take(found=0, seconds=2.0), take(found=7, seconds=3.0)]
    row = row_of(half, full)
    assert row["denoise_ms"] == pytest.approx(2000)
    assert row["speedup"] == pytest.approx(2.0)  # not 12, the ratio of the sums is 6
    assert row["token_share"] == 0.5
    assert row["score"] == pytest.approx(200 / 3)
    assert row["target_wins"] == pytest.approx(2 / 3)
    assert time_ratio(half, full) == pytest.approx(0.5)


def test_a_gain_is_paired() -> None:
    gain, error = score_gain([take(found=7), take(found=3)], [take(found=6), take(found=2)])
    assert gain == pytest.approx(100 / 7, abs=1e-5)
    assert error == pytest.approx(0.0, abs=1e-9)
    assert score_gain([take(found=7)], [take(found=7)]) == (0.0, None)


def test_only_motions_that_harm_alone_can_lose_are_counted() -> None:
    full = [take(), take(), take(has_motion=False), take(can_be_lost=False)]
    arm = [take(), take(has_motion=False), take(), take(has_motion=False, can_be_lost=False)]
    assert motion_kept(arm, full) == 0.5
    assert motion_kept(full[2:], full[2:]) is None


def test_a_summary_leaves_out_what_was_not_measured() -> None:
    assert numbers({"a": 1, "b": 0.5, "c": None, "d": "x"}) == {"a": 1.0, "b": 0.5}


def test_arms_start_from_one_source_with_one_seed_and_keep_their_settings(preset: ModelPreset) -> None:
    studio = Studio(keep_all(preset, (2,)))
    kept = studio.model.preset
    pairs = draw_hits(preset, 2, seed=1)
    strong = AmplificationConfig(key_peak=8.0, output_peak=3.0, decay=1.0)

    def case(pair_index: int) -> Case:
        pair = pairs[pair_index]
        plan = stage_one_plan(pair, 2)
        arms = {
            "full": no_reuse(kept),
            "plain": Arm(preset=kept, plan=plan),
            "again": Arm(preset=kept, plan=plan),
            "strong": Arm(preset=dataclasses.replace(kept, amplification=strong), plan=plan),
        }
        return Case(pair=pair, stored=store_source(studio, pair), arms=arms)

    first = case(0)
    clips = {name: run_arm(studio, first, arm).latent_BCTHW for name, arm in first.arms.items()}
    assert clips["plain"].equal(clips["again"])
    assert not clips["plain"].equal(clips["strong"])
    assert not clips["plain"].equal(clips["full"])
    takes = measure(studio, Judge(), (case(index) for index in range(2)))
    assert {name: len(arm) for name, arm in takes.items()} == {"full": 2, "plain": 2, "again": 2, "strong": 2}
    assert [take.quality for take in takes["plain"]] == [take.quality for take in takes["again"]]
    assert all(take.quality.target_wins is None and take.work.num_dense_steps == 4 for take in takes["full"])
    assert all(take.quality.target_wins is not None and take.work.num_dense_steps == 2 for take in takes["plain"])
