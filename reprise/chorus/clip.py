"""Generate one clip by plan: take over, denoise a region, denoise in full (Chorus, section 3.1, stages 1 to 3).

Runs what a `ReusePlan` decided and keeps what later requests may start from. Knows nothing about where sources
come from, jobs, files or Ray.

Symbols: K1, K2 stage boundaries, N number of steps.
Shape letters: B batch, C latent channels, T latent frames, H, W latent grid; in frames_FHWC: F frames, H, W pixels.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reprise.chorus.conditioning import Conditioning, conditioning_of
from reprise.chorus.plan import RegionReason, ReusePlan
from reprise.chorus.region import merge_latents
from reprise.chorus.source import Region, Source, find_region
from reprise.chorus.trajectory import Trajectory, capture, new_trajectory, resume_state
from reprise.chorus.work import WorkDone
from reprise.sampling import Solver, SolverState, run_steps
from reprise.teacache import TeaCacheConfig
from reprise.wan.model import (
    PromptEmbedding,
    WanModel,
    decode_video,
    draw_noise,
    encode_prompt,
    latent_shape,
    predict_velocity,
    solver_for,
)
from reprise.wan.region import predict_region_velocity
from reprise.wan.teacache import TeaCacheRun


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

    plan: ReusePlan
    """As it was run: without its stage 2 where no region could be found or paid."""
    frames_FHWC: NDArray[np.uint8]
    latent_BCTHW: Tensor
    trajectory: Trajectory | None
    """Latents to store; None on a hit, which stores nothing."""
    work: WorkDone
    num_tokens: int
    num_tokens_dropped: int
    decode_s: float


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class _Run:
    """One clip's model, schedule and prompts."""

    model: WanModel
    spec: ClipSpec
    solver: Solver
    embedding: PromptEmbedding
    negative: PromptEmbedding | None
    conditioning: Conditioning
    should_stop: Callable[[], bool]

    @property
    def sigmas(self) -> list[float]:
        """Give the N + 1 noise levels."""
        sigmas: list[float] = self.solver.sigmas.tolist()
        return sigmas


