"""The causal forward chunk by chunk is the dense one under a block-causal mask, at the positions it is told."""

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
from diffusers import WanTransformer3DModel
from torch import Tensor

from reprise.wan.causal import ChunkPrediction, causal_forward, encode_prompt_kv, predict_chunk, rotary_at
from reprise.wan.kv import ChunkKV, PromptKV, concat_kv
from reprise.wan.model import WanModel
from tests.unit.reprise.regions import PATCHES, latent_of, transformer

CHUNK, NUM_FRAMES, HEIGHT, WIDTH = 3, 9, 4, 6
CHUNKS = [range(first, first + CHUNK) for first in range(0, NUM_FRAMES, CHUNK)]
STEPS = torch.tensor([900.25, 500.5, 100.75])
"""The timestep of each chunk, far from each other."""
SUMS = 2e-5
"""Equal sums in another order, in float32."""


@pytest.fixture(scope="module", params=PATCHES)
def net(request: pytest.FixtureRequest) -> Any:
    return transformer(PATCHES[request.param])


def clip(seed: int = 1, num_frames: int = NUM_FRAMES, batch: int = 1) -> Tensor:
    return latent_of(seed, batch, (num_frames, HEIGHT, WIDTH))


def states(seed: int = 5, batch: int = 1) -> Tensor:
    return torch.randn(batch, 7, 32, generator=torch.Generator().manual_seed(seed))


