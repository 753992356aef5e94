"""The region forward is the dense one with a mask, computes only the region, and is the plain one on a full mask."""

import dataclasses
import pathlib
from typing import Any

import pytest
import torch
from diffusers import WanTransformer3DModel
from diffusers.models.attention_dispatch import dispatch_attention_fn
from torch import Tensor
from torch._dynamo.testing import CompileCounter

from reprise.chorus.masks import align_to_tokens
from reprise.chorus.region import RegionIndex, bucket_step, region_index
from reprise.wan.model import PromptEmbedding, WanModel, encode_prompt, predict_velocity
from reprise.wan.region import masked_forward, predict_region_velocity, region_model
from tests.unit.reprise.regions import GRID, PATCHES, full_masks, latent_of, patch_of, random_masks, small_model

TIMESTEP = torch.tensor(600.25)


@pytest.fixture(scope="module", params=PATCHES)
def model(request: pytest.FixtureRequest, wan_folders: dict[str, pathlib.Path]) -> WanModel:
    return small_model(wan_folders["euler"], PATCHES[request.param])


def first_frame() -> Tensor:
    return torch.randn(1, 16, 1, *GRID[1:], generator=torch.Generator().manual_seed(9))


def prompts(model: WanModel, batch: int = 1) -> tuple[PromptEmbedding, PromptEmbedding]:
    found = []
    for text in ("a red ball moves left", "a blue cube"):
        embedding = encode_prompt(model, text)
        states_BLD = embedding.states_BLD.expand(batch, -1, -1)
        found.append(dataclasses.replace(embedding, states_BLD=states_BLD.to(model.transformer.dtype)))
    return found[0], found[1]


def both_ways(
    model: WanModel, index: RegionIndex, *, guidance_scale: float = 5.0, first: Tensor | None = None, batch: int = 1
) -> tuple[Tensor, Tensor]:
    """Give the velocity of the fast forward and that of the reference."""
    embedding, negative = prompts(model, batch)
    arguments = (latent_of(1, batch), TIMESTEP, embedding, negative, guidance_scale)
    fast = predict_region_velocity(model, *arguments, index, first_frame_latent_BC1HW=first)
    plain = predict_velocity(region_model(model, index, masked_forward), *arguments, first_frame_latent_BC1HW=first)
    return fast, plain


@pytest.mark.parametrize("guidance_scale", [1.0, 5.0])
@pytest.mark.parametrize("is_conditioned", [False, True])
@pytest.mark.parametrize("length_step", [1, 4])
def test_fast_forward_is_the_masked_dense_one(
    model: WanModel, guidance_scale: float, is_conditioned: bool, length_step: int
) -> None:
    index = region_index(random_masks(2), patch_of(model), length_step=length_step)
    first = first_frame() if is_conditioned else None
    fast, plain = both_ways(model, index, guidance_scale=guidance_scale, first=first)
    # Equal sums in another order, in float32, times a guidance of 5.
    torch.testing.assert_close(fast, plain, rtol=0, atol=2e-5)
    embedding, negative = prompts(model)
    dense = predict_velocity(
        model, latent_of(1), TIMESTEP, embedding, negative, guidance_scale, first_frame_latent_BC1HW=first
    )
    written = fast != 0
    assert (dense[written] - plain[written]).abs().max() > 0.01  # what is hidden would have made a difference
    assert torch.equal(written, plain != 0)


@pytest.mark.parametrize("seed", range(5))
def test_any_region_of_a_batch_agrees(model: WanModel, seed: int) -> None:
    share = (0.01, 0.05, 0.2, 0.4, 0.6)[seed]
    index = region_index(random_masks(seed, share=share), patch_of(model), length_step=1 + 5 * seed)
    fast, plain = both_ways(model, index, batch=2)
    torch.testing.assert_close(fast, plain, rtol=0, atol=2e-5)  # as above


def test_only_edited_tokens_have_a_velocity(model: WanModel) -> None:
    masks = random_masks(2)
    patch = patch_of(model)
    fast, _ = both_ways(model, region_index(masks, patch, length_step=16))
    edit_THW = align_to_tokens(masks, patch).edit_THW
    assert fast.dtype == torch.float32
    assert not fast[..., ~edit_THW].any()
    assert (fast[..., edit_THW] != 0).all()


@pytest.mark.parametrize("is_conditioned", [False, True])
def test_full_mask_is_the_dense_forward(model: WanModel, is_conditioned: bool) -> None:
    index = region_index(full_masks(), patch_of(model))
    embedding, negative = prompts(model)
    first = first_frame() if is_conditioned else None
    arguments = (latent_of(1), TIMESTEP, embedding, negative, 5.0)
    dense = predict_velocity(model, *arguments, first_frame_latent_BC1HW=first)
    fast = predict_region_velocity(model, *arguments, index, first_frame_latent_BC1HW=first)
    # The last block's queries and the modulation are computed in other shapes, which may round otherwise.
    torch.testing.assert_close(fast, dense, rtol=1e-5, atol=1e-5)


def test_what_is_not_seen_cannot_matter(model: WanModel) -> None:
    masks = random_masks(2)
    index = region_index(masks, patch_of(model))
    see_THW = align_to_tokens(masks, patch_of(model)).see_THW
    embedding, _ = prompts(model)
    latent = latent_of(1)
    velocities = [
        predict_region_velocity(model, x, TIMESTEP, embedding, None, 1.0, index)
        for x in (latent, torch.where(see_THW, latent, 50.0), torch.where(see_THW, 50.0, latent))
    ]
    assert torch.equal(velocities[0], velocities[1])
    assert not torch.allclose(velocities[0], velocities[2], atol=1e-2)


