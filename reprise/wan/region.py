"""The region forward of a Wan transformer: only seen tokens go in, only edited ones come out (Chorus, section 3.3.3).

The tokens of the seen region and their rotary positions are gathered, the model's own blocks run on that shorter
sequence, and the last block makes queries for the edited rows alone. No attention mask, so every attention kernel of
diffusers serves. Knows nothing about where regions come from, sources, solvers or jobs.

Shape letters: B batch, C latent channels, T latent frames, H, W latent grid, S tokens of the whole grid, R seen tokens,
E computed rows of the last block, L text tokens, D width, K head width, P values of one token's patch. 1 at the place
of R: one value for all rows.
"""

import contextlib
import dataclasses
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from reprise.chorus.masks import Grid
from reprise.chorus.region import RegionIndex, gather_region, scatter_region
from reprise.wan.blocks import Rotary, attend, finish_block, project_out, rotate, split_heads, unpatchify
from reprise.wan.model import Conditioned, PromptEmbedding, WanModel, predict_velocity

RegionForward = Callable[[Any, Tensor, Tensor, Tensor, RegionIndex], Tensor]
"""Transformer, latent_BCTHW, timesteps (B,) or (B, S), states_BLD and region to velocity_BCTHW."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class RegionTransformer:
    """What `predict_velocity` asks of a transformer, over the weights of another one."""

    transformer: Any
    region: RegionIndex
    forward: RegionForward

    @property
    def dtype(self) -> torch.dtype:
        """Give the dtype that latents are cast to."""
        dtype: torch.dtype = self.transformer.dtype
        return dtype

    @property
    def config(self) -> Any:
        """Give the configuration of the weights."""
        return self.transformer.config

    def __call__(self, latent_BCTHW: Tensor, steps: Tensor, states_BLD: Tensor, *, return_dict: bool) -> tuple[Tensor]:
        """Run the forward on the region; as the transformer does when asked for no dict."""
        assert not return_dict, "predict_velocity asks for a tuple"
        num_tokens = _count_tokens(latent_BCTHW, self.config.patch_size)
        if num_tokens != self.region.num_tokens:
            raise ValueError(f"the region was made for {self.region.num_tokens} tokens, the latent has {num_tokens}")
        return (self.forward(self.transformer, latent_BCTHW, steps, states_BLD, self.region),)


def region_model(model: WanModel, region: RegionIndex, forward: RegionForward) -> WanModel:
    """Give a model whose transformer does only the region, by one of the two forwards below; the weights are shared."""
    return dataclasses.replace(model, transformer=RegionTransformer(model.transformer, region, forward))


def predict_region_velocity(
    model: WanModel,
    latent_BCTHW: Tensor,
    timestep: Tensor,
    embedding: PromptEmbedding,
    negative: PromptEmbedding | None,
    guidance_scale: float,
    region: RegionIndex,
    *,
    first_frame_latent_BC1HW: Tensor | None = None,
    conditioned: Conditioned = contextlib.nullcontext,
) -> Tensor:
    """Give the velocity of the region's edited tokens in float32, and zero elsewhere.

    Takes and does what `predict_velocity` does, at the cost of the region. With every token seen and edited it is the
    same velocity. `region` lies on the model's device and was made for this grid, else ValueError.
    """
    return predict_velocity(
        region_model(model, region, region_forward),
        latent_BCTHW,
        timestep,
        embedding,
        negative,
        guidance_scale,
        first_frame_latent_BC1HW=first_frame_latent_BC1HW,
        conditioned=conditioned,
    )


def region_forward(
    transformer: Any, latent_BCTHW: Tensor, steps: Tensor, states_BLD: Tensor, region: RegionIndex
) -> Tensor:
    """Run the transformer on the seen tokens and give the velocity of the edited ones, zero elsewhere."""
    see_R, edit_E = region.see_R, region.edit_E
    cos, sin = transformer.rope(latent_BCTHW)
    rotary = gather_region(cos, see_R), gather_region(sin, see_R)
    tokens_BRD = gather_region(transformer.patch_embedding(latent_BCTHW).flatten(2).transpose(1, 2), see_R)
    steps_BR = gather_region(steps, see_R) if steps.ndim == 2 else steps[:, None]
    embedding_BRD, projection, text_BLD, _ = transformer.condition_embedder(
        steps_BR.flatten(), states_BLD, timestep_seq_len=steps_BR.shape[1]
    )
    modulation_BR6D: Tensor = projection.unflatten(2, (6, -1))
    *blocks, last = transformer.blocks
    for block in blocks:
        tokens_BRD = block(tokens_BRD, text_BLD, modulation_BR6D, rotary)
    tokens_BED = run_last_block(last, tokens_BRD, text_BLD, modulation_BR6D, rotary, edit_E)
    values_BEP = project_out(transformer, tokens_BED, _rows(embedding_BRD, edit_E))
    written_BSP = scatter_region(values_BEP[:, : region.num_edit], region.written_rows, num_tokens=region.num_tokens)
    return unpatchify(written_BSP, latent_BCTHW, transformer.config.patch_size)


def run_last_block(
    block: Any, tokens_BRD: Tensor, text_BLD: Tensor, modulation_BR6D: Tensor, rotary: Rotary, edit_E: Tensor
) -> Tensor:
    """Run a WanTransformerBlock for the rows `edit_E` alone; all rows are still seen as keys and values.

    No block follows that would read the others.
    """
    parts = (block.scale_shift_table.unsqueeze(0) + modulation_BR6D.float()).unbind(2)
    shift_BRD, scale_BRD, *gates = parts
    normed_BRD = (block.norm1(tokens_BRD.float()) * (1 + scale_BRD) + shift_BRD).type_as(tokens_BRD)
    attended_BED = _self_attend(block.attn1, normed_BRD, rotary, edit_E)
    tokens_BED = gather_region(tokens_BRD, edit_E)
    return finish_block(
        block,
        tokens_BED,
        attended_BED,
        [_rows(part, edit_E) for part in gates],
        lambda normed_BED: block.attn2(normed_BED, text_BLD, None, None),
    )


def _self_attend(attention: Any, tokens_BRD: Tensor, rotary: Rotary, edit_E: Tensor) -> Tensor:
    """Do as WanAttnProcessor does, with queries of some rows only, which its one rotary table cannot express."""
    query = attention.norm_q(attention.to_q(gather_region(tokens_BRD, edit_E)))
    key, value = attention.norm_k(attention.to_k(tokens_BRD)), attention.to_v(tokens_BRD)
    query, key, value = (split_heads(attention, part) for part in (query, key, value))
    cos, sin = rotary
    query = rotate(query, (gather_region(cos, edit_E), gather_region(sin, edit_E)))
    return attend(attention, query, rotate(key, rotary), value)


def _rows(values_BRD: Tensor, edit_E: Tensor) -> Tensor:
    """Take the edited rows, unless one value serves all rows."""
    return values_BRD if values_BRD.shape[1] == 1 else gather_region(values_BRD, edit_E)


def _count_tokens(latent_BCTHW: Tensor, patch: Grid) -> int:
    return latent_BCTHW[0, 0].numel() // (patch[0] * patch[1] * patch[2])


def masked_forward(
    transformer: Any, latent_BCTHW: Tensor, steps: Tensor, states_BLD: Tensor, region: RegionIndex
) -> Tensor:
    """Compute the same as `region_forward` the plain way, and save nothing: its reference, not for serving.

    Every token is computed, a mask hides the unseen ones as keys, and only edited velocities are kept. The mask comes
    by hooks on the shared model, so nothing else may run on it meanwhile.
    """
    is_seen_S = torch.zeros(region.num_tokens, dtype=torch.bool, device=latent_BCTHW.device)
    is_seen_S[region.see_R] = True
    mask_111S = is_seen_S[None, None, None]
    hooks = [
        block.attn1.register_forward_pre_hook(lambda _, args: (args[0], args[1], mask_111S, args[3]))
        for block in transformer.blocks
    ]
    try:
        velocity_BCTHW: Tensor = transformer(latent_BCTHW, steps, states_BLD, return_dict=False)[0]
    finally:
        for hook in hooks:
            hook.remove()
    is_kept_S = torch.zeros_like(is_seen_S)
    is_kept_S[region.written_rows] = True
    patch = transformer.config.patch_size
    is_kept_BSP = is_kept_S[None, :, None].expand(len(latent_BCTHW), -1, patch[0] * patch[1] * patch[2])
    return velocity_BCTHW * unpatchify(is_kept_BSP, latent_BCTHW, patch)