def frame_tokens(net: Any) -> int:
    height, width = (int(side) for side in net.config.patch_size[1:])
    return (HEIGHT // height) * (WIDTH // width)


def block_causal(num_frames: int = NUM_FRAMES) -> Tensor:
    """Which frame sees which: those of its own chunk and of the chunks before."""
    chunk_T = torch.arange(num_frames) // CHUNK
    return chunk_T[:, None] >= chunk_T[None]


def dense_masked(net: Any, latent_BCTHW: Tensor, steps_BT: Tensor, states_BLD: Tensor, sees_TT: Tensor) -> Tensor:
    """The reference: the model's own forward over all frames, with a timestep for each token and a mask."""
    tokens = frame_tokens(net)
    mask_11SS = sees_TT.repeat_interleave(tokens, 0).repeat_interleave(tokens, 1)[None, None]
    hooks = [
        block.attn1.register_forward_pre_hook(lambda _, args: (args[0], args[1], mask_11SS, args[3]))
        for block in net.blocks
    ]
    try:
        velocity: Tensor = net(latent_BCTHW, steps_BT.repeat_interleave(tokens, 1), states_BLD, return_dict=False)[0]
    finally:
        for hook in hooks:
            hook.remove()
    return velocity


def chunk_by_chunk(
    net: Any, latent_BCTHW: Tensor, prompt: PromptKV, steps: Tensor = STEPS
) -> Iterator[tuple[Tensor, ChunkKV]]:
    """Yield each chunk's result, with all earlier chunks' KV handed in as their own forwards published it."""
    history: list[ChunkKV] = []
    for chunk, step in zip(CHUNKS, steps, strict=True):
        batch = latent_BCTHW.shape[0]
        velocity, published = causal_forward(
            net, latent_BCTHW[:, :, chunk], step.expand(batch), prompt, positions=chunk, context=history
        )
        history.append(published)
        yield velocity, published


@pytest.mark.parametrize("batch", [1, 2])
def test_chunks_with_full_history_are_the_block_causal_dense_forward(net: Any, batch: int) -> None:
    latent, text = clip(batch=batch), states(batch=batch)
    found = torch.cat([velocity for velocity, _ in chunk_by_chunk(net, latent, encode_prompt_kv(net, text))], 2)
    steps_BT = STEPS.repeat_interleave(CHUNK).expand(batch, -1)
    torch.testing.assert_close(found, dense_masked(net, latent, steps_BT, text, block_causal()), rtol=0, atol=SUMS)
    without_mask = dense_masked(net, latent, steps_BT, text, torch.ones(NUM_FRAMES, NUM_FRAMES, dtype=torch.bool))
    assert (found - without_mask).abs().max() > 0.01  # what the mask hides would have made a difference


def test_a_clean_history_is_the_dense_forward_with_clean_frames_before(net: Any) -> None:
    """Self-Forcing's cache: earlier chunks at timestep 0, the last one noisy."""
    latent, text = clip(), states()
    steps = torch.tensor([0.0, 0.0, 700.0])
    *_, (found, _) = chunk_by_chunk(net, latent, encode_prompt_kv(net, text), steps)
    dense = dense_masked(net, latent, steps.repeat_interleave(CHUNK)[None], text, block_causal())
    torch.testing.assert_close(found, dense[:, :, -CHUNK:], rtol=0, atol=SUMS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_chunk_without_history_is_the_dense_forward_to_the_bit(net: Any, dtype: torch.dtype) -> None:
    cast = transformer(tuple(net.config.patch_size)).to(dtype)
    latent, text, steps_B = clip(num_frames=CHUNK).to(dtype), states().to(dtype), STEPS[:1]
    found, published = causal_forward(cast, latent, steps_B, encode_prompt_kv(cast, text), positions=range(CHUNK))
    assert torch.equal(found, cast(latent, steps_B, text, return_dict=False)[0])
    assert {layer.key_BSNK.dtype for layer in published.layers} == {dtype}


def test_bfloat16_follows_float32_with_history(net: Any) -> None:
    cast = transformer(tuple(net.config.patch_size)).bfloat16()
    latent, text = clip(), states()
    exact = [velocity for velocity, _ in chunk_by_chunk(net, latent, encode_prompt_kv(net, text))]
    prompt = encode_prompt_kv(cast, text.bfloat16())
    rounded = [velocity for velocity, _ in chunk_by_chunk(cast, latent.bfloat16(), prompt)]
    for one, other in zip(exact, rounded, strict=True):
        error = (one - other.float()).pow(2).mean().sqrt() / one.pow(2).mean().sqrt()
        assert error < 0.1  # 8 bits of mantissa through three layers of sharp attention


def test_the_rotary_turn_of_a_run_is_the_models_own(net: Any) -> None:
    for found, own in zip(rotary_at(net, clip(num_frames=2), (6, 8)), net.rope(clip()), strict=True):
        frames = own.unflatten(1, (NUM_FRAMES, -1))
        assert torch.equal(found, frames[:, [6, 8]].flatten(1, 2))


def test_positions_are_absolute(net: Any) -> None:
    """Frames far from each other, such as a planner's, are the dense forward that sees only those frames."""
    latent, text = clip(), states()
    prompt, step = encode_prompt_kv(net, text), STEPS[:1]
    places = [0, 4, 8]
    found, published = causal_forward(net, latent[:, :, places], step, prompt, positions=places)
    sees = torch.zeros(NUM_FRAMES, NUM_FRAMES, dtype=torch.bool)
    sees[:, places] = True
    dense = dense_masked(net, latent, step.expand(1, NUM_FRAMES), text, sees)
    torch.testing.assert_close(found, dense[:, :, places], rtol=0, atol=SUMS)
    assert published.positions == (0, 4, 8)
    near, _ = causal_forward(net, latent[:, :, places], step, prompt, positions=range(3))
    assert (found - near).abs().max() > 1e-3


def test_only_distances_count_when_chunk_and_history_move_together(net: Any) -> None:
    """Rotary attention: the pair at 0 and 3 gives what the pair at 20 and 23 does, and not what 0 and 23 does."""
    latent, prompt, step = clip(), encode_prompt_kv(net, states()), STEPS[:1]

    def second(first_at: int, second_at: int) -> Tensor:
        places = range(first_at, first_at + CHUNK), range(second_at, second_at + CHUNK)
        _, before = causal_forward(net, latent[:, :, :3], step, prompt, positions=places[0])
        velocity, _ = causal_forward(net, latent[:, :, 3:6], step, prompt, positions=places[1], context=[before])
        return velocity

    torch.testing.assert_close(second(0, 3), second(20, 23), rtol=0, atol=2e-4)  # angles of 23 rather than 3 radians
    assert (second(0, 3) - second(0, 23)).abs().max() > 1e-3


def test_history_of_another_noise_level_makes_a_difference(net: Any) -> None:
    latent, prompt = clip(), encode_prompt_kv(net, states())
    first, second, _ = CHUNKS
    found = []
    for step in (0.0, 900.0):
        _, before = causal_forward(net, latent[:, :, first], torch.tensor([step]), prompt, positions=first)
        velocity, own = causal_forward(
            net, latent[:, :, second], STEPS[1:2], prompt, positions=second, context=[before]
        )
        found.append((velocity, own))
    assert (found[0][0] - found[1][0]).abs().max() > 1e-2
    # The first layer's keys come before any attention; those behind it carry the history on.
    assert torch.equal(found[0][1].layers[0].key_BSNK, found[1][1].layers[0].key_BSNK)
    assert not torch.equal(found[0][1].layers[-1].key_BSNK, found[1][1].layers[-1].key_BSNK)


def test_one_packed_forward_is_the_chunks_one_by_one(net: Any) -> None:
    """What training runs: all chunks at once with per-frame timesteps, after anchors that only some frames see."""
    latent, prompt = clip(), encode_prompt_kv(net, states())
    anchors = clip(seed=2, num_frames=2)
    places = (0, 8)
    _, clean = causal_forward(net, anchors, torch.zeros(1), prompt, positions=places)
    alone: list[tuple[Tensor, ChunkKV]] = []
    for chunk, step in zip(CHUNKS, STEPS, strict=True):  # each sees the chunk before, and the anchors
        context = [clean, *([alone[-1][1]] if alone else [])]
        alone.append(causal_forward(net, latent[:, :, chunk], step[None], prompt, positions=chunk, context=context))
    chunk_T = torch.arange(NUM_FRAMES) // CHUNK
    distance_TT = chunk_T[:, None] - chunk_T[None]
    sees_TU = torch.cat([torch.ones(NUM_FRAMES, 2, dtype=torch.bool), (distance_TT >= 0) & (distance_TT <= 1)], 1)
    packed, published = causal_forward(
        net,
        latent,
        STEPS.repeat_interleave(CHUNK)[None],
        prompt,
        positions=range(NUM_FRAMES),
        context=[clean],
        sees_TU=sees_TU,
    )
    torch.testing.assert_close(packed, torch.cat([velocity for velocity, _ in alone], 2), rtol=0, atol=SUMS)
    joined = concat_kv([own for _, own in alone])
    assert joined.positions == published.positions
    for one, other in zip(joined.layers, published.layers, strict=True):
        torch.testing.assert_close(one.key_BSNK, other.key_BSNK, rtol=0, atol=2e-4)  # keys of norm 2 and more
        torch.testing.assert_close(one.value_BSNK, other.value_BSNK, rtol=0, atol=SUMS)


def test_joined_history_is_that_handed_in_apart(net: Any) -> None:
    latent, prompt = clip(), encode_prompt_kv(net, states())
    *history, _ = [own for _, own in chunk_by_chunk(net, latent, prompt)]
    arguments = net, latent[:, :, -CHUNK:], STEPS[2:], prompt
    apart, _ = causal_forward(*arguments, positions=CHUNKS[2], context=history)
    joined, _ = causal_forward(*arguments, positions=CHUNKS[2], context=[concat_kv(history)])
    assert torch.equal(apart, joined)


def test_gradients_reach_what_published_the_history(net: Any) -> None:
    latent, prompt = clip(), encode_prompt_kv(net, states())
    earlier = latent[:, :, :CHUNK].clone().requires_grad_()
    _, before = causal_forward(net, earlier, STEPS[:1], prompt, positions=CHUNKS[0])
    for context, is_reached in ((before, True), (before.detach(), False)):
        velocity, _ = causal_forward(
            net, latent[:, :, CHUNKS[1]], STEPS[1:2], prompt, positions=CHUNKS[1], context=[context]
        )
        assert velocity.requires_grad is is_reached
    velocity, _ = causal_forward(
        net, latent[:, :, CHUNKS[1]], STEPS[1:2], prompt, positions=CHUNKS[1], context=[before]
    )
    (gradient,) = torch.autograd.grad(velocity.square().sum(), earlier)
    assert gradient.abs().max() > 0


def test_bytes_are_counted_right_and_nothing_more_is_held(net: Any) -> None:
    tokens, layers, width = CHUNK * frame_tokens(net), 3, 24
    prompt = encode_prompt_kv(net, states())
    _, published = causal_forward(net, clip(num_frames=CHUNK), STEPS[:1], prompt, positions=range(CHUNK))
    assert published.num_bytes == layers * 2 * tokens * width * 4
    assert prompt.num_bytes == layers * 2 * 7 * width * 4
    held = {part.untyped_storage() for layer in published.layers for part in (layer.key_BSNK, layer.value_BSNK)}
    assert sum(storage.nbytes() for storage in held) == published.num_bytes
    assert concat_kv([published, published]).num_bytes == 2 * published.num_bytes
    assert published.layers[0].key_BSNK.shape == (1, tokens, 2, 12)


def test_kv_moves_between_devices(net: Any) -> None:
    prompt = encode_prompt_kv(net, states())
    _, published = causal_forward(net, clip(num_frames=CHUNK), STEPS[:1], prompt, positions=(3, 4, 5))
    away = published.to("meta")
    assert {part.device.type for layer in away.layers for part in (layer.key_BSNK, layer.value_BSNK)} == {"meta"}
    assert (away.positions, away.num_bytes) == (published.positions, published.num_bytes)
    assert published.to("cpu").layers[0].key_BSNK is published.layers[0].key_BSNK


def as_model(net: Any) -> WanModel:
    """Only what `predict_chunk` reads is there."""
    parts: dict[str, Any] = dict.fromkeys(field.name for field in dataclasses.fields(WanModel))
    return WanModel(**{**parts, "transformer": net, "device": torch.device("cpu")})


def guided(net: Any, prompts: Sequence[PromptKV], latent: Tensor, scale: float) -> Iterator[ChunkPrediction]:
    """Yield the chunks of a run that keeps one bank for each pass."""
    banks: list[list[ChunkKV]] = [[] for _ in prompts]
    for chunk, step in zip(CHUNKS, STEPS, strict=True):
        made = predict_chunk(
            as_model(net), latent[:, :, chunk], step, prompts, banks, positions=chunk, guidance_scale=scale
        )
        for bank, own in zip(banks, made.published, strict=True):
            bank.append(own)
        yield made


def test_guidance_keeps_two_banks(net: Any) -> None:
    latent, prompts = clip(), [encode_prompt_kv(net, states(seed)) for seed in (5, 6)]
    found = list(guided(net, prompts, latent, 5.0))
    alone = [list(chunk_by_chunk(net, latent, prompt)) for prompt in prompts]
    for index, made in enumerate(found):
        (conditional, kv), (unconditional, negative_kv) = alone[0][index], alone[1][index]
        assert torch.equal(made.velocity_BCTHW, unconditional + 5.0 * (conditional - unconditional))
        for own, expected in zip(made.published, (kv, negative_kv), strict=True):
            assert torch.equal(own.layers[-1].value_BSNK, expected.layers[-1].value_BSNK)
    assert not torch.equal(found[0].published[0].layers[-1].key_BSNK, found[0].published[1].layers[-1].key_BSNK)


def test_interleaved_runs_do_not_disturb_each_other(net: Any) -> None:
    runs = [(clip(seed), [encode_prompt_kv(net, states(seed))]) for seed in (1, 2)]
    alone = [[made.velocity_BCTHW for made in guided(net, prompts, latent, 1.0)] for latent, prompts in runs]
    turns = zip(*(guided(net, prompts, latent, 1.0) for latent, prompts in runs), strict=True)
    for index, both in enumerate(turns):
        for run, made in enumerate(both):
            assert torch.equal(made.velocity_BCTHW, alone[run][index])


def test_a_forward_does_not_change_what_it_was_handed(net: Any) -> None:
    latent, prompt = clip(), encode_prompt_kv(net, states())
    (_, first), *_ = chunk_by_chunk(net, latent, prompt)
    kept = [layer.key_BSNK.clone() for layer in first.layers]
    causal_forward(net, latent[:, :, CHUNKS[1]], STEPS[1:2], prompt, positions=CHUNKS[1], context=[first])
    assert all(torch.equal(layer.key_BSNK, was) for layer, was in zip(first.layers, kept, strict=True))


def test_what_would_give_nonsense_is_refused(net: Any) -> None:
    prompt, latent, step = encode_prompt_kv(net, states()), clip(num_frames=CHUNK), STEPS[:1]
    limit = net.rope.max_seq_len
    for positions in ((0, 1), (-1, 0, 1), (limit - 2, limit - 1, limit)):
        with pytest.raises(ValueError, match="expected 3 positions from 0 to under 32"):
            causal_forward(net, latent, step, prompt, positions=positions)
    causal_forward(net, latent, step, prompt, positions=range(limit - 3, limit))
    _, larger = causal_forward(net, latent_of(1, 1, (CHUNK, 8, 8)), step, prompt, positions=range(CHUNK))
    with pytest.raises(ValueError, match="another model or another size"):
        causal_forward(net, latent, step, prompt, positions=(3, 4, 5), context=[larger])
    _, own = causal_forward(net, latent, step, prompt, positions=range(CHUNK))
    fewer = ChunkKV(own.layers[:2], own.positions)
    with pytest.raises(ValueError, match="got 2 layers"):
        causal_forward(net, latent, step, prompt, positions=(3, 4, 5), context=[fewer])
    with pytest.raises(ValueError, match="makes 2 passes, got 1 prompts"):
        predict_chunk(as_model(net), latent, STEPS[0], [prompt], [[]], positions=range(CHUNK), guidance_scale=2.0)
    with pytest.raises(ValueError, match="at least one forward"):
        concat_kv([])


def small(**changes: Any) -> Any:
    settings: dict[str, Any] = {
        "patch_size": (1, 1, 1),
        "num_attention_heads": 2,
        "attention_head_dim": 12,
        "text_dim": 32,
        "freq_dim": 32,
        "ffn_dim": 32,
        "num_layers": 1,
        "rope_max_seq_len": 32,
    }
    return WanTransformer3DModel(**{**settings, **changes}).eval()


def test_other_kinds_of_transformer_are_refused() -> None:
    with pytest.raises(ValueError, match="text-to-video transformer"):
        encode_prompt_kv(small(image_dim=8, added_kv_proj_dim=24), states())
    net = small(patch_size=(2, 1, 1))
    with pytest.raises(ValueError, match="patches of one latent frame"):
        causal_forward(net, clip(num_frames=2), STEPS[:1], encode_prompt_kv(net, states()), positions=range(2))
