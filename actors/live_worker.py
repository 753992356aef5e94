"""The worker that samples and decodes a live stream's chunks: a shell around the continuation of one model.

One call at a time; keeps no state of any stream between calls, so any worker can make any chunk. Knows nothing about
when chunks are wanted, sessions or sockets.
"""

import functools
import io
import time
from collections.abc import Iterator
from typing import Any, Final

import torch
from PIL import Image

from actors.engines.fragments import Piece, encode_piece
from actors.engines.media import Canvas
from actors.live_messages import ChunkSpec, Frames, LiveFacts, LiveWorkerConfig, MediaFormat, ReadyGroup
from reprise.speculative.continuation import ChunkRequest, decode_groups, sample_chunk
from reprise.wan.model import PromptEmbedding, WanModel, encode_prompt, load

PROMPTS_KEPT: Final = 64
JPEG_QUALITY: Final = 90


class LiveWorker:
    """One model; `sample` and `decode` may run on different workers."""

    def __init__(self, config: LiveWorkerConfig) -> None:
        torch.set_num_threads(config.num_threads)
        self._config = config
        self._model: WanModel = load(config.preset.model, config.device)
        width, height = self.size
        self._canvas = Canvas(width, height)
        self._embed = functools.lru_cache(maxsize=PROMPTS_KEPT)(functools.partial(encode_prompt, self._model))

    @property
    def size(self) -> tuple[int, int]:
        """Give the width and height of the pictures."""
        model = self._config.preset.model
        return model.sizes[model.default_size]

    def sample(self, chunk: ChunkSpec) -> Any:
        """Run one sampling call; the latent of the chunk, on the host."""
        torch.set_num_threads(self._config.num_threads)  # of this very thread
        preset = self._config.preset
        width, height = self.size
        request = ChunkRequest(
            seed=chunk.seed, job=chunk.job, width=width, height=height, boundary_HWC=chunk.boundary_HWC
        )
        negative: PromptEmbedding | None = self._embed("") if preset.model.guidance_scale > 1 else None
        return sample_chunk(self._model, preset, request, self._embed(chunk.prompt), negative).cpu()

    def decode(self, chunk: ChunkSpec, latent: Any) -> Iterator[ReadyGroup]:
        """Yield the groups of a sampled chunk, each as soon as it is decoded and encoded."""
        torch.set_num_threads(self._config.num_threads)
        size = self._config.preset.group_latents
        groups = decode_groups(self._model, latent.to(self._model.device), group_latents=size)
        for index, frames_FHWC in enumerate(groups):
            yield self._encode(frames_FHWC, chunk.branch + index, chunk.formats)

    def make(self, chunk: ChunkSpec) -> Iterator[ReadyGroup]:
        """Sample and decode."""
        yield from self.decode(chunk, self.sample(chunk))

    def warm_up(self) -> LiveFacts:
        """Make a chunk from nothing and two that continue it, and measure the last."""
        boundary, first_s, whole_s = None, 0.0, 0.0
        for job in range(3):
            chunk = ChunkSpec(
                prompt="warm up",
                seed=0,
                job=job,
                branch=0,
                boundary_HWC=boundary,
                formats=frozenset(MediaFormat),
            )
            begin, times = time.perf_counter(), []
            for group in self.make(chunk):
                times.append(time.perf_counter() - begin)
                boundary = group.last_HWC
            first_s, whole_s = times[0], times[-1]
        preset = self._config.preset
        width, height = self.size
        return LiveFacts(
            model=preset.model.name,
            width=width,
            height=height,
            fps=preset.fps,
            group_frames=preset.group_frames,
            chunk_groups=preset.chunk_groups,
            num_inference_steps=preset.model.num_inference_steps,
            guidance_scale=preset.model.guidance_scale,
            first_s=first_s,
            whole_s=whole_s,
        )

    def _encode(self, frames_FHWC: Frames, position: int, formats: frozenset[MediaFormat]) -> ReadyGroup:
        piece, pictures = Piece(b"", b""), tuple[bytes, ...]()
        if MediaFormat.MP4 in formats:
            piece = encode_piece(
                frames_FHWC,
                fps=self._config.preset.fps,
                canvas=self._canvas,
                first_frame=position * self._config.preset.group_frames,
                number=position,
            )
        if MediaFormat.JPEG in formats:
            pictures = tuple(map(_encode_picture, frames_FHWC))
        return ReadyGroup(last_HWC=frames_FHWC[-1], header=piece.header, fragment=piece.body, pictures=pictures)


def _encode_picture(frame_HWC: Frames) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(frame_HWC).save(buffer, "JPEG", quality=JPEG_QUALITY)
    return buffer.getvalue()
