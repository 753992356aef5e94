"""Chunks that continue a picture: random checkpoints in the real layouts, with Wan's own VAE and with the tiny one."""

import dataclasses
import pathlib

import numpy as np
import pytest
import torch

from reprise.errors import Cancelled, NumericalError
from reprise.speculative.continuation import ChunkRequest, decode_groups, sample_chunk
from reprise.wan.live_presets import LivePreset
from reprise.wan.model import WanModel, decode_video, encode_frame, encode_prompt, load
from reprise.wan.presets import tiny

SIDE = 32
CHUNK = 3
REQUEST = ChunkRequest(seed=7, job=2, width=SIDE, height=SIDE, boundary_HWC=None)


@pytest.fixture(scope="module", params=["wan", "tiny"])
def live(
    request: pytest.FixtureRequest, wan_folders: dict[str, pathlib.Path], half_folder: pathlib.Path
) -> tuple[WanModel, LivePreset]:
    folder = wan_folders["unipc"] if request.param == "wan" else half_folder
    preset = dataclasses.replace(
        tiny(),
        path=str(folder),
        sizes={f"{SIDE}x{SIDE}": (SIDE, SIDE)},
        default_size=f"{SIDE}x{SIDE}",
        num_inference_steps=3,
        guidance_scale=1.0,
        max_sequence_length=8,
    )
    return load(preset), LivePreset(model=preset, chunk_latents=CHUNK, fps=8)


def picture(seed: int) -> np.ndarray[tuple[int, ...], np.dtype[np.uint8]]:
    return np.random.default_rng(seed).integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)


def test_a_chunk_begins_with_the_boundary_and_its_groups_follow_it(live: tuple[WanModel, LivePreset]) -> None:
    model, preset = live
    request = dataclasses.replace(REQUEST, boundary_HWC=picture(0))
    latent = sample_chunk(model, preset, request, encode_prompt(model, "a red ball"))
    assert latent.shape == (1, 16, 1 + CHUNK, SIDE // 8, SIDE // 8)
    assert torch.equal(latent[:, :, :1], encode_frame(model, picture(0)))
    groups = list(decode_groups(model, latent))
    assert [group.shape for group in groups] == [(4, SIDE, SIDE, 3)] * CHUNK
    whole = decode_video(model, latent)
    assert np.abs(np.concatenate(groups).astype(int) - whole[1:]).max() <= 1, "the boundary's own frame is left out"


def test_a_chunk_is_determined_by_stream_job_boundary_and_prompt(live: tuple[WanModel, LivePreset]) -> None:
    model, preset = live
    red, blue = encode_prompt(model, "a red ball"), encode_prompt(model, "a blue cube")
    base = dataclasses.replace(REQUEST, boundary_HWC=picture(0))
    first = sample_chunk(model, preset, base, red)
    assert torch.equal(sample_chunk(model, preset, base, red), first)
    others = [
        sample_chunk(model, preset, dataclasses.replace(base, job=3), red),
        sample_chunk(model, preset, dataclasses.replace(base, seed=8), red),
        sample_chunk(model, preset, dataclasses.replace(base, boundary_HWC=picture(1)), red),
        sample_chunk(model, preset, base, blue),
        sample_chunk(model, preset, REQUEST, red),
    ]
    for other in others:
        assert not torch.equal(other[:, :, 1:], first[:, :, 1:])


def test_a_chunk_stops_between_steps_and_is_never_half_a_number(live: tuple[WanModel, LivePreset]) -> None:
    model, preset = live
    prompt = encode_prompt(model, "a")
    with pytest.raises(Cancelled):
        sample_chunk(model, preset, REQUEST, prompt, should_stop=lambda: True)
    broken = dataclasses.replace(prompt, states_BLD=torch.full_like(prompt.states_BLD, float("nan")))
    with pytest.raises(NumericalError):
        sample_chunk(model, preset, REQUEST, broken)


def test_a_picture_encoded_is_what_a_video_that_begins_with_it_is(live: tuple[WanModel, LivePreset]) -> None:
    model, _ = live
    latent = encode_frame(model, picture(3))
    pixels = torch.from_numpy(picture(3)).permute(2, 0, 1)[None, :, None].float() / 127.5 - 1
    raw = model.vae.encode(pixels.expand(-1, -1, 5, -1, -1)).latent_dist.mode()[:, :, :1]
    mean, std = (
        torch.tensor(values).view(1, -1, 1, 1, 1)
        for values in (model.vae.config.latents_mean, model.vae.config.latents_std)
    )
    assert torch.allclose(latent, (raw - mean) / std, atol=1e-5)


def test_a_preset_that_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="chunk_latents >= 1"):
        LivePreset(model=tiny(), chunk_latents=0, fps=8)
    with pytest.raises(ValueError, match="chunk_latents=8 must be a multiple of group_latents=3"):
        LivePreset(model=tiny(), chunk_latents=8, fps=8, group_latents=3)


def test_a_group_may_be_several_latents(live: tuple[WanModel, LivePreset]) -> None:
    model, preset = live
    coarse = dataclasses.replace(preset, group_latents=CHUNK)
    assert (coarse.chunk_groups, coarse.group_frames, coarse.group_s) == (1, 4 * CHUNK, CHUNK * preset.group_s)
    latent = sample_chunk(model, preset, REQUEST, encode_prompt(model, "a"))
    (group,) = decode_groups(model, latent, group_latents=CHUNK)
    pieces = np.concatenate(list(decode_groups(model, latent)))
    assert np.abs(group.astype(int) - pieces).max() <= 1
