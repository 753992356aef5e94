"""Schedules and solver steps against diffusers' schedulers."""

import dataclasses
from typing import Any

import pytest
import torch
from diffusers import DDIMScheduler, FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reprise.errors import Cancelled
from reprise.sampling import SolverState, euler_step, flow_sigmas, new_solver, run_steps

FLOW = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
SHAPE = (1, 4, 2, 3, 3)


def draw(seed: int) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))


def predict(latent_BCTHW: Tensor, timestep: Tensor) -> Tensor:
    """A velocity that is neither linear in the latent nor the same at every step."""
    return torch.tanh(latent_BCTHW) * (1 + timestep / 500) + 0.1


def run_diffusers(scheduler: Any, latent: Tensor, num_steps: int) -> Tensor:
    scheduler.set_timesteps(num_steps)
    for timestep in scheduler.timesteps:
        latent = scheduler.step(predict(latent, timestep.float()), timestep, latent, return_dict=False)[0]
    return latent


@settings(max_examples=50, deadline=None)
@given(num_steps=st.integers(1, 100), shift=st.floats(0.1, 12.0))
def test_euler_schedule_is_the_schedulers(num_steps: int, shift: float) -> None:
    scheduler = FlowMatchEulerDiscreteScheduler(shift=shift)
    scheduler.set_timesteps(num_steps)
    solver = new_solver(scheduler, num_steps=num_steps)
    assert torch.equal(solver.sigmas, scheduler.sigmas)
    assert torch.equal(solver.timesteps, scheduler.timesteps)
    assert torch.equal(flow_sigmas(num_steps, shift=shift), scheduler.sigmas)


@pytest.mark.parametrize(
    "scheduler",
    [
        FlowMatchEulerDiscreteScheduler(shift=3.0),
        UniPCMultistepScheduler(**FLOW),
        UniPCMultistepScheduler(**FLOW, solver_order=4),
        UniPCMultistepScheduler(**FLOW, solver_order=1, disable_corrector=[0, 3]),
    ],
)
@pytest.mark.parametrize("num_steps", [1, 2, 5, 12])
def test_run_and_every_resumption_equal_the_scheduler_bit_for_bit(scheduler: Any, num_steps: int) -> None:
    expected = run_diffusers(type(scheduler).from_config(scheduler.config), draw(1), num_steps)
    start = SolverState(latent_BCTHW=draw(1))
    states = [start, *run_steps(new_solver(scheduler, num_steps=num_steps), start, predict)]
    assert [state.step for state in states] == list(range(num_steps + 1))
    assert torch.isfinite(expected).all()
    assert torch.equal(states[-1].latent_BCTHW, expected)
    for state in states:
        resumed = [state, *run_steps(new_solver(scheduler, num_steps=num_steps), state, predict)]
        assert torch.equal(resumed[-1].latent_BCTHW, expected)


def test_a_solver_shared_by_two_runs_mixes_nothing() -> None:
    solver = new_solver(UniPCMultistepScheduler(**FLOW), num_steps=6)
    starts = [SolverState(latent_BCTHW=draw(seed)) for seed in (1, 2)]
    alone = [list(run_steps(solver, start, predict))[-1] for start in starts]
    together = list(zip(*[run_steps(solver, start, predict) for start in starts], strict=True))[-1]
    for one, other in zip(alone, together, strict=True):
        assert torch.equal(one.latent_BCTHW, other.latent_BCTHW)


def test_the_checkpoints_scheduler_is_never_run() -> None:
    scheduler = UniPCMultistepScheduler(**FLOW)
    before = {name: repr(value) for name, value in vars(scheduler).items()}
    list(run_steps(new_solver(scheduler, num_steps=4), SolverState(latent_BCTHW=draw(1)), predict))
    assert {name: repr(value) for name, value in vars(scheduler).items()} == before


def test_states_are_values() -> None:
    solver, start = new_solver(UniPCMultistepScheduler(**FLOW), num_steps=6), SolverState(latent_BCTHW=draw(1))
    states = list(run_steps(solver, start, predict))
    copies = [[tensor.clone() for tensor in (state.latent_BCTHW, *state.history)] for state in states]
    list(run_steps(solver, states[2], lambda latent, _: latent * 0))
    for state, kept in zip(states, copies, strict=True):
        for tensor, copy in zip((state.latent_BCTHW, *state.history), kept, strict=True):
            assert torch.equal(tensor, copy)


