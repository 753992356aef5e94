"""TeaCache: skip the block stack at steps where the timestep hardly changes it (Liu et al., CVPR 2025), for Wan.

An accumulated relative L1 distance, rescaled by a polynomial, decides whether a step runs the blocks or adds the
residual of the last step that did. For Wan the authors measure the timestep's projection, from which every block takes
its shifts, scales and gates. It depends on the schedule alone, so a run's decisions are known before it begins and no
step waits for the device. Knows nothing about other requests, prompts or stores.

Shape letters: B batch, C latent channels, T latent frames, H, W latent grid, N denoising steps, S latent tokens,
L text tokens, D model width (of states_BLD: text width).
"""

import dataclasses
import json
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from reprise.wan import region
from reprise.wan.model import PromptEmbedding, WanModel


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TeaCacheConfig:
    """When a step may be skipped."""

    threshold: float
    """Accumulated rescaled distance from which a step is computed; 0 computes all, infinity only the forced ones."""
    coefficients: tuple[float, ...]
    """Of the polynomial that turns a distance of timestep projections into one of outputs, highest power first."""
    num_first_steps: int = 1
    """Steps `[0, num_first_steps)` of the schedule are always computed."""
    num_last_steps: int = 1
    """So are the last ones."""

    def __post_init__(self) -> None:
        if not self.threshold >= 0:  # also refuses NaN
            raise ValueError(f"threshold must be 0 or more, got {self.threshold}")
        if not self.coefficients or not all(math.isfinite(value) for value in self.coefficients):
            raise ValueError(f"expected one finite coefficient or more, got {self.coefficients}")
        if self.num_first_steps < 1 or self.num_last_steps < 1:
            raise ValueError(
                "the first and the last step are always computed: expected num_first_steps and num_last_steps of 1 or "
                f"more, got {self.num_first_steps} and {self.num_last_steps}"
            )


def wan21_t2v_1_3b_teacache() -> TeaCacheConfig:
    """Give the published setting of Wan2.1-T2V-1.3B.

    Figures from the authors' repository ali-vilab/TeaCache, TeaCache4Wan2.1/teacache_generate.py and its README: the
    variant with retention steps, which measures the timestep projection; there the last step is not forced.
    """
    return TeaCacheConfig(
        threshold=0.1,
        coefficients=(-5.21862437e04, 9.23041404e03, -5.28275948e02, 1.36987616e01, -4.99875664e-02),
        num_first_steps=5,
    )


def wan21_t2v_14b_teacache() -> TeaCacheConfig:
    """Give the published setting of Wan2.1-T2V-14B, at the slower of its two thresholds (0.1 and 0.2); same source."""
    return TeaCacheConfig(
        threshold=0.1,
        coefficients=(-3.03318725e05, 4.90537029e04, -2.65530556e03, 5.87365115e01, -3.15583525e-01),
        num_first_steps=5,
    )


def teacache_from_json(text: str) -> TeaCacheConfig:
    """Read the setting that `training.teacache_fit` stored with a model's weights."""
    table = json.loads(text)["teacache"]
    return TeaCacheConfig(**{**table, "coefficients": tuple(table["coefficients"])})


@torch.no_grad()
def projection_distances(transformer: Any, timesteps_N: Tensor) -> list[float]:
    """Give the N - 1 relative L1 distances between the projections of successive timesteps, each to the earlier one.

    The projection is linear, so the change is the projection of the change: subtracting two half-precision
    projections, which differ by a few percent, would leave mostly rounding.
    """
    embedder = transformer.condition_embedder
    frequencies_NF = embedder.timesteps_proj(timesteps_N.to(transformer.device))
    embedding_ND = embedder.time_embedder(frequencies_NF.to(next(embedder.time_embedder.parameters()).dtype))
    active_ND = embedder.act_fn(embedding_ND.float())
    weight = embedder.time_proj.weight
    projection_ND = embedder.time_proj(active_ND.to(weight.dtype)).float()
    change_ND = F.linear(active_ND.diff(dim=0).to(weight.dtype), weight).float()
    distances: list[float] = (change_ND.abs().mean(1) / projection_ND[:-1].abs().mean(1)).tolist()
    return distances


def plan_computed(distances: Sequence[float], config: TeaCacheConfig, *, first_step: int = 0) -> tuple[bool, ...]:
    """Decide for every step of `[first_step, N)` whether its blocks run; N is one more than there are distances.

    A run that starts at `first_step` has nothing to reuse there, so that step is computed too.
    """
    num_steps = len(distances) + 1
    if not 0 <= first_step <= num_steps:
        raise ValueError(f"expected first_step in 0..{num_steps}, got {first_step}")
    plan: list[bool] = []
    accumulated = 0.0
    for step in range(first_step, num_steps):
        is_last = step >= num_steps - config.num_last_steps
        is_forced = step == first_step or step < config.num_first_steps or is_last
        if not is_forced:
            accumulated += rescale(distances[step - 1], config.coefficients)
        is_computed = is_forced or accumulated >= config.threshold
        accumulated = 0.0 if is_computed else accumulated
        plan.append(is_computed)
    return tuple(plan)


def rescale(distance: float, coefficients: Sequence[float]) -> float:
    """Evaluate the polynomial, never under 0.

    The published ones fall below zero outside the distances they were fitted to, where a step would pay back what
    others have accumulated, and threshold 0 would skip; a distance cannot be negative.
    """
    value = 0.0
    for coefficient in coefficients:
        value = value * distance + coefficient
    return max(0.0, value)