def generate_clip(
    model: WanModel,
    spec: ClipSpec,
    plan: ReusePlan,
    source: Source | None = None,
    *,
    teacache: TeaCacheConfig | None = None,
    on_step: Callable[[int], None] = lambda _: None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Clip:
    """Run steps [K1, N) and decode; `on_step(k)` tells that k steps of N lie behind.

    Raises Cancelled between two steps, NumericalError when the result is no picture.
    """
    clock = _Clock(model.device)
    run = _prepare(model, spec, plan, should_stop)
    plan, region = _plan_region(run, plan, source)
    state = _start_state(run, plan, source)
    on_step(state.step)
    encode_prompt_s = clock.lap()
    if region is not None:
        assert source is not None, "a region is found on a source"
        for reached in _denoise_region(run, state, plan, source, region):
            state = reached
            on_step(state.step)
    region_s = clock.lap()
    cache = None if teacache is None else _cached_steps(run, teacache, first_step=state.step)
    trajectory = None if plan.is_hit else new_trajectory(model.preset.stage_map, num_steps=spec.num_steps)
    for reached in _denoise_dense(run, state, cache):
        state = reached
        trajectory = None if trajectory is None else capture(trajectory, state)
        on_step(state.step)
    dense_s = clock.lap()
    frames_FHWC = decode_video(model, state.latent_BCTHW)
    return Clip(
        plan=plan,
        frames_FHWC=frames_FHWC,
        latent_BCTHW=state.latent_BCTHW,
        trajectory=trajectory,
        work=WorkDone(
            num_steps=spec.num_steps,
            num_region_steps=plan.boundaries.k2 - plan.boundaries.k1,
            num_dense_steps=spec.num_steps - plan.boundaries.k2,
            num_cached_steps=0 if cache is None else cache.is_computed.count(False),
            edit_share=None if region is None else region.edit_share,
            see_share=None if region is None else region.see_share,
            encode_prompt_s=encode_prompt_s,
            region_s=region_s,
            dense_s=dense_s,
        ),
        num_tokens=run.embedding.num_tokens,
        num_tokens_dropped=run.embedding.num_dropped,
        decode_s=clock.lap(),
    )


def _prepare(model: WanModel, spec: ClipSpec, plan: ReusePlan, should_stop: Callable[[], bool]) -> _Run:
    embedding = encode_prompt(model, spec.prompt)
    return _Run(
        model=model,
        spec=spec,
        solver=solver_for(model, num_steps=spec.num_steps),
        embedding=embedding,
        negative=encode_prompt(model, spec.negative_prompt) if spec.guidance_scale > 1 else None,
        conditioning=conditioning_of(model, spec.prompt, plan, num_text_tokens=embedding.states_BLD.shape[1]),
        should_stop=should_stop,
    )


def _plan_region(run: _Run, plan: ReusePlan, source: Source | None) -> tuple[ReusePlan, Region | None]:
    """Find the region of stage 2; where there is none, the plan goes on without that stage."""
    if plan.region_phrase is None or source is None:
        return plan, None
    spec, preset = run.spec, run.model.preset
    _, _, *grid = latent_shape(run.model, width=spec.width, height=spec.height, num_frames=spec.num_frames)
    T, H, W = grid
    found = find_region(
        source,
        (T, H, W),
        run.model.transformer.config.patch_size,
        edit_radius=preset.edit_radius,
        see_radius=preset.see_radius,
    )
    if isinstance(found, RegionReason):
        return plan.without_region(found), None
    return plan, found.to(run.model.device)


def _start_state(run: _Run, plan: ReusePlan, source: Source | None) -> SolverState:
    """Give the state the run goes on from: noise at step 0, or the source's at step K1."""
    spec = run.spec

    def noise(seed: int) -> Tensor:
        return draw_noise(run.model, seed=seed, width=spec.width, height=spec.height, num_frames=spec.num_frames)

    if not plan.is_hit:
        return SolverState(latent_BCTHW=noise(spec.seed))
    k1 = plan.boundaries.k1
    if source is None:
        raise ValueError(f"the plan goes on from {plan.source_id} at step {k1}, but no source was given")
    latent_BCTHW = source.latent(k1, sigmas=run.sigmas)
    return resume_state(plan, latent_BCTHW, sigma=run.sigmas[k1], seed=spec.seed, draw_noise=noise)


def _denoise_region(
    run: _Run, state: SolverState, plan: ReusePlan, source: Source, region: Region
) -> Iterator[SolverState]:
    """Run steps [K1, K2) inside the region alone; outside, each state is the source's (Chorus, 3.3, eq. 6).

    There the velocity is the source's too, so that what a multistep solver remembers is of one piece at K2.
    """
    sigmas, edit_THW, steps = run.sigmas, region.edit_THW, itertools.count(state.step)

    def predict(latent_BCTHW: Tensor, timestep: Tensor) -> Tensor:
        velocity_BCTHW = predict_region_velocity(
            run.model,
            latent_BCTHW,
            timestep,
            run.embedding,
            run.negative,
            run.spec.guidance_scale,
            region.index,
            conditioned=run.conditioning.at(timestep),
        )
        return merge_latents(velocity_BCTHW, source.velocity(next(steps), sigmas=sigmas), edit_THW)

    def merge(reached: SolverState) -> SolverState:
        source_BCTHW = source.latent(reached.step, sigmas=sigmas)
        merged_BCTHW = merge_latents(reached.latent_BCTHW, source_BCTHW, edit_THW)
        return dataclasses.replace(reached, latent_BCTHW=merged_BCTHW)

    return run_steps(run.solver, state, predict, end=plan.boundaries.k2, correct=merge, should_stop=run.should_stop)


def _denoise_dense(run: _Run, state: SolverState, cache: TeaCacheRun | None) -> Iterator[SolverState]:
    """Run the steps that are left in full."""

    def predict(latent_BCTHW: Tensor, timestep: Tensor) -> Tensor:
        conditioned = run.conditioning.at(timestep)
        if cache is not None:
            return cache.predict(latent_BCTHW, timestep, conditioned=conditioned)
        return predict_velocity(
            run.model,
            latent_BCTHW,
            timestep,
            run.embedding,
            run.negative,
            run.spec.guidance_scale,
            conditioned=conditioned,
        )

    return run_steps(run.solver, state, predict, should_stop=run.should_stop)


def _cached_steps(run: _Run, config: TeaCacheConfig, *, first_step: int) -> TeaCacheRun | None:
    if first_step == run.spec.num_steps:
        return None
    return TeaCacheRun(
        run.model,
        config,
        run.embedding,
        run.negative,
        run.spec.guidance_scale,
        timesteps_N=run.solver.timesteps,
        first_step=first_step,
    )


class _Clock:
    """Wall time between laps, with the device's work done."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = time.perf_counter()

    def lap(self) -> float:
        """Give the seconds since the last lap, or the start."""
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        before, self._last = self._last, time.perf_counter()
        return self._last - before