@given(sigma=st.floats(0.05, 1.0), share=st.floats(0.0, 1.0))
@settings(max_examples=25, deadline=None)
def test_euler_follows_the_exact_velocity_to_the_exact_latent(sigma: float, share: float) -> None:
    clean, noise, next_sigma = draw(1), draw(2), sigma * share
    latent = euler_step(
        (1 - sigma) * clean + sigma * noise,
        noise - clean,
        sigma=torch.tensor(sigma),
        next_sigma=torch.tensor(next_sigma),
    )
    assert torch.allclose(latent, (1 - next_sigma) * clean + next_sigma * noise, atol=1e-5)  # float32 rounding


@pytest.mark.parametrize("num_done", [0, 1, 3])
def test_stop_is_asked_before_every_step(num_done: int) -> None:
    solver, reached = new_solver(FlowMatchEulerDiscreteScheduler(), num_steps=3), list[int]()
    runs = run_steps(solver, SolverState(latent_BCTHW=draw(1)), predict, should_stop=lambda: len(reached) == num_done)
    if num_done == 3:  # nothing is left to stop
        reached.extend(state.step for state in runs)
    else:
        with pytest.raises(Cancelled, match=f"before step {num_done} of 3"):
            reached.extend(state.step for state in runs)
    assert reached == list(range(1, num_done + 1))


@pytest.mark.parametrize(
    ("scheduler", "named"),
    [
        (DDIMScheduler(), "DDIMScheduler"),
        (UniPCMultistepScheduler(), "use_flow_sigmas"),
        (UniPCMultistepScheduler(**FLOW, use_karras_sigmas=True), "use_karras_sigmas"),
        (FlowMatchEulerDiscreteScheduler(use_dynamic_shifting=True), "use_dynamic_shifting"),
        (FlowMatchEulerDiscreteScheduler(stochastic_sampling=True), "stochastic_sampling"),
    ],
)
def test_setting_that_would_not_be_honoured_is_refused(scheduler: Any, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        new_solver(scheduler, num_steps=4)


@pytest.mark.parametrize("num_steps", [0, -1])
def test_no_steps_is_refused(num_steps: int) -> None:
    with pytest.raises(ValueError, match=f"at least 1, got {num_steps}"):
        new_solver(FlowMatchEulerDiscreteScheduler(), num_steps=num_steps)


def test_step_beyond_the_run_is_refused() -> None:
    solver = new_solver(FlowMatchEulerDiscreteScheduler(), num_steps=3)
    with pytest.raises(ValueError, match="from step 4 to 3 in a run of 3"):
        list(run_steps(solver, SolverState(latent_BCTHW=draw(1), step=4), predict))


def test_a_correction_reaches_the_steps_that_follow_and_the_end_is_kept() -> None:
    solver = new_solver(FlowMatchEulerDiscreteScheduler(shift=3.0), num_steps=4)

    def pin(state: SolverState) -> SolverState:
        return dataclasses.replace(state, latent_BCTHW=torch.full_like(state.latent_BCTHW, float(state.step)))

    seen: list[float] = []

    def spy(latent: Tensor, timestep: Tensor) -> Tensor:
        seen.append(float(latent.mean()))
        return predict(latent, timestep)

    start = SolverState(latent_BCTHW=draw(1), step=1)
    states = list(run_steps(solver, start, spy, end=3, correct=pin))
    assert [state.step for state in states] == [2, 3]
    assert [float(state.latent_BCTHW.mean()) for state in states] == [2.0, 3.0]
    assert seen[1] == 2.0


def test_distilled_levels_are_the_schedulers_own_with_custom_sigmas() -> None:
    levels = (1.0, 0.9, 0.75, 0.5)
    scheduler = FlowMatchEulerDiscreteScheduler(shift=1.0)  # it bends given levels too, which they already are
    scheduler.set_timesteps(sigmas=list(levels))
    solver = new_solver(FlowMatchEulerDiscreteScheduler(shift=3.0), num_steps=4, step_sigmas=levels)
    assert torch.equal(solver.sigmas, scheduler.sigmas)
    assert torch.equal(solver.timesteps, scheduler.timesteps)
    with pytest.raises(ValueError, match="distilled to 4 steps"):
        new_solver(scheduler, num_steps=50, step_sigmas=levels)