class TeaCacheRun:
    """One request's state: what is planned, how far it is, and a residual for each of its two guidance passes.

    `predict` goes into `reprise.sampling.run_steps`. Nothing lies in the model or outside this object: a request
    that is dropped leaves nothing behind, and another's steps are refused.
    """

    def __init__(
        self,
        model: WanModel,
        config: TeaCacheConfig,
        embedding: PromptEmbedding,
        negative: PromptEmbedding | None,
        guidance_scale: float,
        *,
        timesteps_N: Tensor,
        first_step: int = 0,
    ) -> None:
        """Plan the run; `timesteps_N` is the solver's, `first_step` the step the run starts at (K1, or K2)."""
        if guidance_scale > 1 and negative is None:
            raise ValueError(f"guidance_scale={guidance_scale} needs an embedding of the negative prompt, got None")
        self._model = model
        self._passes = [embedding] if negative is None or guidance_scale <= 1 else [embedding, negative]
        self._guidance_scale = guidance_scale
        self._timesteps = timesteps_N.tolist()
        self._first_step = first_step
        distances = projection_distances(model.transformer, timesteps_N)
        self.is_computed = plan_computed(distances, config, first_step=first_step)
        """Of each step from `first_step` on, whether its blocks run."""
        self._num_done = 0
        self._residuals_BSD: list[Tensor | None] = [None] * len(self._passes)

    @property
    def num_forwards_skipped(self) -> int:
        """Count the forwards of the steps so far that reused a residual; a guided step makes two forwards."""
        return len(self._passes) * self.is_computed[: self._num_done].count(False)

    @torch.no_grad()
    def predict(self, latent_BCTHW: Tensor, timestep: Tensor) -> Tensor:
        """Give the velocity of the next step in float32, as `reprise.wan.model.predict_velocity` does.

        Raises ValueError unless the steps come in order, each once: the residuals belong to the step before.
        """
        step = self._first_step + self._num_done
        if step >= len(self._timesteps) or float(timestep) != self._timesteps[step]:
            expected = self._timesteps[step] if step < len(self._timesteps) else "no step more"
            raise ValueError(f"expected timestep {expected} of step {step}, got {float(timestep)}: one run, in order")
        velocities = [self._forward(index, latent_BCTHW, timestep) for index in range(len(self._passes))]
        self._num_done += 1
        if len(velocities) == 1:
            return velocities[0]
        guided_BCTHW, unguided_BCTHW = velocities
        return unguided_BCTHW + self._guidance_scale * (guided_BCTHW - unguided_BCTHW)

    def _forward(self, index: int, latent_BCTHW: Tensor, timestep: Tensor) -> Tensor:
        """Run one pass of the transformer, in full or with the residual that this pass kept."""
        transformer, states_BLD = self._model.transformer, self._passes[index].states_BLD
        latent_BCTHW = latent_BCTHW.to(transformer.dtype)
        steps_B = timestep.to(self._model.device).expand(latent_BCTHW.shape[0])
        tokens_BSD = transformer.patch_embedding(latent_BCTHW).flatten(2).transpose(1, 2).contiguous()
        if self.is_computed[self._num_done]:
            embedding_BD, result_BSD = run_blocks(transformer, latent_BCTHW, tokens_BSD, steps_B, states_BLD)
            following = self.is_computed[self._num_done + 1 :]
            is_reused = bool(following) and not following[0]  # else it would only take memory
            self._residuals_BSD[index] = result_BSD - tokens_BSD if is_reused else None
        else:
            embedding_BD = embed_timestep(transformer, steps_B, states_BLD)
            residual_BSD = self._residuals_BSD[index]
            assert residual_BSD is not None, "a step is skipped only after one that was computed"
            result_BSD = tokens_BSD + residual_BSD
        return project_out(transformer, result_BSD, embedding_BD, like_BCTHW=latent_BCTHW).float()


def run_blocks(
    transformer: Any, latent_BCTHW: Tensor, tokens_BSD: Tensor, steps_B: Tensor, states_BLD: Tensor
) -> tuple[Tensor, Tensor]:
    """Run the block stack as WanTransformer3DModel does; give the timestep's embedding and the tokens after it."""
    embedder = transformer.condition_embedder
    embedding_BD, projection_BE, text_BLD, _ = embedder(steps_B, states_BLD)
    modulation_B6D = projection_BE.unflatten(1, (6, -1))
    rotary = transformer.rope(latent_BCTHW)
    for block in transformer.blocks:
        tokens_BSD = block(tokens_BSD, text_BLD, modulation_B6D, rotary)
    return embedding_BD, tokens_BSD


def embed_timestep(transformer: Any, steps_B: Tensor, states_BLD: Tensor) -> Tensor:
    """Give only the timestep's embedding, of all that `condition_embedder` makes."""
    embedder = transformer.condition_embedder
    frequencies_BF = embedder.timesteps_proj(steps_B).to(next(embedder.time_embedder.parameters()).dtype)
    embedding_BD: Tensor = embedder.time_embedder(frequencies_BF).type_as(states_BLD)
    return embedding_BD


def project_out(transformer: Any, tokens_BSD: Tensor, embedding_BD: Tensor, *, like_BCTHW: Tensor) -> Tensor:
    """Turn tokens into a velocity (B, C, T, H, W) on the grid of `like_BCTHW`: the model's last norm and projection."""
    values_BSP = region.project_out(transformer, tokens_BSD, embedding_BD[:, None])
    return region.unpatchify(values_BSP, like_BCTHW, transformer.config.patch_size)
