"""Flow-matching schedules and solver steps, as functions from one value to the next.

x_sigma = (1 - sigma) * clean + sigma * noise, and a model predicts the velocity noise - clean. A solver keeps
nothing between calls: all that a step needs is in `SolverState`, so a run can stop, be stored and go on exactly,
and requests cannot disturb each other. Knows nothing about models, prompts or reuse.

Shape letters: B batch, C channels, T latent frames, H, W latent grid, N denoising steps.
"""

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import torch
from diffusers import FlowMatchEulerDiscreteScheduler, UniPCMultistepScheduler
from torch import Tensor

from reprise.errors import Cancelled


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class SolverState:
    """A sample on its way: `latent_BCTHW` is what enters step `step`, in float32."""

    latent_BCTHW: Tensor
    step: int = 0
    history: tuple[Tensor, ...] = ()
    """What a multistep solver remembers, each like the latent: the corrected latent that entered the step before,
    then the predictions of the clean latent, newest first. Empty for Euler and at a fresh start."""

    def without_history(self) -> "SolverState":
        """Give the state that starts afresh from this latent; right when the prompt changes here."""
        return dataclasses.replace(self, history=())


class Solver(Protocol):
    """One request's schedule and the step along it."""

    sigmas: Tensor
    """Noise levels (N + 1,), float32 on the host: `sigmas[k]` is the level of the latent that enters step k."""
    timesteps: Tensor
    """What the model is told at each step (N,), float32 on the host: rounding them to half precision moves them."""

    def step(self, state: SolverState, velocity_BCTHW: Tensor) -> SolverState:
        """Advance by one step."""
        ...


def flow_sigmas(num_steps: int, *, shift: float, num_train_timesteps: int = 1000) -> Tensor:
    """Give the N + 1 noise levels of the Euler schedule, from 1 down to 0.

    A uniform grid is bent by sigma -> shift * sigma / (1 + (shift - 1) * sigma). Its last inner point is the lowest
    *trained* level, bent already once before, which is how FlowMatchEulerDiscreteScheduler builds it.
    """
    highest, lowest = (
        _shifted(torch.tensor(level, dtype=torch.float32) / num_train_timesteps, shift).item()
        for level in (num_train_timesteps, 1)
    )
    grid = np.linspace(highest * num_train_timesteps, lowest * num_train_timesteps, num_steps) / num_train_timesteps
    return torch.cat([torch.from_numpy(_shifted(grid, shift)).to(torch.float32), torch.zeros(1)])


def _shifted(sigma: Any, shift: float) -> Any:
    return shift * sigma / (1 + (shift - 1) * sigma)


def euler_step(latent_BCTHW: Tensor, velocity_BCTHW: Tensor, *, sigma: Tensor, next_sigma: Tensor) -> Tensor:
    """Follow the velocity in a straight line from `sigma` to `next_sigma`."""
    return latent_BCTHW + (next_sigma - sigma) * velocity_BCTHW


class EulerSolver:
    """Euler steps along given noise levels (N + 1,), from 1 to 0; remembers nothing."""

    def __init__(self, sigmas: Tensor, *, num_train_timesteps: int = 1000) -> None:
        self.sigmas = sigmas
        self.timesteps = self.sigmas[:-1] * num_train_timesteps

    def step(self, state: SolverState, velocity_BCTHW: Tensor) -> SolverState:
        """Advance by one Euler step."""
        sigma, next_sigma = self.sigmas[state.step], self.sigmas[state.step + 1]
        latent = euler_step(state.latent_BCTHW, velocity_BCTHW, sigma=sigma, next_sigma=next_sigma)
        return SolverState(latent_BCTHW=latent, step=state.step + 1)


