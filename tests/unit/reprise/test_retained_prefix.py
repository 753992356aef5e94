"""A causal stream that branches: what is kept stays as it is, what is dropped has no say, memory stays flat."""

import dataclasses

import numpy as np
import pytest
import torch

from reprise.flashforward.model import LongModel, load_long
from reprise.flashforward.schedule import Method
from reprise.speculative.retained_prefix import RetainedPrefix
from reprise.wan.long_presets import tiny_long
from reprise.wan.model import PromptEmbedding, decode_video, encode_prompt

RED, BLUE = "a small red circle moves left", "a small blue circle moves left"


@pytest.fixture(scope="module")
def model() -> LongModel:
    return load_long(dataclasses.replace(tiny_long(), history_chunks=2), method=Method.SELF_FORCING)


@pytest.fixture(scope="module")
def prompts(model: LongModel) -> tuple[PromptEmbedding, PromptEmbedding]:
    return encode_prompt(model.wan, RED), encode_prompt(model.wan, BLUE)


Prompts = tuple[PromptEmbedding, PromptEmbedding]


def new_stream(model: LongModel) -> RetainedPrefix:
    return RetainedPrefix(model, seed=3, width=32, height=32)


def latents_of(stream: RetainedPrefix) -> torch.Tensor:
    return torch.cat([stream._kept[position].latent_BC1HW for position in sorted(stream._kept)], 2)


def test_a_stream_is_what_its_latents_decode_to_at_once(model: LongModel, prompts: Prompts) -> None:
    stream = new_stream(model)
    pieces = [frames for job in range(2) for frames in stream.sample(prompts[0], job=job, branch=stream.end)]
    assert [len(piece) for piece in pieces] == [1, 4, 4, 4, 4, 4]
    whole = decode_video(model.wan, latents_of(stream))
    assert np.abs(np.concatenate(pieces).astype(int) - whole).max() <= 1


def test_a_branch_keeps_its_prefix_and_forgets_what_it_dropped(model: LongModel, prompts: Prompts) -> None:
    red, blue = prompts
    straight, revised = new_stream(model), new_stream(model)
    for stream in (straight, revised):
        list(stream.sample(red, job=0, branch=0))
    list(revised.sample(red, job=1, branch=3))  # a future that is dropped
    ends = [list(stream.sample(blue, job=2, branch=3)) for stream in (straight, revised)]
    assert np.array_equal(np.concatenate(ends[0]), np.concatenate(ends[1])), "the dropped future has no say"
    assert torch.equal(latents_of(straight), latents_of(revised))


def test_a_branch_may_lie_inside_a_chunk(model: LongModel, prompts: Prompts) -> None:
    red, blue = prompts
    stream = new_stream(model)
    shown = [frames for job in range(2) for frames in stream.sample(red, job=job, branch=stream.end)]
    before = latents_of(stream)[:, :, :4]
    after = list(stream.sample(blue, job=2, branch=4))
    assert stream.end == 7
    assert torch.equal(latents_of(stream)[:, :, : 4 - 1], before[:, :, 1:]), "six latents are kept, as they were"
    whole = decode_video(model.wan, torch.cat([before, latents_of(stream)[:, :, -3:]], 2))
    assert np.abs(np.concatenate([*shown[:4], *after]).astype(int) - whole).max() <= 1, (
        "the VAE goes on from the branch"
    )


def test_a_stream_is_endless_in_bounded_memory(
    model: LongModel, prompts: Prompts, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model.wan.transformer.rope, "max_seq_len", 16)
    stream = new_stream(model)
    for job in range(12):
        frames = list(stream.sample(prompts[0], job=job, branch=stream.end))
        assert len(stream._kept) <= 6
        assert all(np.isfinite(piece).all() for piece in frames)
    assert stream.end == 36
    assert stream._offset > 0


@pytest.mark.parametrize("branch", [-1, 1, 4, 20])
def test_a_branch_without_its_prefix_is_refused(model: LongModel, prompts: Prompts, branch: int) -> None:
    stream = new_stream(model)
    for job in range(4):
        list(stream.sample(prompts[0], job=job, branch=stream.end))
    end = stream.end
    with pytest.raises(ValueError, match="branch must follow a kept latent"):
        next(stream.sample(prompts[0], job=9, branch=branch))
    assert stream.end == end