def test_half_precision_agrees_to_its_own_digits(model: WanModel, tmp_path: pathlib.Path) -> None:
    model.transformer.save_pretrained(tmp_path)
    half = WanTransformer3DModel.from_pretrained(tmp_path, dtype=torch.bfloat16).eval().requires_grad_(False)
    assert {parameter.dtype for parameter in half.parameters()} == {torch.bfloat16, torch.float32}
    model = dataclasses.replace(model, transformer=half)
    fast, plain = both_ways(model, region_index(random_masks(2), patch_of(model)), guidance_scale=1.0)
    # bfloat16 keeps 8 bits: each of three blocks rounds several times, by up to 2^-9 of values of order 1.
    torch.testing.assert_close(fast, plain, rtol=0, atol=0.03)
    assert (fast - plain).abs().mean() < 0.002
    assert fast.dtype == torch.float32


def test_only_the_region_is_computed(model: WanModel) -> None:
    index = region_index(random_masks(2), patch_of(model), length_step=4)
    assert len(index.edit_E) < index.num_see < index.num_tokens
    rows: dict[str, set[int]] = {}

    def watch(name: str) -> Any:
        return lambda _, __, output: rows.setdefault(name, set()).add(output.shape[1])

    *blocks, last = model.transformer.blocks
    watched = {
        "blocks": [block.ffn for block in blocks],
        "last keys": [last.attn1.to_k],
        "last queries": [last.attn1.to_q],
        "last rest": [last.attn1.to_out[0], last.attn2.to_q, last.ffn, model.transformer.proj_out],
    }
    hooks = [part.register_forward_hook(watch(name)) for name, parts in watched.items() for part in parts]
    try:
        embedding, _ = prompts(model)
        predict_region_velocity(model, latent_of(1), TIMESTEP, embedding, None, 1.0, index)
    finally:
        for hook in hooks:
            hook.remove()
    num_edit = len(index.edit_E)
    assert rows == {
        "blocks": {index.num_see},
        "last keys": {index.num_see},
        "last queries": {num_edit},
        "last rest": {num_edit},
    }


def test_the_last_block_keeps_the_configured_attention_kernel(model: WanModel, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def spy(*args: Any, **kwargs: Any) -> Any:
        asked.append((kwargs["backend"], kwargs.get("attn_mask")))
        return dispatch_attention_fn(*args, **kwargs)

    monkeypatch.setattr("reprise.wan.blocks.dispatch_attention_fn", spy)
    index = region_index(random_masks(2), patch_of(model))
    embedding, _ = prompts(model)
    before = predict_region_velocity(model, latent_of(1), TIMESTEP, embedding, None, 1.0, index)
    for block in model.transformer.blocks:  # set_attention_backend would change the default of the process too
        monkeypatch.setattr(block.attn1.processor, "_attention_backend", "_native_math")
    after = predict_region_velocity(model, latent_of(1), TIMESTEP, embedding, None, 1.0, index)
    assert asked == [(None, None), ("_native_math", None)]
    torch.testing.assert_close(before, after, rtol=1e-4, atol=1e-5)  # another kernel, another order of sums


def test_the_reference_leaves_no_hook_behind(model: WanModel) -> None:
    both_ways(model, region_index(random_masks(2), patch_of(model)))
    assert not any(block.attn1._forward_pre_hooks for block in model.transformer.blocks)


def test_a_region_of_another_grid_is_refused(model: WanModel) -> None:
    index = region_index(random_masks(2, grid=(3, 6, 8)), patch_of(model))
    embedding, _ = prompts(model)
    with pytest.raises(ValueError, match=f"made for {index.num_tokens} tokens, the latent has"):
        predict_region_velocity(model, latent_of(1), TIMESTEP, embedding, None, 1.0, index)


def test_regions_of_one_bucket_compile_once(wan_folders: dict[str, pathlib.Path]) -> None:
    grid = (3, 32, 32)
    step = bucket_step(3 * 32 * 32)
    model, counter = small_model(wan_folders["euler"], (1, 1, 1)), CompileCounter()
    for block in model.transformer.blocks:
        block.compile(backend=counter, dynamic=False, fullgraph=True)
    embedding, _ = prompts(model)
    latent = latent_of(0, grid=grid)
    lengths, exact_lengths, counts = set(), set(), []
    for seed in range(4):
        masks = random_masks(seed, share=0.01, grid=grid)
        exact_lengths.add(region_index(masks, (1, 1, 1)).num_see)
        index = region_index(masks, (1, 1, 1), length_step=step)
        lengths.add(index.num_see)
        predict_region_velocity(model, latent, TIMESTEP, embedding, None, 1.0, index)
        counts.append(counter.frame_count)
    assert len(exact_lengths) == 4
    assert len(lengths) == 1
    assert counts[0] > 0
    assert set(counts) == {counts[0]}
    index = region_index(random_masks(0, share=0.01, grid=grid), (1, 1, 1))
    predict_region_velocity(model, latent, TIMESTEP, embedding, None, 1.0, index)
    assert counter.frame_count > counts[0]  # an exact length is a new one
