"""One clip by plan: the three stages on real Wan classes with random weights, against the parts they are made of."""

import dataclasses
import pathlib
from typing import Any

import pytest
import torch
from torch import Tensor

from reprise.chorus.clip import Clip, ClipSpec, generate_clip
from reprise.chorus.gains import AmplificationConfig
from reprise.chorus.plan import MissReason, RegionReason, ReusePlan, plan_miss
from reprise.chorus.prompt_diff import align_diff
from reprise.chorus.source import Source
from reprise.chorus.stages import StageBoundaries, StageMap, StageRow
from reprise.teacache import TeaCacheConfig
from reprise.wan.model import WanModel
from tests.unit.reprise.regions import PATCHES, small_model

STEPS, FRAMES, SIDE = 6, 9, 32
SOURCE, TARGET = "a red ball moves left", "a blue ball moves left"
MISS = plan_miss(MissReason.EMPTY_CACHE)
EVERY = StageMap(tau=0.5, num_steps=STEPS, rows=(StageRow(min_score=0.5, k1=2, k2=5),))


@pytest.fixture(scope="module", params=["euler", "unipc"])
def model(request: pytest.FixtureRequest, wan_folders: dict[str, pathlib.Path]) -> WanModel:
    built = small_model(wan_folders[request.param], PATCHES["patch 2"])
    preset = dataclasses.replace(built.preset, stage_map=EVERY, edit_radius=0, see_radius=1, amplification=None)
    return dataclasses.replace(built, preset=preset)


def spec(prompt: str = TARGET, seed: int = 2, guidance_scale: float = 3.0) -> ClipSpec:
    return ClipSpec(
        prompt=prompt,
        negative_prompt="a cube",
        seed=seed,
        num_steps=STEPS,
        guidance_scale=guidance_scale,
        width=SIDE,
        height=SIDE,
        num_frames=FRAMES,
    )


def hit(k1: int, k2: int, **changes: Any) -> ReusePlan:
    fields: dict[str, Any] = {
        "boundaries": StageBoundaries(k1=k1, k2=k2),
        "source_id": "a",
        "source_seed": 1,
        "matching_score": 0.6,
        "region_phrase": "red ball" if k2 > k1 else None,
    }
    return ReusePlan(**{**fields, **changes})


def states_of(model: WanModel, clip_spec: ClipSpec) -> dict[int, Tensor]:
    """Run a request in full and keep every state, exactly."""
    gridless = StageMap(
        tau=0.0,
        num_steps=STEPS,
        rows=tuple(StageRow(min_score=k / 10, k1=k, k2=k) for k in range(1, STEPS + 1)),
    )
    kept = dataclasses.replace(model, preset=dataclasses.replace(model.preset, stage_map=gridless))
    clip = generate_clip(kept, clip_spec, MISS)
    assert clip.trajectory is not None
    return {step: latent.float() for step, latent in clip.trajectory.latents.items()}


@pytest.fixture(scope="module")
def source(model: WanModel) -> Source:
    mask_FHW = torch.zeros(FRAMES, SIDE, SIDE, dtype=torch.bool)
    mask_FHW[:, :8, :8] = True
    return Source(points=states_of(model, spec(SOURCE, seed=1)), mask_FHW=mask_FHW)


def work_of(clip: Clip) -> tuple[int, int, int]:
    return clip.work.num_region_steps, clip.work.num_dense_steps, clip.work.num_cached_steps


def test_the_grid_of_a_miss_is_what_f_and_the_gate_can_ask_for(model: WanModel) -> None:
    clip = generate_clip(model, spec(), MISS)
    assert clip.trajectory is not None
    assert set(clip.trajectory.latents) == {*clip.trajectory.grid.steps, STEPS}
    assert torch.equal(clip.trajectory.latents[STEPS], clip.latent_BCTHW)
    assert (work_of(clip), clip.work.token_share) == ((0, STEPS, 0), 1.0)


def test_outside_the_region_stage_2_ends_on_the_sources_latent(model: WanModel, source: Source) -> None:
    clip = generate_clip(model, spec(), hit(2, STEPS), source)
    changed_THW = (clip.latent_BCTHW != source.points[STEPS]).any(1)[0]
    # The mask covers the first cell of a 4 x 4 grid, and a token is 2 x 2 cells.
    assert bool(changed_THW[:, :2, :2].all())
    assert not bool(changed_THW[:, 2:].any() or changed_THW[:, :, 2:].any())
    assert work_of(clip) == (STEPS - 2, 0, 0)
    assert clip.work.edit_share == 1 / 4
    assert clip.trajectory is None


