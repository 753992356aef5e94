"""How a causal model goes on from what is shown: by the KV of the retained prefix (Speculative Sampling, appendix C).

Every latent keeps the clean KV that was made of it and the VAE's state behind it. A branch drops what lies after it
and goes on from the state it finds there: nothing is encoded again, and no dropped latent is attended to. The kept KV
may still have seen latents of its own chunk that were dropped later; that cannot be undone. Knows nothing about when to
branch.

Shape letters: B batch, C latent channels, T latent frames, H, W latent grid; in frames_FHWC: F frames, H, W pixels.
"""

import dataclasses
import itertools
from collections.abc import Iterator

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from reprise.errors import NumericalError
from reprise.flashforward.model import LongModel
from reprise.sampling import euler_step
from reprise.wan.adapter import Role, adapted
from reprise.wan.causal import encode_prompt_kv, predict_chunk
from reprise.wan.kv import ChunkKV, PromptKV, split_kv
from reprise.wan.model import PromptEmbedding
from reprise.wan.vae_stream import VideoDecoder


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class _Kept:
    """One latent of the timeline."""

    latent_BC1HW: Tensor
    kv: ChunkKV
    decoder: VideoDecoder
    """As it stood behind this latent."""


class RetainedPrefix:
    """One stream of a causal model in the role of Self-Forcing; memory does not grow with the stream."""

    def __init__(self, model: LongModel, *, seed: int, width: int, height: int) -> None:
        """Take a model whose adapters hold the role; sides in pixels."""
        if model.preset.guidance_scale > 1:
            raise ValueError(f"a distilled model without guidance is needed, got {model.preset.guidance_scale=}")
        self._model, self._seed, self._size = model, seed, (width, height)
        self._window = model.preset.history_chunks * model.preset.chunk_latents
        self._kept: dict[int, _Kept] = {}
        self._end = 0
        self._offset = 0
        """Timeline position of the model's position 0."""

    @property
    def end(self) -> int:
        """Give the exclusive end of the latents that are there."""
        return self._end

    def sample(self, embedding: PromptEmbedding, *, job: int, branch: int) -> Iterator[NDArray[np.uint8]]:
        """Drop what lies at `branch` and after, sample a chunk there, and yield each latent's frames_FHWC.

        Four frames a latent, one for the very first. Raises ValueError for a branch whose prefix is not kept any more
        or not yet there, NumericalError for a latent that is not finite.
        """
        if (branch != 0 and branch - 1 not in self._kept) or not 0 <= branch <= self._end:
            raise ValueError(f"branch must follow a kept latent, one of {sorted(self._kept)}, got {branch}")
        self._kept = {position: kept for position, kept in self._kept.items() if position < branch}
        self._end = branch
        if not self._kept:
            self._offset = branch
        prompt = self._project(embedding)
        count = self._model.preset.chunk_latents
        if branch + count - self._offset > self._model.wan.transformer.rope.max_seq_len:
            self._rebase(prompt)
        latent, kv = self._denoise(prompt, job, range(branch, branch + count))
        decoder = self._kept[branch - 1].decoder if branch else VideoDecoder(self._model.wan)
        for position, part, own in zip(
            range(branch, branch + count), torch.split(latent, 1, 2), split_kv(kv, count), strict=True
        ):
            decoder = decoder.fork()
            frames_FHWC = decoder.decode(part)
            self._kept[position] = _Kept(part, own, decoder)
            self._end = position + 1
            yield frames_FHWC
        self._kept = {position: kept for position, kept in self._kept.items() if position >= self._end - self._window}

    def _denoise(self, prompt: PromptKV, job: int, positions: range) -> tuple[Tensor, ChunkKV]:
        """Run the stages of one chunk and make its clean KV."""
        sigmas = torch.tensor(self._model.preset.sigmas)
        latent_BCTHW = self._noise(job, len(positions))
        for sigma, next_sigma in itertools.pairwise(sigmas):
            velocity_BCTHW, _ = self._predict(prompt, latent_BCTHW, sigma, positions)
            latent_BCTHW = euler_step(latent_BCTHW, velocity_BCTHW, sigma=sigma, next_sigma=next_sigma)
        if not bool(torch.isfinite(latent_BCTHW).all()):
            raise NumericalError("the sampled chunk is not finite")
        _, kv = self._predict(prompt, latent_BCTHW, sigmas[-1], positions)
        return latent_BCTHW, kv

    def _predict(
        self, prompt: PromptKV, latent_BCTHW: Tensor, sigma: Tensor, positions: range
    ) -> tuple[Tensor, ChunkKV]:
        """Run one forward after what is kept before these positions."""
        wan = self._model.wan
        context = [self._kept[position].kv for position in sorted(self._kept) if position < positions.start]
        with adapted(wan.transformer, self._model.adapters[Role.SELF_FORCING]):
            prediction = predict_chunk(
                wan,
                latent_BCTHW,
                sigma * wan.scheduler.config.num_train_timesteps,
                [prompt],
                [context[-self._window :]],
                positions=[position - self._offset for position in positions],
            )
        return prediction.velocity_BCTHW, prediction.published[0]

    def _rebase(self, prompt: PromptKV) -> None:
        """Encode what is kept again at the model's first positions: its position table ends, the stream does not."""
        latents = {position: self._kept[position] for position in sorted(self._kept)}
        self._kept, self._offset = {}, min(latents)
        for position, kept in latents.items():
            _, kv = self._predict(prompt, kept.latent_BC1HW, torch.tensor(0.0), range(position, position + 1))
            self._kept[position] = dataclasses.replace(kept, kv=kv)

    @torch.no_grad()
    def _project(self, embedding: PromptEmbedding) -> PromptKV:
        transformer = self._model.wan.transformer
        with adapted(transformer, self._model.adapters[Role.SELF_FORCING]):
            return encode_prompt_kv(transformer, embedding.states_BLD)

    def _noise(self, job: int, count: int) -> Tensor:
        """Draw a chunk's start latent; the same wherever it is drawn."""
        words = np.random.SeedSequence((self._seed, job)).generate_state(2, np.uint32)
        generator = torch.Generator().manual_seed(int(words[0]) << 31 | int(words[1]) >> 1)
        config = self._model.wan.vae.config
        width, height = (side // config.scale_factor_spatial for side in self._size)
        shape = (1, self._model.wan.transformer.config.in_channels, count, height, width)
        return torch.randn(shape, generator=generator, dtype=torch.float32).to(self._model.wan.device)
