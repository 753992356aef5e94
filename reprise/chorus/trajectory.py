"""Latents of a run that later ones may start from: which are kept, and how a run goes on from one (Chorus, 3.1).

Symbols: K1 first step that is computed, N number of steps, sigma noise level, x0 clean latent, eps noise.
Knows nothing about stores, prompts or models. Shape letters: B batch, C channels, T latent frames, H, W latent grid.
"""

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Final

from torch import Tensor

from reprise.chorus.compression import compress
from reprise.chorus.grid import TrajectoryGrid, make_grid
from reprise.chorus.plan import ReusePlan
from reprise.chorus.stages import StageMap
from reprise.sampling import SolverState

REROLL_NOISE_SHARE: Final = 1.0
"""Share of the noise's variance that a re-roll draws anew."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Trajectory:
    """What is kept of one run: latents (B, C, T, H, W) by the step that they enter.

    Those of the grid are compressed, the finished one, at step N, is exact.
    """

    grid: TrajectoryGrid
    latents: Mapping[int, Tensor] = dataclasses.field(default_factory=dict)


def new_trajectory(stage_map: StageMap, *, num_steps: int) -> Trajectory:
    """Prepare to keep every step that F and the gate can come to at this N: no other latent is ever asked for."""
    return Trajectory(grid=make_grid(stage_map, num_steps=num_steps))


def capture(trajectory: Trajectory, state: SolverState) -> Trajectory:
    """Add a state if its step is wanted; the latent stays on its device, so no step waits for a copy."""
    if state.step == trajectory.grid.num_steps:
        kept = state.latent_BCTHW
    elif state.step in trajectory.grid.steps:
        kept = compress(state.latent_BCTHW)
    else:
        return trajectory
    return dataclasses.replace(trajectory, latents={**trajectory.latents, state.step: kept})


def resume_state(
    plan: ReusePlan, latent_BCTHW: Tensor, *, sigma: float, seed: int, draw_noise: Callable[[int], Tensor]
) -> SolverState:
    """Turn the source's latent entering K1 into the state that the new run goes on from.

    Without the solver's memory, which extrapolates along a path that another prompt, or noise, has left.
    `draw_noise(seed)` is the start latent of a seed, and `sigma` the noise level at K1.
    """
    if plan.refresh_noise:
        assert plan.source_seed is not None, "a plan with a source names its seed"
        latent_BCTHW = refresh_noise(
            latent_BCTHW,
            sigma=sigma,
            source_noise_BCTHW=draw_noise(plan.source_seed),
            new_noise_BCTHW=draw_noise(seed),
            share=REROLL_NOISE_SHARE,
        )
    return SolverState(latent_BCTHW=latent_BCTHW, step=plan.boundaries.k1)


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
