"""The causal forward of a Wan transformer: one chunk of latent frames attends to itself and to KV handed in.

The model's own blocks run on the tokens of the chunk; each self-attention also reads the keys and values that other
forwards left (FlashForward, section 3.1). The chunk's own are given back with the velocity: no forward runs to make
them. Knows nothing about stages, chunks' order, anchors, schedules or roles.

Shape letters: B batch, C latent channels, T latent frames of the chunk, U latent frames attended to, H, W latent grid,
S tokens of the chunk, L text tokens, D width (of states_BLD: text width), N heads,
K head width, F timesteps. 1 at the place of F: one value for all frames.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from reprise.wan.blocks import (
    Rotary,
    attend,
    embed_timesteps,
    finish_block,
    project_out,
    project_timesteps,
    rotate,
    split_heads,
    unpatchify,
)
from reprise.wan.kv import ChunkKV, LayerKV, PromptKV, join_layer
from reprise.wan.model import WanModel
from reprise.wan.packed import FrameGroup, attend_in_groups, group_frames


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class ChunkPrediction:
    """What one step of a chunk gives."""

    velocity_BCTHW: Tensor
    """In float32, with guidance applied."""
    published: tuple[ChunkKV, ...]
    """The chunk's own KV, of the forward of the prompt and then of that of the negative prompt, if guided."""


def encode_prompt_kv(transformer: Any, states_BLD: Tensor) -> PromptKV:
    """Project an encoded prompt for the cross-attentions, once for all forwards that read it.

    Run it under the same role adapter as those forwards. Raises ValueError for a transformer that also reads an image.
    """
    if transformer.config.added_kv_proj_dim is not None:
        raise ValueError("the causal forward reads text alone: give a text-to-video transformer, this one reads images")
    text_BLD = transformer.condition_embedder.text_embedder(states_BLD)
    layers = []
    for block in transformer.blocks:
        attention = block.attn2
        key_BLNK = split_heads(attention, attention.norm_k(attention.to_k(text_BLD)))
        layers.append(LayerKV(key_BLNK, split_heads(attention, attention.to_v(text_BLD))))
    return PromptKV(tuple(layers))


@torch.no_grad()
def predict_chunk(
    model: WanModel,
    latent_BCTHW: Tensor,
    timestep: Tensor,
    prompts: Sequence[PromptKV],
    contexts: Sequence[Sequence[ChunkKV]],
    *,
    positions: Sequence[int],
    guidance_scale: float = 1.0,
) -> ChunkPrediction:
    """Run the causal forward, twice when guided, and give the velocity in float32.

    `timestep` is a float32 scalar. `prompts` holds the prompt, and the negative prompt when `guidance_scale` is above
    1; `contexts` what each of the two attends to besides the chunk: the two passes never share KV.
    Raises ValueError when the counts do not fit the guidance.
    """
    num_passes = 2 if guidance_scale > 1 else 1
    if len(prompts) != num_passes or len(contexts) != num_passes:
        raise ValueError(
            f"{guidance_scale=} makes {num_passes} passes, got {len(prompts)} prompts and {len(contexts)} contexts"
        )
    latent_BCTHW = latent_BCTHW.to(model.transformer.dtype)
    steps_B = timestep.to(model.device).expand(latent_BCTHW.shape[0])
    results = [
        causal_forward(model.transformer, latent_BCTHW, steps_B, prompt, positions=positions, context=context)
        for prompt, context in zip(prompts, contexts, strict=True)
    ]
    velocity_BCTHW = results[0][0].float()
    if num_passes == 2:
        unguided_BCTHW = results[1][0].float()
        velocity_BCTHW = unguided_BCTHW + guidance_scale * (velocity_BCTHW - unguided_BCTHW)
    return ChunkPrediction(velocity_BCTHW, tuple(published for _, published in results))


