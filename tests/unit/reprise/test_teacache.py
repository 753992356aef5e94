"""TeaCache: exact at threshold 0, only the forced steps at infinity, and a state that belongs to one run."""

import dataclasses
import itertools
import json
import math
import pathlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from reprise.errors import Cancelled
from reprise.sampling import SolverState, run_steps
from reprise.teacache import (
    TeaCacheConfig,
    plan_computed,
    rescale,
    teacache_from_json,
    wan21_t2v_1_3b_teacache,
    wan21_t2v_14b_teacache,
)
from reprise.wan.model import WanModel, denoise, draw_noise, encode_prompt, load, solver_for
from reprise.wan.presets import tiny
from reprise.wan.teacache import TeaCacheRun, project_out, projection_distances, run_blocks

SIZE, FRAMES, STEPS = 32, 9, 8
LINEAR = (1.0, 0.0)
PROMPT, NEGATIVE = "a red ball moves left", "a blue cube"


def config(threshold: float, **changes: int) -> TeaCacheConfig:
    return TeaCacheConfig(threshold=threshold, coefficients=LINEAR, **changes)


def small_model(folder: pathlib.Path, dtype: str = "float32") -> WanModel:
    preset = dataclasses.replace(
        tiny(),
        path=str(folder),
        transformer_dtype=dtype,
        sizes={"32x32": (SIZE, SIZE)},
        default_size="32x32",
        max_sequence_length=16,
    )
    return load(preset)


@pytest.fixture(scope="module", params=["euler", "unipc"])
def model(request: pytest.FixtureRequest, wan_folders: dict[str, pathlib.Path]) -> WanModel:
    return small_model(wan_folders[request.param])


def noise(model: WanModel, seed: int) -> SolverState:
    return SolverState(latent_BCTHW=draw_noise(model, seed=seed, width=SIZE, height=SIZE, num_frames=FRAMES))


def tea_run(
    model: WanModel, settings: TeaCacheConfig, *, prompt: str = PROMPT, guidance: float = 5.0, first_step: int = 0
) -> TeaCacheRun:
    negative = encode_prompt(model, NEGATIVE) if guidance > 1 else None
    timesteps = solver_for(model, num_steps=STEPS).timesteps
    return TeaCacheRun(
        model,
        settings,
        encode_prompt(model, prompt),
        negative,
        guidance,
        timesteps_N=timesteps,
        first_step=first_step,
    )


def states(model: WanModel, run: TeaCacheRun, start: SolverState) -> list[SolverState]:
    return list(run_steps(solver_for(model, num_steps=STEPS), start, run.predict))


def plain(model: WanModel, start: SolverState, *, guidance: float = 5.0) -> list[SolverState]:
    embedding, negative = encode_prompt(model, PROMPT), encode_prompt(model, NEGATIVE)
    return list(denoise(model, solver_for(model, num_steps=STEPS), start, embedding, negative, guidance))


@pytest.mark.parametrize("guidance", [1.0, 5.0])
@pytest.mark.parametrize("first_step", [0, 3])
def test_threshold_0_is_the_plain_forward_bit_for_bit(model: WanModel, guidance: float, first_step: int) -> None:
    start = dataclasses.replace(noise(model, 1), step=first_step)
    run = tea_run(model, config(0.0), guidance=guidance, first_step=first_step)
    for ours, theirs in zip(states(model, run, start), plain(model, start, guidance=guidance), strict=True):
        assert torch.equal(ours.latent_BCTHW, theirs.latent_BCTHW)
    assert run.num_forwards_skipped == 0


def test_threshold_0_is_the_plain_forward_in_half_precision_too(wan_folders: dict[str, pathlib.Path]) -> None:
    half = small_model(wan_folders["euler"], "bfloat16")
    start = noise(half, 1)
    ours, theirs = states(half, tea_run(half, config(0.0)), start), plain(half, start)
    assert torch.equal(ours[-1].latent_BCTHW, theirs[-1].latent_BCTHW)
    skipping = states(half, tea_run(half, config(math.inf)), start)[-1].latent_BCTHW
    assert skipping.dtype == torch.float32
    assert bool(torch.isfinite(skipping).all())


