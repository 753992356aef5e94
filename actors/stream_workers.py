"""The workers of a group of live streams as Ray actors in one placement group, and the group itself as one.

Every Ray call of the streaming path inside the cluster is made here. A lost worker is started again by Ray; the call
that it was at fails. Knows nothing about when chunks are wanted.
"""

import asyncio
import dataclasses
from collections.abc import AsyncGenerator, Iterator
from typing import Any, Final

import ray
from ray.util.placement_group import PlacementGroup, remove_placement_group

from actors.live_messages import (
    ChunkSpec,
    LiveFacts,
    LiveWorkerConfig,
    MediaFormat,
    Output,
    ReadyGroup,
    Recording,
    StreamSpec,
)
from actors.placement import Bundle, bundle_options, place
from actors.stream_figures import StreamFigures
from actors.stream_group import GroupConfig, StreamGroup

KIND: Final = "streams"
"""Of the placement groups."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class StreamWorkersConfig:
    """The actors of one group and what each of them holds."""

    worker: LiveWorkerConfig
    num_denoisers: int = 1
    decodes_apart: bool = False
    """One more actor decodes and encodes, so that the denoisers do nothing but sample."""
    num_cpus: float = 1.0
    """Of each actor, as is num_gpus."""
    num_gpus: float = 0.0
    strategy: str = "PACK"
    place_timeout_s: float = 30.0


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LiveConfig:
    """One group: its streams and its workers."""

    group: GroupConfig
    workers: StreamWorkersConfig


class _Worker:
    """A LiveWorker as an actor; only this process loads what a model needs, which takes seconds."""

    def __init__(self, config: LiveWorkerConfig) -> None:
        from actors.live_worker import LiveWorker

        self._worker = LiveWorker(config)

    def warm_up(self) -> LiveFacts:
        """Make some chunks."""
        return self._worker.warm_up()

    def sample(self, chunk: ChunkSpec) -> tuple[None, Any]:
        """Sample; the first result only tells that the second is there, which stays where it is until it is read."""
        return None, self._worker.sample(chunk)

    def decode(self, chunk: ChunkSpec, latent: Any) -> Iterator[ReadyGroup]:
        """Decode what this or another worker has sampled."""
        yield from self._worker.decode(chunk, latent)


class StreamWorkers:
    """A WorkerPool of Ray actors."""

    def __init__(self, config: StreamWorkersConfig) -> None:
        self._config = config
        self.num_denoisers = config.num_denoisers
        self.decodes_apart = config.decodes_apart
        self._group: PlacementGroup | None = None
        self._actors: list[Any] = []

    async def start(self) -> LiveFacts:
        """Place the actors, all or none, and warm them up; raises GangUnplaceable."""
        config = self._config
        count = config.num_denoisers + config.decodes_apart
        bundles = [Bundle(num_cpus=config.num_cpus, num_gpus=config.num_gpus)] * count
        self._group = await asyncio.to_thread(
            place, bundles, kind=KIND, strategy=config.strategy, timeout_s=config.place_timeout_s
        )
        make = ray.remote(_Worker)
        self._actors = [
            make.options(
                num_cpus=config.num_cpus,
                num_gpus=config.num_gpus,
                max_restarts=-1,
                **bundle_options(self._group, number),
            ).remote(config.worker)
            for number in range(count)
        ]
        facts: list[LiveFacts] = [await actor.warm_up.remote() for actor in self._actors]
        return max(facts, key=lambda one: one.whole_s)

    async def sample(self, denoiser: int, chunk: ChunkSpec) -> Any:
        """Sample a chunk; a reference to its latent."""
        done, latent = self._actors[denoiser].sample.options(num_returns=2).remote(chunk)
        await done
        return latent

    async def decode(self, denoiser: int, chunk: ChunkSpec, sampled: Any) -> AsyncGenerator[ReadyGroup, None]:
        """Yield the groups as they are decoded."""
        actor = self._actors[-1] if self.decodes_apart else self._actors[denoiser]
        async for ref in actor.decode.options(num_returns="streaming").remote(chunk, sampled):
            yield await ref

    async def close(self) -> None:
        """End the actors and give their resources back."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None


class StreamGroupActor:
    """The group as an async actor: whoever has its handle and a token reaches a stream, from any process."""

    def __init__(self, config: LiveConfig) -> None:
        self._group = StreamGroup(config.group, StreamWorkers(config.workers))

    async def start(self) -> LiveFacts:
        """Start the workers."""
        return await self._group.start()

    async def open(self, spec: StreamSpec) -> str:
        """See StreamGroup, as for all that follow."""
        return self._group.open(spec)

    async def attach(self, token: str, media: MediaFormat) -> str:
        """Let a viewer watch."""
        return self._group.attach(token, media)

    async def check(self, token: str, tenant: str) -> None:
        """Raise StreamUnknown for a stream that is not this tenant's."""
        self._group.check(token, tenant)

    async def detach(self, token: str, viewer_id: str) -> None:
        """Forget a viewer."""
        self._group.detach(token, viewer_id)

    async def prompt(self, token: str, text: str, sequence: int, event_id: str | None) -> None:
        """Change a stream's prompt."""
        self._group.prompt(token, text, sequence=sequence, event_id=event_id)

    async def stop(self, token: str) -> None:
        """End a stream."""
        self._group.stop(token)

    async def take(self, token: str, viewer_id: str, wait_s: float) -> list[Output]:
        """Give what a viewer has not seen."""
        return await self._group.take(token, viewer_id, wait_s)

    async def next_recording(self, wait_s: float) -> Recording | None:
        """Give a stream that is to be kept."""
        return await self._group.next_recording(wait_s)

    async def kept(self, stream_id: str, video_id: str) -> None:
        """Take as what video it is kept."""
        self._group.kept(stream_id, video_id)

    async def stats(self) -> dict[str, Any]:
        """Give what an operator asks for."""
        return self._group.stats()

    async def take_figures(self) -> StreamFigures:
        """Give what the streams have shown since this was last asked."""
        return self._group.take_figures()

    async def close(self) -> None:
        """End all streams and the workers."""
        await self._group.close()