def causal_forward(
    transformer: Any,
    latent_BCTHW: Tensor,
    steps: Tensor,
    prompt: PromptKV,
    *,
    positions: Sequence[int],
    context: Sequence[ChunkKV] = (),
    sees_TU: Tensor | None = None,
) -> tuple[Tensor, ChunkKV]:
    """Give the velocity (B, C, T, H, W) of a chunk and the KV of this forward; gradients flow through both.

    `positions` are the absolute latent frames of the chunk, of any distance to each other: 6, 7, 8, or a planner's
    0, 10, 20. `steps` is (B,), or (B, T) where frames differ in noise. Every row of `context` is seen, unless
    `sees_TU` (bool; U = the frames of `context` in its order, then the chunk's own) says which frame sees which: by it
    a whole video goes through at once, as training packs it.
    Without context, at positions from 0 on, it is the dense forward. Hooks on `attn2` modules themselves have no
    effect here, those on their parts have.
    Raises ValueError for positions beyond the rotary table or a context of another grid.
    """
    patch = transformer.config.patch_size
    T, H, W = latent_BCTHW.shape[2:]
    num_frame_tokens = (H // patch[1]) * (W // patch[2])
    _check(transformer, T, num_frame_tokens, positions, context)
    rotary = rotary_at(transformer, latent_BCTHW, positions)
    groups = None if sees_TU is None else group_frames(sees_TU)
    tokens_BSD = transformer.patch_embedding(latent_BCTHW).flatten(2).transpose(1, 2).contiguous()
    steps_BF = steps[:, None] if steps.ndim == 1 else steps
    embedding_BFD = embed_timesteps(transformer, steps_BF, latent_BCTHW.dtype)
    modulation_BF6D = project_timesteps(transformer, embedding_BFD)
    if steps.ndim == 2:  # from one for each frame to one for each token
        embedding_BFD = embedding_BFD.repeat_interleave(num_frame_tokens, 1)
        modulation_BF6D = modulation_BF6D.repeat_interleave(num_frame_tokens, 1)
    published = []
    for index, block in enumerate(transformer.blocks):
        handed_in = [part.layers[index] for part in context]
        tokens_BSD, own = _run_block(
            block, tokens_BSD, modulation_BF6D, rotary, handed_in, prompt.layers[index], groups
        )
        published.append(own)
    values_BSP = project_out(transformer, tokens_BSD, embedding_BFD)
    return unpatchify(values_BSP, latent_BCTHW, patch), ChunkKV(tuple(published), tuple(positions))


def rotary_at(transformer: Any, latent_BCTHW: Tensor, positions: Sequence[int]) -> Rotary:
    """Give the rotary turn of the latent's tokens with its frames at `positions`: the model's own, time exchanged."""
    rope = transformer.rope
    tables = []
    for cells, table in zip(rope(latent_BCTHW[:, :, :1]), (rope.freqs_cos, rope.freqs_sin), strict=True):
        space = cells[0, :, 0, rope.t_dim :]
        # Rows of the table one by one: an index made on the host would make the device wait.
        time = torch.stack([table[position, : rope.t_dim] for position in positions])
        rows = torch.cat([time.repeat_interleave(len(space), 0), space.repeat(len(positions), 1)], 1)
        tables.append(rows[None, :, None])
    return tables[0], tables[1]


def _run_block(
    block: Any,
    tokens_BSD: Tensor,
    modulation_BF6D: Tensor,
    rotary: Rotary,
    handed_in: Sequence[LayerKV],
    text: LayerKV,
    groups: list[FrameGroup] | None,
) -> tuple[Tensor, LayerKV]:
    """Run a WanTransformerBlock with more keys and values than the tokens' own; give those too."""
    modulations = (block.scale_shift_table.unsqueeze(0) + modulation_BF6D.float()).unbind(2)
    shift_BFD, scale_BFD, *gates = modulations
    normed_BSD = (block.norm1(tokens_BSD.float()) * (1 + scale_BFD) + shift_BFD).type_as(tokens_BSD)
    attention = block.attn1
    query_BSNK = rotate(split_heads(attention, attention.norm_q(attention.to_q(normed_BSD))), rotary)
    key_BSNK = rotate(split_heads(attention, attention.norm_k(attention.to_k(normed_BSD))), rotary)
    own = LayerKV(key_BSNK, split_heads(attention, attention.to_v(normed_BSD)))
    seen = join_layer([*handed_in, own])
    if groups is None:
        attended_BSD = attend(attention, query_BSNK, seen.key_BSNK, seen.value_BSNK)
    else:
        num_frames = sum(len(group.frames_G) for group in groups)
        attended_BSD = attend_in_groups(attention, query_BSNK, seen.key_BSNK, seen.value_BSNK, groups, num_frames)

    def attend_to_text(tokens_BSD: Tensor) -> Tensor:
        query_BSNK = split_heads(block.attn2, block.attn2.norm_q(block.attn2.to_q(tokens_BSD)))
        return attend(block.attn2, query_BSNK, text.key_BSNK, text.value_BSNK)

    return finish_block(block, tokens_BSD, attended_BSD, gates, attend_to_text), own


def _check(
    transformer: Any, num_frames: int, num_frame_tokens: int, positions: Sequence[int], context: Sequence[ChunkKV]
) -> None:
    """Refuse what would run and give nonsense."""
    if transformer.config.patch_size[0] != 1:
        raise ValueError(f"expected patches of one latent frame, got patch_size={transformer.config.patch_size}")
    limit = transformer.rope.max_seq_len
    if len(positions) != num_frames or not all(0 <= position < limit for position in positions):
        raise ValueError(f"expected {num_frames} positions from 0 to under {limit}, got {list(positions)}")
    for part in context:
        num_rows, expected = part.layers[0].key_BSNK.shape[1], len(part.positions) * num_frame_tokens
        if num_rows != expected or len(part.layers) != len(transformer.blocks):
            raise ValueError(
                f"expected a context of {len(transformer.blocks)} layers and {expected} tokens at frames "
                f"{part.positions}, got {len(part.layers)} layers and {num_rows} tokens: another model or another size"
            )
