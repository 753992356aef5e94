"""TeaCache at work: run the block stack, or add the residual that the last run of it left (Liu et al., CVPR 2025).

The distances that decide are those between projections of the timestep, from which every block takes its shifts,
scales and gates; they are known before the run, so no step waits for the device. Knows nothing about other requests,
prompts or stores.

Shape letters: B batch, C latent channels, T latent frames, H, W latent grid, N denoising steps, S latent tokens,
L text tokens, D model width (of states_BLD: text width).
"""

import contextlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from reprise.teacache import TeaCacheConfig, plan_computed
from reprise.wan import blocks
from reprise.wan.model import Conditioned, PromptEmbedding, WanModel


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
    def predict(
        self, latent_BCTHW: Tensor, timestep: Tensor, *, conditioned: Conditioned = contextlib.nullcontext
    ) -> Tensor:
        """Give the velocity of the next step in float32, as `reprise.wan.model.predict_velocity` does.

        Raises ValueError unless the steps come in order, each once: the residuals belong to the step before.
        """
        step = self._first_step + self._num_done
        if step >= len(self._timesteps) or float(timestep) != self._timesteps[step]:
            expected = self._timesteps[step] if step < len(self._timesteps) else "no step more"
            raise ValueError(f"expected timestep {expected} of step {step}, got {float(timestep)}: one run, in order")
        with conditioned():
            velocities = [self._forward(0, latent_BCTHW, timestep)]
        velocities += [self._forward(index, latent_BCTHW, timestep) for index in range(1, len(self._passes))]
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
    return blocks.embed_timesteps(transformer, steps_B[:, None], states_BLD.dtype)[:, 0]


def project_out(transformer: Any, tokens_BSD: Tensor, embedding_BD: Tensor, *, like_BCTHW: Tensor) -> Tensor:
    """Turn tokens into a velocity (B, C, T, H, W) on the grid of `like_BCTHW`: the model's last norm and projection."""
    values_BSP = blocks.project_out(transformer, tokens_BSD, embedding_BD[:, None])
    return blocks.unpatchify(values_BSP, like_BCTHW, transformer.config.patch_size)
