"""The parts of a Wan transformer that forwards written by hand share.

Attention over given heads, the rest of a block, the timestep and the way out. Each does what diffusers'
WanTransformer3DModel does, rounding included. Knows nothing about which tokens go in.

Shape letters: B batch, C latent channels, T latent frames, H, W latent grid, F timesteps, S tokens of the whole grid,
E or Q rows that are computed, R rows that are attended to, N heads, K head width, D width, P values of one token's
patch. 1 at the place of E or Q: one value for all rows.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch import Tensor

from reprise.chorus.masks import Grid

Rotary = tuple[Tensor, Tensor]
"""Cosines and sines, both (1, S, 1, K)."""


def embed_timesteps(transformer: Any, steps_BF: Tensor, dtype: torch.dtype) -> Tensor:
    """Give only the timesteps' embedding (B, F, D), in `dtype`, of all that `condition_embedder` makes."""
    embedder = transformer.condition_embedder
    frequencies = embedder.timesteps_proj(steps_BF.flatten()).unflatten(0, (-1, steps_BF.shape[1]))
    frequencies = frequencies.to(next(embedder.time_embedder.parameters()).dtype)
    embedding_BFD: Tensor = embedder.time_embedder(frequencies).to(dtype)
    return embedding_BFD


def project_timesteps(transformer: Any, embedding_BFD: Tensor) -> Tensor:
    """Turn the timesteps' embedding into the six modulations (B, F, 6, D) that every block takes."""
    embedder = transformer.condition_embedder
    modulation_BF6D: Tensor = embedder.time_proj(embedder.act_fn(embedding_BFD)).unflatten(2, (6, -1))
    return modulation_BF6D


def split_heads(attention: Any, rows_BQD: Tensor) -> Tensor:
    """Give (B, Q, N, K)."""
    return rows_BQD.view(*rows_BQD.shape[:2], attention.heads, -1)


def attend(attention: Any, query_BQNK: Tensor, key_BRNK: Tensor, value_BRNK: Tensor) -> Tensor:
    """Attend with the kernel that the model is set to, and project: (B, Q, D)."""
    return project_attended(attention, attend_heads(attention, query_BQNK, key_BRNK, value_BRNK))


def attend_heads(attention: Any, query_BQNK: Tensor, key_BRNK: Tensor, value_BRNK: Tensor) -> Tensor:
    """Attend with the kernel that the model is set to: (B, Q, N, K)."""
    backend = attention.processor._attention_backend
    attended_BQNK: Tensor = dispatch_attention_fn(query_BQNK, key_BRNK, value_BRNK, backend=backend)
    return attended_BQNK.type_as(query_BQNK)


def project_attended(attention: Any, attended_BQNK: Tensor) -> Tensor:
    """Join the heads: (B, Q, D)."""
    attended_BQD: Tensor = attended_BQNK.flatten(2, 3)
    for layer in attention.to_out:
        attended_BQD = layer(attended_BQD)
    return attended_BQD


def finish_block(
    block: Any,
    tokens_BQD: Tensor,
    attended_BQD: Tensor,
    gates_BQD: Sequence[Tensor],
    attend_to_text: Callable[[Tensor], Tensor],
) -> Tensor:
    """Run what follows the self-attention in a WanTransformerBlock; `gates_BQD` are its last four modulations."""
    gate_BQD, ffn_shift_BQD, ffn_scale_BQD, ffn_gate_BQD = gates_BQD
    tokens_BQD = (tokens_BQD.float() + attended_BQD * gate_BQD).type_as(tokens_BQD)
    normed_BQD = block.norm2(tokens_BQD.float()).type_as(tokens_BQD)
    tokens_BQD = tokens_BQD + attend_to_text(normed_BQD)
    normed_BQD = (block.norm3(tokens_BQD.float()) * (1 + ffn_scale_BQD) + ffn_shift_BQD).type_as(tokens_BQD)
    result_BQD: Tensor = (tokens_BQD.float() + block.ffn(normed_BQD).float() * ffn_gate_BQD).type_as(tokens_BQD)
    return result_BQD


def rotate(heads: Tensor, rotary: Rotary) -> Tensor:
    """Turn each pair of head channels by the angle of its row; Wan keeps the two channels of a pair side by side."""
    even, odd = heads[..., 0::2], heads[..., 1::2]
    cos, sin = rotary[0][..., 0::2], rotary[1][..., 1::2]
    return torch.stack((even * cos - odd * sin, even * sin + odd * cos), -1).flatten(-2).type_as(heads)


def project_out(transformer: Any, tokens_BED: Tensor, embedding_BED: Tensor) -> Tensor:
    """Run the model's last norm and projection: the values (B, E, P) of each token's patch."""
    shift_BED, scale_BED = (transformer.scale_shift_table.unsqueeze(0) + embedding_BED.unsqueeze(2)).unbind(2)
    normed_BED = (transformer.norm_out(tokens_BED.float()) * (1 + scale_BED) + shift_BED).type_as(tokens_BED)
    values_BEP: Tensor = transformer.proj_out(normed_BED)
    return values_BEP


def unpatchify(values_BSP: Tensor, latent_BCTHW: Tensor, patch: Grid) -> Tensor:
    """Lay out each token's values on its cells of the latent grid."""
    B, _, T, H, W = latent_BCTHW.shape
    p, q, r = patch
    cells = values_BSP.reshape(B, T // p, H // q, W // r, p, q, r, -1)
    return cells.permute(0, 7, 1, 4, 2, 5, 3, 6).flatten(6, 7).flatten(4, 5).flatten(2, 3)