class UniPCSolver:
    """diffusers' UniPC driven as a function: each step puts the state's memory in and takes it out again.

    The scheduler object belongs to this solver alone. Its counters follow from the step and from how many
    predictions the history holds, so they are not part of the state.
    """

    def __init__(self, scheduler: UniPCMultistepScheduler, *, num_steps: int) -> None:
        scheduler.set_timesteps(num_steps)
        self._scheduler = scheduler
        self.sigmas: Tensor = scheduler.sigmas
        self.timesteps: Tensor = scheduler.timesteps.to(torch.float32)

    def step(self, state: SolverState, velocity_BCTHW: Tensor) -> SolverState:
        """Advance by one predictor-corrector step."""
        scheduler, predictions = self._scheduler, state.history[1:]
        order: int = scheduler.config.solver_order
        # diffusers keeps the predictions oldest first, padded in front, and has no setter for any of these.
        scheduler.model_outputs = [None] * (order - len(predictions)) + list(reversed(predictions))
        scheduler.last_sample = state.history[0] if state.history else None
        scheduler.lower_order_nums = len(predictions)
        scheduler.this_order = min(self._order_limit(state.step - 1), len(predictions))
        scheduler._step_index = state.step
        timestep = self.timesteps[state.step]
        latent: Tensor = scheduler.step(velocity_BCTHW, timestep, state.latent_BCTHW, return_dict=False)[0]
        kept = [prediction for prediction in reversed(scheduler.model_outputs) if prediction is not None]
        return SolverState(latent_BCTHW=latent, step=state.step + 1, history=(scheduler.last_sample, *kept))

    def _order_limit(self, step: int) -> int:
        order: int = self._scheduler.config.solver_order
        return min(order, len(self.timesteps) - step) if self._scheduler.config.lower_order_final else order


_UNSUPPORTED = (
    "invert_sigmas",
    "shift_terminal",
    "solver_p",
    "stochastic_sampling",
    "thresholding",
    "use_beta_sigmas",
    "use_dynamic_shifting",
    "use_exponential_sigmas",
    "use_karras_sigmas",
)


def new_solver(scheduler: Any, *, num_steps: int, step_sigmas: tuple[float, ...] = ()) -> Solver:
    """Build one request's own solver from a checkpoint's scheduler, which is read and never run.

    `step_sigmas` are the noise levels of a distilled model, which takes Euler steps between them and no others.
    Refuses a setting it would not honour, so that no checkpoint is sampled another way than it says.
    """
    if num_steps < 1:
        raise ValueError(f"num_steps must be at least 1, got {num_steps}")
    config = scheduler.config
    if step_sigmas:
        if num_steps != len(step_sigmas):
            raise ValueError(f"the model is distilled to {len(step_sigmas)} steps at {step_sigmas}, got {num_steps=}")
        return EulerSolver(torch.tensor((*step_sigmas, 0.0)), num_train_timesteps=config.num_train_timesteps)
    odd = {name: config[name] for name in _UNSUPPORTED if config.get(name)}
    if isinstance(scheduler, FlowMatchEulerDiscreteScheduler) and not odd:
        sigmas = flow_sigmas(num_steps, shift=config.shift, num_train_timesteps=config.num_train_timesteps)
        return EulerSolver(sigmas, num_train_timesteps=config.num_train_timesteps)
    if isinstance(scheduler, UniPCMultistepScheduler) and not odd:
        wanted = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "predict_x0": True}
        odd = {name: config[name] for name, value in wanted.items() if config[name] != value}
        if not odd:
            return UniPCSolver(UniPCMultistepScheduler.from_config(config), num_steps=num_steps)
    raise ValueError(
        "expected a FlowMatchEulerDiscreteScheduler or a UniPCMultistepScheduler with flow prediction and flow sigmas, "
        f"got {type(scheduler).__name__} with settings {odd}: change scheduler/scheduler_config.json"
    )


def run_steps(
    solver: Solver,
    state: SolverState,
    predict: Callable[[Tensor, Tensor], Tensor],
    *,
    end: int | None = None,
    correct: Callable[[SolverState], SolverState] = lambda state: state,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[SolverState]:
    """Yield the state after each step from `state.step` to `end`, by default N; stop between steps when asked to.

    `predict(latent_BCTHW, timestep)` gives the velocity; it runs once a step. `correct` may exchange the state after
    a step, for the caller and for the steps that follow.
    """
    num_steps = len(solver.timesteps)
    end = num_steps if end is None else end
    if not 0 <= state.step <= end <= num_steps:
        raise ValueError(f"cannot go on from step {state.step} to {end} in a run of {num_steps} steps")
    while state.step < end:
        if should_stop():
            raise Cancelled(f"stopped before step {state.step} of {num_steps}")
        velocity_BCTHW = predict(state.latent_BCTHW, solver.timesteps[state.step])
        state = correct(solver.step(state, velocity_BCTHW))
        yield state
