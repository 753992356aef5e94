"""Capture, resumption and refreshed noise."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reprise.chorus.plan import ReusePlan
from reprise.chorus.stages import StageBoundaries, many_step_map
from reprise.chorus.trajectory import REROLL_NOISE_SHARE, capture, new_trajectory, refresh_noise, resume_state
from reprise.sampling import SolverState, new_solver, run_steps

NUM_STEPS = 50
SCHEDULERS = {
    "euler": FlowMatchEulerDiscreteScheduler(shift=3.0),
    "unipc": UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0),
}


def draw_noise(seed: int) -> Tensor:
    return torch.randn(1, 4, 3, 8, 8, generator=torch.Generator().manual_seed(seed))


def predict(latent_BCTHW: Tensor, timestep: Tensor) -> Tensor:
    return torch.tanh(latent_BCTHW) * (1 + timestep / 500) + 0.1


def plan(**changes: Any) -> ReusePlan:
    fields: dict[str, Any] = {"source_id": "a", "source_seed": 1, "boundaries": StageBoundaries(k1=10, k2=10)}
    return ReusePlan(**{**fields, **changes})


@pytest.mark.parametrize("name", SCHEDULERS)
def test_the_grid_is_kept_small_and_the_finished_latent_exact(name: str) -> None:
    solver = new_solver(SCHEDULERS[name], num_steps=NUM_STEPS)
    start, trajectory = SolverState(latent_BCTHW=draw_noise(1)), new_trajectory(many_step_map(), num_steps=NUM_STEPS)
    reached = {}
    for state in run_steps(solver, start, predict):
        trajectory = capture(trajectory, state)
        reached[state.step] = state.latent_BCTHW
    assert tuple(trajectory.latents) == (5, 10, 15, 20, 25, 50)
    assert torch.equal(trajectory.latents[50], reached[50])
    for step in trajectory.grid.steps:
        assert trajectory.latents[step].dtype == torch.float16
        assert torch.allclose(trajectory.latents[step].float(), reached[step], rtol=2**-10)


def test_another_prompt_takes_the_latent_as_it_is() -> None:
    resumed = resume_state(plan(), draw_noise(3), sigma=0.9, seed=2, draw_noise=draw_noise)
    assert torch.equal(resumed.latent_BCTHW, draw_noise(3))
    assert (resumed.step, resumed.history) == (10, ())


def test_reroll_exchanges_the_sources_noise_for_the_new_seeds() -> None:
    resumed = resume_state(plan(refresh_noise=True), draw_noise(3), sigma=0.9, seed=2, draw_noise=draw_noise)
    expected = refresh_noise(
        draw_noise(3),
        sigma=0.9,
        source_noise_BCTHW=draw_noise(1),
        new_noise_BCTHW=draw_noise(2),
        share=REROLL_NOISE_SHARE,
    )
    assert torch.equal(resumed.latent_BCTHW, expected)
    assert (resumed.step, resumed.history) == (10, ())


@given(sigma=st.floats(0, 1))
@settings(max_examples=20, deadline=None)
def test_share_0_changes_nothing(sigma: float) -> None:
    latent = draw_noise(3)
    same = refresh_noise(
        latent, sigma=sigma, source_noise_BCTHW=draw_noise(1), new_noise_BCTHW=draw_noise(2), share=0.0
    )
    assert torch.equal(same, latent)


def test_share_1_at_the_start_is_the_new_seeds_own_run() -> None:
    fresh = refresh_noise(
        draw_noise(1), sigma=1.0, source_noise_BCTHW=draw_noise(1), new_noise_BCTHW=draw_noise(2), share=1.0
    )
    assert torch.allclose(fresh, draw_noise(2), atol=1e-6)  # (x - x) + y in float32


@pytest.mark.parametrize("share", [0.25, 0.75, 1.0])
@pytest.mark.parametrize("sigma", [0.3, 0.9])
def test_refreshed_latent_has_the_variance_of_its_level(sigma: float, share: float) -> None:
    # 200,000 values: the relative error of a variance has deviation 0.0032, of a correlation 0.0022. Bounds of six
    # deviations, 18 figures in all: a false alarm in one of 10 million seeds, and the seed is fixed.
    generator = torch.Generator().manual_seed(0)
    clean, noise, new = (torch.randn(200_000, generator=generator) for _ in range(3))
    clean = 0.5 * clean + 0.3
    latent = (1 - sigma) * clean + sigma * noise
    refreshed = refresh_noise(latent, sigma=sigma, source_noise_BCTHW=noise, new_noise_BCTHW=new, share=share)
    variance = (1 - sigma) ** 2 * 0.25 + sigma**2
    assert float(refreshed.var()) == pytest.approx(variance, rel=0.019)
    assert float(refreshed.mean()) == pytest.approx((1 - sigma) * 0.3, abs=6 * math.sqrt(variance / 200_000))
    kept = (refreshed - (1 - sigma) * clean) / sigma
    assert float(torch.corrcoef(torch.stack([kept, noise]))[0, 1]) == pytest.approx(math.sqrt(1 - share), abs=0.0135)


def test_latent_is_exactly_the_start_noise_plus_the_mean_of_the_predictions() -> None:
    """The identity that `refresh_noise` rests on, along Euler steps of a model that is anything but linear."""
    solver = new_solver(SCHEDULERS["euler"], num_steps=NUM_STEPS)
    start, predictions = SolverState(latent_BCTHW=draw_noise(1)), list[Tensor]()

    def spy(latent: Tensor, timestep: Tensor) -> Tensor:
        velocity = predict(latent, timestep)
        predictions.append(latent - timestep / 1000 * velocity)
        return velocity

    *_, state = (state for state, _ in zip(run_steps(solver, start, spy), range(20), strict=False))
    inverse = 1 / solver.sigmas[:21]
    weights = inverse.diff() * solver.sigmas[20]
    mean = sum(w * x for w, x in zip(weights, predictions, strict=False))
    assert float(weights.sum()) == pytest.approx(1 - float(solver.sigmas[20]), abs=1e-5)
    assert torch.allclose(state.latent_BCTHW, solver.sigmas[20] * draw_noise(1) + mean, atol=1e-4)  # 20 float32 sums


@pytest.mark.parametrize(("share", "sigma"), [(-0.1, 0.5), (1.1, 0.5), (math.nan, 0.5), (0.5, 1.1)])
def test_impossible_share_or_level_is_refused(share: float, sigma: float) -> None:
    refresh: Callable[..., Tensor] = refresh_noise
    with pytest.raises(ValueError, match=f"share={share}, sigma={sigma}"):
        refresh(
            draw_noise(1), sigma=sigma, source_noise_BCTHW=draw_noise(2), new_noise_BCTHW=draw_noise(3), share=share
        )
