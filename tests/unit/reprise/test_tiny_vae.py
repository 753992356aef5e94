"""AutoencoderKLTiny: shapes, causality, and streaming that equals the whole."""

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from reprise.wan.tiny_vae import AutoencoderKLTiny


def make_vae() -> AutoencoderKLTiny:
    """Random everywhere: as made, the blocks are the identity and would hide what they mix."""
    torch.manual_seed(0)
    vae: AutoencoderKLTiny = AutoencoderKLTiny(z_dim=4, channels=16, detail_channels=8)
    vae.eval().requires_grad_(False)
    for parameter in vae.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    return vae


VAE = make_vae()


def video(num_frames: int, seed: int = 0) -> Tensor:
    return torch.rand(1, 3, num_frames, 16, 24, generator=torch.Generator().manual_seed(seed)) * 2 - 1


def latents(length: int, seed: int = 0) -> Tensor:
    return torch.randn(1, 4, length, 2, 3, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("num_latents", [1, 2, 5])
def test_shapes(num_latents: int) -> None:
    frames = video(4 * num_latents - 3)
    posterior = VAE.encode(frames).latent_dist
    assert posterior.mean.shape == (1, 4, num_latents, 2, 3)
    assert VAE.decode(posterior.mean).sample.shape == frames.shape
    assert torch.equal(VAE.encode(frames, return_dict=False)[0].mean, posterior.mean)


@given(first_changed=st.integers(0, 16))
@settings(max_examples=17, deadline=None)
def test_later_frames_never_change_earlier_latents(first_changed: int) -> None:
    before, after = video(17), video(17)
    after[:, :, first_changed:] = video(17, seed=1)[:, :, first_changed:]
    same = (VAE.moments(before) == VAE.moments(after)).all(dim=(0, 1, 3, 4))
    owner = (first_changed + 3) // 4  # the latent that holds the first changed frame
    assert same[:owner].all()
    assert not same[owner:].any()


@given(first_changed=st.integers(0, 4))
@settings(max_examples=5, deadline=None)
def test_later_latents_never_change_earlier_frames(first_changed: int) -> None:
    before, after = latents(5), latents(5)
    after[:, :, first_changed:] = latents(5, seed=1)[:, :, first_changed:]
    same = (VAE.decode_group(before) == VAE.decode_group(after)).all(dim=1).all(dim=(0, 2, 3))
    shown = max(4 * first_changed - 3, 0)
    assert same[:shown].all()
    assert not same[shown:].any()


@given(cuts=st.sets(st.integers(1, 4)))
@settings(max_examples=16, deadline=None)
def test_streaming_decode_equals_whole_decode(cuts: set[int]) -> None:
    whole, edges = latents(5), [0, *sorted(cuts), 5]
    parts = []
    for start, end in itertools.pairwise(edges):
        previous = whole[:, :, start - 1 : start] if start else None
        parts.append(VAE.decode_group(whole[:, :, start:end], previous))
    # The convolutions run over batches of other sizes, which may sum in another order.
    assert torch.allclose(torch.cat(parts, 2), VAE.decode_group(whole), atol=1e-5)


def test_first_frame_alone_encodes_as_within_a_clip() -> None:
    clip = video(9)
    assert torch.allclose(VAE.moments(clip[:, :, :1]), VAE.moments(clip)[:, :, :1], atol=1e-5)


def test_decoded_frames_are_clamped() -> None:
    decoded = VAE.decode(latents(2) * 100).sample
    assert decoded.abs().max() <= 1


@pytest.mark.parametrize(
    ("num_frames", "height", "width"), [(4, 16, 16), (2, 16, 16), (16, 16, 16), (5, 12, 16), (5, 16, 20)]
)
def test_clip_off_the_grid_is_refused(num_frames: int, height: int, width: int) -> None:
    with pytest.raises(ValueError, match=f"got {num_frames} x {height} x {width}"):
        VAE.encode(torch.zeros(1, 3, num_frames, height, width))


def test_other_scale_factors_are_refused() -> None:
    with pytest.raises(ValueError, match="scale_factor_temporal=8"):
        AutoencoderKLTiny(scale_factor_temporal=8)
