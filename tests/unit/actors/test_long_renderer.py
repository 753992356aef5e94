"""The long renderer's replica: pieces in order, then the files; it stops when nobody waits any more."""

import contextlib
import dataclasses
import io
from collections.abc import Callable, Iterator

import av
import numpy as np
import pytest

from actors.long_renderer import LongRendererReplica, OneWorker, Renderer
from actors.messages import (
    ChunkDone,
    ClipRequest,
    LongDone,
    LongEvent,
    LongRendererConfig,
    LongRequest,
)
from reprise.flashforward.denoiser import LongVideoSpec
from reprise.flashforward.model import LongModel
from reprise.flashforward.worker import Delivery, RunFacts
from reprise.wan.long_presets import tiny_long
from reprise.wan.model import PromptEmbedding

FRAMES = 29
CLIP = ClipRequest(
    prompt="a large red circle moves right over a blue background",
    negative_prompt="",
    seed=3,
    num_inference_steps=4,
    guidance_scale=1.0,
    width=64,
    height=64,
    num_frames=FRAMES,
    fps=4,
    canvas_width=64,
    canvas_height=64,
    is_long=True,
)


class Watched(OneWorker):
    """Tells how far the last video came, and how often it was closed."""

    def __init__(self, model: LongModel) -> None:
        super().__init__(model)
        self.forwards = self.num_closed = 0

    def render(
        self,
        spec: LongVideoSpec,
        embedding: PromptEmbedding,
        negative: PromptEmbedding | None,
        *,
        facts: RunFacts,
        should_stop: Callable[[], bool],
    ) -> Iterator[Delivery]:
        """Render as it does, and note the forwards when it ends in whatever way."""
        try:
            yield from super().render(spec, embedding, negative, facts=facts, should_stop=should_stop)
        finally:
            self.forwards = facts.forwards.total()

    def close(self) -> None:
        """Count."""
        self.num_closed += 1


@pytest.fixture(scope="module")
def watched() -> list[Watched]:
    return []


@pytest.fixture(scope="module")
def replica(watched: list[Watched]) -> Iterator[LongRendererReplica]:
    def make(model: LongModel) -> Renderer:
        watched.append(Watched(model))
        return watched[-1]

    replica = LongRendererReplica(LongRendererConfig(preset=tiny_long()), make)
    replica.start()
    yield replica
    replica.stop()
    assert watched[-1].num_closed == 1


async def events_of(replica: LongRendererReplica, clip: ClipRequest = CLIP) -> list[LongEvent]:
    return [event async for event in replica.generate(LongRequest(video_id="video", clip=clip))]


async def test_pieces_come_in_order_and_then_the_files(replica: LongRendererReplica) -> None:
    *chunks, done = await events_of(replica)
    assert isinstance(done, LongDone)
    pieces = [chunk for chunk in chunks if isinstance(chunk, ChunkDone)]
    assert [chunk.latents_done for chunk in pieces] == [3, 6, 8]
    assert {chunk.num_latents for chunk in pieces} == {8}
    assert set(done.files) == {"video", "thumbnail", "spritesheet"}
    for data in (b"".join(chunk.fragment for chunk in pieces), done.files["video"]):
        with av.open(io.BytesIO(data)) as container:
            frames = np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])
        assert frames.shape == (FRAMES, 64, 64, 3)
    work = done.work
    assert dict(work.forwards) == {"planner": 4, "extraction": 1, "renderer": 12}
    assert (work.workers, work.rounds, work.wait_s) == (1, 17, {})
    assert 0 < work.first_latents_s < work.render_s
    assert work.first_latents_s < work.first_frame_s
    assert work.peak_kv_bytes > 0


async def test_the_same_request_gives_the_same_pieces(replica: LongRendererReplica) -> None:
    once, again = [await events_of(replica) for _ in range(2)]
    assert [chunk.fragment for chunk in once if isinstance(chunk, ChunkDone)] == [
        chunk.fragment for chunk in again if isinstance(chunk, ChunkDone)
    ]


async def test_it_stops_when_nobody_waits(replica: LongRendererReplica, watched: list[Watched]) -> None:
    long = dataclasses.replace(CLIP, num_frames=1281)
    async with contextlib.aclosing(replica.generate(LongRequest(video_id="video", clip=long))) as events:
        async for _ in events:
            break
    await events_of(replica)  # waits for the one thread that renders
    assert watched[-1].forwards == 17, "this one was made whole"


async def test_a_length_that_cannot_be_is_an_error(replica: LongRendererReplica) -> None:
    with pytest.raises(ValueError, match="num_frames must be"):
        await events_of(replica, dataclasses.replace(CLIP, num_frames=30))


async def test_it_must_be_started() -> None:
    idle = LongRendererReplica(LongRendererConfig(preset=tiny_long()), OneWorker)
    with pytest.raises(RuntimeError, match="start"):
        await events_of(idle)
