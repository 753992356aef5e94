"""Decode a video's latents as they come, to the very frames that decoding them all at once gives.

What a VAE must remember between two calls lies in the decoder, not in the model, so that several videos can be
decoded in turns. Knows nothing about chunks' lengths or why latents come late.

Shape letters: B batch, C channels, T latent frames, H, W latent grid or pixels, F frames.
"""

from typing import Any, Protocol

import numpy as np
import torch
from diffusers import AutoencoderKLWan
from diffusers.models.autoencoders.autoencoder_kl_wan import unpatchify
from numpy.typing import NDArray
from torch import Tensor

from reprise.wan.model import WanModel, to_frames, to_vae_scale
from reprise.wan.tiny_vae import AutoencoderKLTiny


class _Stream(Protocol):
    def decode(self, latent_BCTHW: Tensor) -> Tensor:
        """Give the frames (B, C, F, H, W) of the next latents."""
        ...

    def fork(self) -> "_Stream":
        """Give a stream that goes on from here by itself."""
        ...


class VideoDecoder:
    """Decodes one video from its first latent on."""

    def __init__(self, model: WanModel) -> None:
        """Raise ValueError for a VAE whose decoder is not known to be causal in time."""
        self._model = model
        self._stream: _Stream
        if isinstance(model.vae, AutoencoderKLTiny):
            self._stream = _TinyStream(model.vae)
        elif isinstance(model.vae, AutoencoderKLWan):
            self._stream = _WanStream(model.vae)
        else:
            raise ValueError(f"expected AutoencoderKLWan or AutoencoderKLTiny, got {type(model.vae).__name__}")

    @torch.no_grad()
    def decode(self, latent_BCTHW: Tensor) -> NDArray[np.uint8]:
        """Give frames_FHWC, 0 to 255, of the next latents of one video: one for the very first, four for each other.

        Raises NumericalError rather than show a black video.
        """
        latent_BCTHW = to_vae_scale(self._model, latent_BCTHW)
        with self._model.vae_lock:
            return to_frames(self._stream.decode(latent_BCTHW))

    def fork(self) -> "VideoDecoder":
        """Give a decoder that goes on from here by itself: what it decodes leaves this one as it is.

        So a stream keeps the state behind each latent, and a branch goes on from the one it leaves (Speculative
        Sampling, appendix C).
        """
        forked = VideoDecoder.__new__(VideoDecoder)
        forked._model, forked._stream = self._model, self._stream.fork()
        return forked


class _TinyStream:
    """The tiny VAE looks at the latent before."""

    def __init__(self, vae: AutoencoderKLTiny, previous_BC1HW: Tensor | None = None) -> None:
        self._vae = vae
        self._previous_BC1HW = previous_BC1HW

    def fork(self) -> "_TinyStream":
        return _TinyStream(self._vae, self._previous_BC1HW)

    def decode(self, latent_BCTHW: Tensor) -> Tensor:
        video = self._vae.decode_group(latent_BCTHW, self._previous_BC1HW).clamp(-1, 1)
        self._previous_BC1HW = latent_BCTHW[:, :, -1:]
        return video


class _WanStream:
    """Wan's VAE convolves over features of earlier frames, two for each of its causal convolutions."""

    def __init__(self, vae: Any) -> None:
        self._vae = vae
        vae.clear_cache()
        self._features: list[Any] = [None] * vae._conv_num
        self._is_first = True

    def fork(self) -> "_WanStream":
        forked = _WanStream(self._vae)
        # The list is written to, what it holds is not: every call puts new tensors in their place.
        forked._features, forked._is_first = list(self._features), self._is_first
        return forked

    def decode(self, latent_BCTHW: Tensor) -> Tensor:
        hidden_BCTHW = self._vae.post_quant_conv(latent_BCTHW)
        pieces = []
        for frame_BC1HW in hidden_BCTHW.split(1, 2):
            first = {"first_chunk": True} if self._is_first else {}
            pieces.append(self._vae.decoder(frame_BC1HW, feat_cache=self._features, feat_idx=[0], **first))
            self._is_first = False
        video = torch.cat(pieces, 2)
        if self._vae.config.patch_size is not None:
            video = unpatchify(video, patch_size=self._vae.config.patch_size)
        return video.clamp(-1, 1)
