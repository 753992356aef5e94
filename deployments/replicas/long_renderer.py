"""The deployment that makes long videos; the replica it wraps renders in a thread of its own."""

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator

from actors.long_renderer import LongRendererReplica, OneWorker, Renderer
from actors.messages import LongEvent, LongRendererConfig, LongRequest
from actors.wavefront import GangConfig, Wavefront
from deployments.stall_watch import StallWatch
from reprise.flashforward.model import LongModel
from reprise.flashforward.schedule import Placement


def make_renderer(config: LongRendererConfig, model: LongModel) -> Renderer:
    """Give what runs the forwards: this replica, or a gang of actors that it owns and that ends with it."""
    if config.placement is Placement.ONE_WORKER:
        return OneWorker(model)
    return Wavefront(
        GangConfig(
            preset=config.preset,
            placement=config.placement,
            device=config.device,
            num_threads=config.num_threads,
            num_cpus=config.num_cpus,
            num_gpus=config.num_gpus,
        )
    )


class LongRendererDeployment:
    """Makes long videos; one at a time."""

    async def __init__(self, config: LongRendererConfig, *, stall_timeout_s: float) -> None:  # type: ignore[misc] # Serve awaits it
        self._watch = StallWatch(stall_timeout_s)
        self._replica = LongRendererReplica(config, functools.partial(make_renderer, config))
        await asyncio.to_thread(self._replica.start)

    async def generate(self, request: LongRequest) -> AsyncGenerator[LongEvent, None]:
        """Stream the events of one video."""
        # Closed here rather than by the garbage collector: the work must stop as soon as the caller goes.
        with self._watch.working():
            async with contextlib.aclosing(self._replica.generate(request)) as events:
                async for event in events:
                    self._watch.moved()
                    yield event

    def check_health(self) -> None:
        """Fail when a video has stopped moving; Serve then puts another replica in this one's place."""
        self._watch.check()

    def __del__(self) -> None:
        if hasattr(self, "_replica"):
            self._replica.stop()
