"""Latents of a run that later ones may start from: which are kept, and how a run goes on from one (Chorus, 3.1).

Symbols: K1 first step that is computed, N number of steps, sigma noise level, x0 clean latent, eps noise.
Knows nothing about stores, prompts or models. Shape letters: B batch, C channels, T latent frames, H, W latent grid.
"""

import dataclasses
import math
from collections.abc import Callable
from typing import Final

import torch
from torch import Tensor

from reprise.chorus.gate import reachable_steps
from reprise.chorus.plan import ReusePlan
from reprise.chorus.stages import StageMap
from reprise.sampling import SolverState

REROLL_NOISE_SHARE: Final = 1.0
"""Share of the noise's variance that a re-roll draws anew."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Trajectory:
    """The stored states of one run, in order of their step."""

    num_steps: int
    wanted_steps: tuple[int, ...]
    states: tuple[SolverState, ...] = ()

    @property
    def stored_steps(self) -> tuple[int, ...]:
        """Steps that a later run can start from."""
        return tuple(state.step for state in self.states)

    def at(self, step: int) -> SolverState:
        """Give the state that enters `step`."""
        for state in self.states:
            if state.step == step:
                return state
        raise ValueError(f"no state is stored at step {step}, only at {self.stored_steps}")


def new_trajectory(stage_map: StageMap, *, num_steps: int) -> Trajectory:
    """Prepare to keep every step that F and the gate can come to at this N: no other latent is ever asked for."""
    return Trajectory(num_steps=num_steps, wanted_steps=reachable_steps(stage_map, num_steps=num_steps))


def capture(trajectory: Trajectory, state: SolverState) -> Trajectory:
    """Add a state if its step is wanted; the latent stays on its device, so no step waits for a copy."""
    if state.step not in trajectory.wanted_steps:
        return trajectory
    return dataclasses.replace(trajectory, states=(*trajectory.states, state))


def resume_state(
    plan: ReusePlan, source: SolverState, *, sigma: float, seed: int, draw_noise: Callable[[int], Tensor]
) -> SolverState:
    """Turn the source's stored state into the one that the new run goes on from, at step K1.

    The same request goes on exactly, with the solver's memory. Any other one drops that memory: it extrapolates
    along a path that a different prompt, or noise, has left. `draw_noise(seed)` is the start latent of a seed.
    """
    if source.step != plan.boundaries.k1:
        raise ValueError(f"the plan goes on from step {plan.boundaries.k1}, the source's state enters {source.step}")
    if plan.same_request:
        return source
    if not plan.refresh_noise:
        return source.without_history()
    assert plan.source_seed is not None, "a plan with a source names its seed"
    latent_BCTHW = refresh_noise(
        source.latent_BCTHW,
        sigma=sigma,
        source_noise_BCTHW=draw_noise(plan.source_seed),
        new_noise_BCTHW=draw_noise(seed),
        share=REROLL_NOISE_SHARE,
    )
    return SolverState(latent_BCTHW=latent_BCTHW, step=source.step)


def refresh_noise(
    latent_BCTHW: Tensor, *, sigma: float, source_noise_BCTHW: Tensor, new_noise_BCTHW: Tensor, share: float
) -> Tensor:
    """Exchange a share of the noise in a latent at level `sigma` for other noise, keeping its variance.

    A flow path from noise eps satisfies d(x / sigma) = -x0(x) / sigma^2 d sigma, with x0(x) the model's prediction of
    the clean latent. So, for the path and for Euler steps along it alike, and exactly,
        x_sigma = sigma * eps + (1 - sigma) * (mean of the predictions made so far, weighted by 1 / sigma^2),
    where eps is the latent that entered step 0. Exchanging eps for sqrt(1 - share) * eps + sqrt(share) * new, which
    is again standard normal, keeps what was decided (the mean) and redraws what was not, at the level the next
    step expects. For a mean independent of the noise the variance is kept exactly: (1 - sigma)^2 var(mean) + sigma^2.
    The predictions do lean on their noise, with covariance c, so it falls by
    2 sigma (1 - sigma) (1 - sqrt(1 - share)) c, which is small early, where this is used. Share 0 changes nothing.
    """
    if not (0 <= share <= 1 and 0 <= sigma <= 1):
        raise ValueError(f"share and sigma must lie in 0..1, got share={share}, sigma={sigma}")
    change_BCTHW = (math.sqrt(1 - share) - 1) * source_noise_BCTHW + math.sqrt(share) * new_noise_BCTHW
    return latent_BCTHW + sigma * change_BCTHW


def pack_state(state: SolverState) -> Tensor:
    """Stack a state's latent and its history into one tensor (1 + len(history), B, C, T, H, W), to store."""
    return torch.stack([state.latent_BCTHW, *state.history])


def unpack_state(packed: Tensor, *, step: int) -> SolverState:
    """Take apart what `pack_state` stacked."""
    latent_BCTHW, *history = packed.unbind(0)
    return SolverState(latent_BCTHW=latent_BCTHW, step=step, history=tuple(history))
