"""Generate one clip by plan: from noise, or from a source's state at step K1 (Chorus, section 3.1, stages 1 and 3).

Runs what a `ReusePlan` decided and keeps what later requests may start from. Knows nothing about where sources
come from, jobs, files or Ray.

Shape letters: B batch, C latent channels, T latent frames, H, W latent grid; in frames_FHWC: F frames, H, W pixels.
"""

import dataclasses
import time
from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reprise.chorus.plan import ReusePlan
from reprise.chorus.trajectory import Trajectory, capture, new_trajectory, resume_state
from reprise.sampling import SolverState
from reprise.wan.model import WanModel, decode_video, denoise, draw_noise, encode_prompt, solver_for


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClipSpec:
    """What determines a clip's pixels, given the model."""

    prompt: str
    negative_prompt: str
    seed: int
    num_steps: int
    guidance_scale: float
    width: int
    height: int
    num_frames: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Clip:
    """The frames, and what making them took."""

    frames_FHWC: NDArray[np.uint8]
    latent_BCTHW: Tensor
    trajectory: Trajectory | None
    """States to store; None on a hit, which stores nothing."""
    num_steps_computed: int
    num_tokens: int
    num_tokens_dropped: int
    denoise_s: float
    """Text encoding and every computed step."""
    decode_s: float


def start_state(model: WanModel, spec: ClipSpec, plan: ReusePlan, source: SolverState | None) -> SolverState:
    """Give the state the run goes on from: noise at step 0, or the source's at step K1."""

    def noise(seed: int) -> Tensor:
        return draw_noise(model, seed=seed, width=spec.width, height=spec.height, num_frames=spec.num_frames)

    if not plan.is_hit:
        return SolverState(latent_BCTHW=noise(spec.seed))
    if source is None:
        raise ValueError(f"the plan goes on from {plan.source_id} at step {plan.boundaries.k1}, but no state was given")
    sigma = float(solver_for(model, num_steps=spec.num_steps).sigmas[plan.boundaries.k1])
    return resume_state(plan, source, sigma=sigma, seed=spec.seed, draw_noise=noise)


def generate_clip(
    model: WanModel,
    spec: ClipSpec,
    plan: ReusePlan,
    source: SolverState | None = None,
    *,
    on_step: Callable[[int], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Clip:
    """Run steps [K1, N) and decode; `on_step(k)` tells that k steps of N lie behind.

    Raises Cancelled between two steps, NumericalError when the result is no picture.
    """
    begin = time.perf_counter()
    embedding = encode_prompt(model, spec.prompt)
    negative = encode_prompt(model, spec.negative_prompt) if spec.guidance_scale > 1 else None
    solver = solver_for(model, num_steps=spec.num_steps)
    state = start_state(model, spec, plan, source)
    on_step(state.step)
    trajectory = None if plan.is_hit else new_trajectory(model.preset.stage_map, num_steps=spec.num_steps)
    num_computed = 0
    steps = denoise(model, solver, state, embedding, negative, spec.guidance_scale, should_stop=should_stop)
    for state in steps:
        num_computed += 1
        trajectory = None if trajectory is None else capture(trajectory, state)
        on_step(state.step)
    if model.device.type == "cuda":
        torch.cuda.synchronize(model.device)  # so that the two times below are not mixed up
    middle = time.perf_counter()
    frames_FHWC = decode_video(model, state.latent_BCTHW)
    return Clip(
        frames_FHWC=frames_FHWC,
        latent_BCTHW=state.latent_BCTHW,
        trajectory=trajectory,
        num_steps_computed=num_computed,
        num_tokens=embedding.num_tokens,
        num_tokens_dropped=embedding.num_dropped,
        denoise_s=middle - begin,
        decode_s=time.perf_counter() - middle,
    )
