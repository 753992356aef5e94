"""Latents decoded as they come give the frames that decoding them at once gives."""

import dataclasses
from typing import Any

import numpy as np
import pytest
import torch
from diffusers import AutoencoderKLWan
from torch import Tensor

from reprise.errors import NumericalError
from reprise.wan.model import WanModel, decode_video, load
from reprise.wan.presets import tiny
from reprise.wan.vae_stream import VideoDecoder

CUTS = ([1] * 8, [3, 3, 2], [1, 7], [8], [2, 1, 5])


def wan_vae(**changes: Any) -> AutoencoderKLWan:
    torch.manual_seed(1)
    config = {"base_dim": 3, "z_dim": 16, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1}
    return AutoencoderKLWan(**config, temperal_downsample=[False, True, True], **changes).eval()


VAES = {
    "tiny": None,
    "wan": wan_vae,
    "wan, patched": lambda: wan_vae(patch_size=2, in_channels=12, out_channels=12),
}


@pytest.fixture(scope="module")
def bundled() -> WanModel:
    return load(tiny())


@pytest.fixture(params=VAES)
def model(request: pytest.FixtureRequest, bundled: WanModel) -> WanModel:
    make = VAES[request.param]
    return bundled if make is None else dataclasses.replace(bundled, vae=make())


def latent(seed: int = 0) -> Tensor:
    return torch.randn(1, 16, 8, 4, 6, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("cut", CUTS, ids=str)
def test_pieces_are_the_whole(model: WanModel, cut: list[int]) -> None:
    decoder = VideoDecoder(model)
    pieces = [decoder.decode(piece) for piece in torch.split(latent(), cut, 2)]
    whole = decode_video(model, latent())
    assert [len(piece) for piece in pieces] == [4 * count - 3 * (place == 0) for place, count in enumerate(cut)]
    # Sums over several frames are taken in another order than over one.
    assert np.abs(np.concatenate(pieces).astype(int) - whole).max() <= 1


def test_two_videos_in_turns_do_not_disturb_each_other(model: WanModel) -> None:
    decoders = [VideoDecoder(model), VideoDecoder(model)]
    pieces: list[list[Any]] = [[], []]
    for start in range(0, 8, 2):
        for number, decoder in enumerate(decoders):
            pieces[number].append(decoder.decode(latent(number)[:, :, start : start + 2]))
        decode_video(model, latent(5)[:, :, :2])
    for number in range(2):
        assert np.abs(np.concatenate(pieces[number]).astype(int) - decode_video(model, latent(number))).max() <= 1


def test_what_is_no_video_is_refused(model: WanModel) -> None:
    with pytest.raises(NumericalError, match="NaN"):
        VideoDecoder(model).decode(latent() * torch.nan)
    with pytest.raises(ValueError, match="batch of 2"):
        VideoDecoder(model).decode(latent().expand(2, -1, -1, -1, -1))


def test_an_unknown_vae_is_refused(bundled: WanModel) -> None:
    with pytest.raises(ValueError, match="Linear"):
        VideoDecoder(dataclasses.replace(bundled, vae=torch.nn.Linear(1, 1)))
