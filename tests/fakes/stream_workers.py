"""Workers of a stream that sleep instead of sampling, and may fail or be slow where a test says so."""

import asyncio
from collections.abc import AsyncGenerator, Callable

import numpy as np

from actors.live_messages import ChunkSpec, LiveFacts, MediaFormat, ReadyGroup

FACTS = LiveFacts(
    model="fake",
    width=16,
    height=16,
    fps=8,
    group_frames=4,
    chunk_groups=4,
    num_inference_steps=4,
    guidance_scale=1.0,
    first_s=0.2,
    whole_s=0.3,
)
"""A group plays half a second, a chunk two."""


class FakeWorkers:
    """A WorkerPool; remembers the chunks it was asked for."""

    def __init__(self, *, num_denoisers: int = 1, decodes_apart: bool = False, facts: LiveFacts = FACTS) -> None:
        self.num_denoisers, self.decodes_apart, self.facts = num_denoisers, decodes_apart, facts
        self.chunks: list[ChunkSpec] = []
        self.fails: Callable[[ChunkSpec], bool] = lambda _: False
        self.slowness: Callable[[ChunkSpec], float] = lambda _: 1.0
        self.num_busy = self.most_busy = 0
        self.is_closed = False

    async def start(self) -> LiveFacts:
        return self.facts

    async def sample(self, denoiser: int, chunk: ChunkSpec) -> ChunkSpec:
        assert 0 <= denoiser < self.num_denoisers
        self.chunks.append(chunk)
        self.num_busy += 1
        self.most_busy = max(self.most_busy, self.num_busy)
        try:
            await asyncio.sleep(self.facts.first_s * self.slowness(chunk))
        finally:
            self.num_busy -= 1
        if self.fails(chunk):
            raise RuntimeError("the worker was lost")
        return chunk

    async def decode(self, denoiser: int, chunk: ChunkSpec, sampled: ChunkSpec) -> AsyncGenerator[ReadyGroup, None]:
        assert sampled is chunk
        assert 0 <= denoiser < self.num_denoisers
        pause = (self.facts.whole_s - self.facts.first_s) / self.facts.chunk_groups
        for index in range(self.facts.chunk_groups):
            await asyncio.sleep(pause)
            frame = np.full((16, 16, 3), (chunk.branch + index) % 256, np.uint8)
            label = f"{chunk.prompt}:{chunk.branch + index}".encode()
            yield ReadyGroup(
                last_HWC=frame,
                header=b"header " if MediaFormat.MP4 in chunk.formats else b"",
                fragment=label if MediaFormat.MP4 in chunk.formats else b"",
                pictures=(label,) * 4 if MediaFormat.JPEG in chunk.formats else (),
            )

    async def close(self) -> None:
        self.is_closed = True