def test_seeing_and_editing_everything_in_stage_2_is_the_dense_run(model: WanModel, source: Source) -> None:
    everything = dataclasses.replace(source, mask_FHW=torch.ones(FRAMES, SIDE, SIDE, dtype=torch.bool))
    clip = generate_clip(model, spec(), hit(2, 5), everything)
    dense = generate_clip(model, spec(), hit(2, 2), source)
    assert clip.plan.region_reason is RegionReason.TOO_LARGE
    assert torch.equal(clip.latent_BCTHW, dense.latent_BCTHW)


def test_a_region_of_nothing_new_follows_its_source(model: WanModel, source: Source) -> None:
    """The same prompt on exact states, all but everything seen: stage 2 and 3 go where the source went."""
    wide = dataclasses.replace(model, preset=dataclasses.replace(model.preset, edit_radius=0, see_radius=1))
    clip = generate_clip(wide, spec(SOURCE, seed=1), hit(2, 5), source)
    other = generate_clip(wide, spec(TARGET, seed=1), hit(2, 5), source)
    own = float((clip.latent_BCTHW - source.points[STEPS]).square().mean())
    assert own < float((other.latent_BCTHW - source.points[STEPS]).square().mean())


def test_amplification_acts_on_stages_2_and_3_of_a_hit_alone(model: WanModel, source: Source) -> None:
    strong = AmplificationConfig(key_peak=3.0, output_peak=2.0, decay=0.5)
    amplified = dataclasses.replace(model, preset=dataclasses.replace(model.preset, amplification=strong))
    diff = align_diff(SOURCE, TARGET)
    plan, plain = hit(2, 4, diff=diff), hit(2, 4)
    for changed_from, changed_to in ((plain, plan), (hit(2, 2), hit(2, 2, diff=diff))):
        without = generate_clip(amplified, spec(), changed_from, source).latent_BCTHW
        with_gains = generate_clip(amplified, spec(), changed_to, source).latent_BCTHW
        assert not torch.equal(without, with_gains)
        assert torch.equal(without, generate_clip(model, spec(), changed_to, source).latent_BCTHW)
    miss = generate_clip(amplified, spec(), MISS).latent_BCTHW
    assert torch.equal(miss, generate_clip(model, spec(), MISS).latent_BCTHW)
    weak = dataclasses.replace(strong, key_peak=1.0, output_peak=1.0)
    off = dataclasses.replace(model, preset=dataclasses.replace(model.preset, amplification=weak))
    unchanged = generate_clip(off, spec(), plan, source).latent_BCTHW
    assert torch.equal(unchanged, generate_clip(model, spec(), plain, source).latent_BCTHW)


@pytest.mark.parametrize("guidance_scale", [1.0, 3.0])
def test_teacache_runs_in_stage_3_and_changes_nothing_at_threshold_0(
    model: WanModel, source: Source, guidance_scale: float
) -> None:
    strong = AmplificationConfig(key_peak=3.0, output_peak=2.0, decay=0.5)
    amplified = dataclasses.replace(model, preset=dataclasses.replace(model.preset, amplification=strong))
    plan, request = hit(1, 3, diff=align_diff(SOURCE, TARGET)), spec(guidance_scale=guidance_scale)
    none = TeaCacheConfig(threshold=0.0, coefficients=(1.0, 0.0))
    dense = generate_clip(amplified, request, plan, source)
    cached = generate_clip(amplified, request, plan, source, teacache=none)
    assert torch.allclose(cached.latent_BCTHW, dense.latent_BCTHW, atol=1e-5)
    every = dataclasses.replace(none, threshold=float("inf"))
    skipped = generate_clip(amplified, request, plan, source, teacache=every)
    assert work_of(skipped) == (2, 3, 1)
    see = skipped.work.see_share
    assert see is not None
    assert skipped.work.token_share == pytest.approx((2 * see + 2) / STEPS)
    assert not torch.equal(skipped.latent_BCTHW, dense.latent_BCTHW)


def test_every_step_is_told_skipped_ones_included(model: WanModel, source: Source) -> None:
    told: list[int] = []
    generate_clip(model, spec(), hit(2, 4), source, on_step=told.append)
    assert told == [2, 3, 4, 5, 6]


def test_the_whole_clip_is_decoded_and_nothing_computed(model: WanModel, source: Source) -> None:
    plan = hit(STEPS, STEPS)
    none = TeaCacheConfig(threshold=0.5, coefficients=(1.0, 0.0))
    clip = generate_clip(model, spec(SOURCE, seed=1), plan, source, teacache=none)
    assert (work_of(clip), clip.work.token_share) == ((0, 0, 0), 0.0)
    assert torch.equal(clip.latent_BCTHW, source.points[STEPS])


def test_a_hit_without_its_source_is_refused(model: WanModel) -> None:
    with pytest.raises(ValueError, match="goes on from a at step 2, but no source was given"):
        generate_clip(model, spec(), hit(2, 2))