@pytest.mark.parametrize(("guidance", "passes"), [(1.0, 1), (5.0, 2)])
def test_infinite_threshold_runs_only_the_forced_steps(
    model: WanModel, guidance: float, passes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    block = type(model.transformer.blocks[0])
    calls = list[int]()
    forward = block.forward

    def counted(*args: Tensor) -> Tensor:
        calls.append(1)
        result: Tensor = forward(*args)
        return result

    monkeypatch.setattr(block, "forward", counted)
    run = tea_run(model, config(math.inf, num_first_steps=2), guidance=guidance)
    last = states(model, run, noise(model, 1))[-1]
    assert run.is_computed == (True, True, *[False] * (STEPS - 3), True)
    assert len(calls) == 3 * passes * len(model.transformer.blocks)
    assert run.num_forwards_skipped == passes * (STEPS - 3)
    assert bool(torch.isfinite(last.latent_BCTHW).all())


def test_a_skipped_step_adds_the_residual_of_its_own_pass(model: WanModel) -> None:
    run, transformer = tea_run(model, config(math.inf)), model.transformer
    before, after = noise(model, 1).latent_BCTHW, noise(model, 2).latent_BCTHW
    timesteps = solver_for(model, num_steps=STEPS).timesteps
    run.predict(before, timesteps[0])
    skipped = run.predict(after, timesteps[1])
    velocities = []
    with torch.no_grad():
        for prompt in (PROMPT, NEGATIVE):
            states_BLD = encode_prompt(model, prompt).states_BLD
            tokens, new_tokens = (
                transformer.patch_embedding(latent).flatten(2).transpose(1, 2).contiguous()
                for latent in (before, after)
            )
            _, result = run_blocks(transformer, before, tokens, timesteps[:1], states_BLD)
            head, *_ = transformer.condition_embedder(timesteps[1:2], states_BLD)
            reused = new_tokens + (result - tokens)
            velocities.append(project_out(transformer, reused, head, like_BCTHW=after))
    guided, unguided = velocities
    assert torch.equal(skipped, unguided + 5.0 * (guided - unguided))
    assert not torch.allclose(guided, unguided, atol=1e-3)  # so the residuals of the two passes are not one


def test_interleaved_requests_equal_sequential_ones(model: WanModel) -> None:
    settings = config(math.inf)
    prompts = (PROMPT, "the green cube moves up")
    alone = [
        states(model, tea_run(model, settings, prompt=prompt), noise(model, seed))
        for seed, prompt in enumerate(prompts)
    ]
    runs = [tea_run(model, settings, prompt=prompt) for prompt in prompts]
    together = [
        run_steps(solver_for(model, num_steps=STEPS), noise(model, seed), run.predict) for seed, run in enumerate(runs)
    ]
    for step, pair in enumerate(zip(*together, strict=True)):
        for seed, state in enumerate(pair):
            assert torch.equal(state.latent_BCTHW, alone[seed][step].latent_BCTHW)


def test_a_cancelled_run_leaves_nothing_behind(model: WanModel) -> None:
    expected = states(model, tea_run(model, config(math.inf)), noise(model, 1))[-1]
    before = {name: value.clone() for name, value in model.transformer.state_dict().items()}
    attributes = set(vars(model.transformer))
    cancelled = tea_run(model, config(math.inf), prompt="the green cube moves up")
    stops = iter([False, False, False, True])
    steps = run_steps(
        solver_for(model, num_steps=STEPS), noise(model, 2), cancelled.predict, should_stop=lambda: next(stops)
    )
    with pytest.raises(Cancelled):
        list(steps)
    again = states(model, tea_run(model, config(math.inf)), noise(model, 1))[-1]
    assert torch.equal(again.latent_BCTHW, expected.latent_BCTHW)
    assert set(vars(model.transformer)) == attributes
    assert all(torch.equal(value, before[name]) for name, value in model.transformer.state_dict().items())
    with pytest.raises(ValueError, match="one run, in order"):  # its residuals are of step 2, not of a new start
        states(model, cancelled, noise(model, 2))


def test_steps_out_of_order_are_refused_and_change_nothing(model: WanModel) -> None:
    run, latent = tea_run(model, config(math.inf)), noise(model, 1).latent_BCTHW
    timesteps = solver_for(model, num_steps=STEPS).timesteps
    for wrong in (timesteps[1], timesteps[-1]):
        with pytest.raises(ValueError, match=f"expected timestep {float(timesteps[0])} of step 0"):
            run.predict(latent, wrong)
    for timestep in timesteps:
        latent = run.predict(latent, timestep)
    with pytest.raises(ValueError, match="no step more"):
        run.predict(latent, timesteps[-1])


def test_a_run_from_k1_starts_with_an_empty_state(model: WanModel) -> None:
    run = tea_run(model, config(math.inf), first_step=4)
    assert run.is_computed == (True, False, False, True)
    start = dataclasses.replace(noise(model, 1), step=4)
    first = states(model, run, start)[0]
    assert torch.equal(first.latent_BCTHW, plain(model, start)[0].latent_BCTHW)
    assert run.num_forwards_skipped == 4


def test_guidance_without_a_negative_prompt_is_refused(model: WanModel) -> None:
    timesteps = solver_for(model, num_steps=STEPS).timesteps
    with pytest.raises(ValueError, match=r"guidance_scale=5.0 needs"):
        TeaCacheRun(model, config(0.0), encode_prompt(model, PROMPT), None, 5.0, timesteps_N=timesteps)


def test_distances_are_those_of_the_models_own_projection(model: WanModel) -> None:
    timesteps = solver_for(model, num_steps=STEPS).timesteps
    with torch.no_grad():
        states_BLD = encode_prompt(model, PROMPT).states_BLD
        rows = [model.transformer.condition_embedder(t[None], states_BLD)[1] for t in timesteps]
    expected = [float((b - a).abs().mean() / a.abs().mean()) for a, b in itertools.pairwise(rows)]
    # The change is projected instead of the projections subtracted: float32 rounding of a difference.
    assert projection_distances(model.transformer, timesteps) == pytest.approx(expected, rel=1e-4)


def test_half_precision_distances_keep_their_digits(model: WanModel) -> None:
    timesteps = solver_for(model, num_steps=STEPS).timesteps
    exact = projection_distances(model.transformer, timesteps)
    projection = model.transformer.condition_embedder.time_proj
    projection.to(torch.bfloat16)
    try:
        half = projection_distances(model.transformer, timesteps)
    finally:
        projection.to(torch.float32)
    # bfloat16 keeps 8 bits; errors of 2^-9 average out over the width. A subtraction would lose most of them.
    assert half == pytest.approx(exact, rel=0.01)


distance_lists = st.lists(st.floats(0, 1), max_size=60)


@given(distances=distance_lists, threshold=st.floats(0, 5), first=st.integers(1, 8), last=st.integers(1, 8))
def test_forced_steps_always_run(distances: list[float], threshold: float, first: int, last: int) -> None:
    plan = plan_computed(distances, config(threshold, num_first_steps=first, num_last_steps=last))
    assert len(plan) == len(distances) + 1
    assert all(plan[:first])
    assert all(plan[-last:])


@given(distances=distance_lists, threshold=st.floats(0, 5))
def test_no_stretch_of_skipped_steps_reaches_the_threshold(distances: list[float], threshold: float) -> None:
    plan = plan_computed(distances, config(threshold))
    skipped = 0.0
    for step in range(1, len(plan) - 1):
        skipped = 0.0 if plan[step] else skipped + distances[step - 1]
        assert not skipped >= threshold or plan[step]
    for step in range(1, len(plan) - 1):  # and a computed one was due
        if plan[step]:
            since = max(k for k in range(step) if plan[k])
            assert sum(distances[since:step]) >= threshold * (1 - 1e-9)


@given(distances=distance_lists, first_step=st.integers(0, 60))
def test_a_later_start_is_the_same_as_a_run_computed_there(distances: list[float], first_step: int) -> None:
    if first_step <= len(distances):
        late = plan_computed(distances, config(0.3), first_step=first_step)
        assert late == plan_computed(distances[first_step:], config(0.3))


@pytest.mark.parametrize("first_step", [-1, 5])
def test_start_outside_the_schedule_is_refused(first_step: int) -> None:
    with pytest.raises(ValueError, match=f"0..4, got {first_step}"):
        plan_computed([0.1] * 3, config(0.3), first_step=first_step)


def test_rescaling_reads_the_highest_power_first_and_never_pays_back() -> None:
    assert rescale(0.5, (2.0, -1.0, 3.0)) == pytest.approx(2 * 0.25 - 0.5 + 3)
    assert rescale(0.0, (1.0, -0.3)) == 0.0
    assert rescale(0.001, wan21_t2v_14b_teacache().coefficients) == 0.0
    assert plan_computed([0.0] * 4, TeaCacheConfig(threshold=0.0, coefficients=(-1.0,))) == (True,) * 5


def test_published_settings_skip_between_none_and_all() -> None:
    for settings in (wan21_t2v_1_3b_teacache(), wan21_t2v_14b_teacache()):
        plan = plan_computed([0.01] * 49, settings)  # rescaled to 0.043 and 0.052
        assert all(plan[:5])
        assert 0 < plan.count(False) < 45


def test_stored_setting_survives() -> None:
    settings = wan21_t2v_1_3b_teacache()
    assert teacache_from_json(json.dumps({"teacache": dataclasses.asdict(settings)})) == settings


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"threshold": -0.1}, "-0.1"),
        ({"threshold": math.nan}, "nan"),
        ({"coefficients": ()}, r"\(\)"),
        ({"coefficients": (math.inf,)}, "inf"),
        ({"num_first_steps": 0}, "0 and 1"),
        ({"num_last_steps": 0}, "1 and 0"),
    ],
)
def test_impossible_setting_is_refused_by_its_value(changes: dict[str, object], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        dataclasses.replace(config(0.1), **changes)  # type: ignore[arg-type]
