"""How a bidirectional model goes on from what is shown: the boundary-image path (Speculative Sampling, section 3.3).

The last frame before the branch is encoded on the VAE's first-frame path and shown to the model clean; the model's
own clip then begins with that frame again, which is left out, and the rest is cut into groups of one latent. Every
clip has a VAE state of its own, so a branch leaves that of delivered frames alone. Knows nothing about when to branch.

Shape letters: B batch, C latent channels, T latent frames, H, W latent grid; in frames_FHWC: F frames, H, W pixels.
"""

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reprise.errors import NumericalError
from reprise.sampling import SolverState
from reprise.wan.live_presets import LivePreset
from reprise.wan.model import (
    PromptEmbedding,
    WanModel,
    denoise,
    draw_noise,
    encode_frame,
    solver_for,
    with_first_frame,
)
from reprise.wan.vae_stream import VideoDecoder

Frames = NDArray[np.uint8]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class ChunkRequest:
    """What determines one chunk, besides the weights."""

    seed: int
    """Of the stream; every chunk draws noise of its own."""
    job: int
    width: int
    """Pixels, as is height."""
    height: int
    boundary_HWC: Frames | None
    """The frame right before the chunk; None begins from nothing."""


def sample_chunk(
    model: WanModel,
    preset: LivePreset,
    request: ChunkRequest,
    embedding: PromptEmbedding,
    negative: PromptEmbedding | None = None,
    *,
    should_stop: Callable[[], bool] = lambda: False,
) -> Tensor:
    """Run one joint sampling call; the latent (1, C, 1 + K, H, W), whose first frame is the boundary's.

    `negative` is needed for a guidance above 1. Raises NumericalError for a latent that is not finite, Cancelled once
    `should_stop` says so between two steps.
    """
    wan = preset.model
    seed = int(np.random.SeedSequence((request.seed, request.job)).generate_state(1, np.uint32)[0])
    noise = draw_noise(model, seed=seed, width=request.width, height=request.height, num_frames=preset.num_frames)
    first = None
    if request.boundary_HWC is not None:
        first = encode_frame(model, request.boundary_HWC)
        noise = with_first_frame(noise, first)
    *_, reached = denoise(
        model,
        solver_for(model, num_steps=wan.num_inference_steps),
        SolverState(latent_BCTHW=noise),
        embedding,
        negative,
        wan.guidance_scale,
        first_frame_latent_BC1HW=first,
        should_stop=should_stop,
    )
    if not bool(torch.isfinite(reached.latent_BCTHW).all()):
        raise NumericalError("the sampled chunk is not finite")
    return reached.latent_BCTHW


def decode_groups(model: WanModel, latent_BCTHW: Tensor, *, group_latents: int = 1) -> Iterator[Frames]:
    """Yield the frames_FHWC of each group of latents after the first one, as soon as they are decoded."""
    decoder = VideoDecoder(model)
    decoder.decode(latent_BCTHW[:, :, :1])  # the boundary frame once more
    for group_BCTHW in torch.split(latent_BCTHW[:, :, 1:], group_latents, 2):
        yield decoder.decode(group_BCTHW)
