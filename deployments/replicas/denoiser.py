"""The denoiser's deployment; the replica it wraps denoises in a thread of its own."""

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator

import ray

from actors.denoiser import DenoiserConfig, DenoiserReplica
from actors.messages import DenoiseEvent, DenoiseRequest, TrajectoryStored
from cache_store.connection import connect
from cache_store.latents.redis import RedisLatentStore
from cache_store.partition import PartitionKey
from deployments.config import AppConfig
from deployments.replicas.store import Store, store_url
from deployments.stall_watch import StallWatch


class DenoiserDeployment:
    """Makes clips; one at a time."""

    async def __init__(self, config: DenoiserConfig, app: AppConfig, store: Store) -> None:  # type: ignore[misc] # Serve awaits it
        url = await store_url(store)
        client = connect(url, timeout_s=app.router.fetch_timeout_s)
        self._replica = DenoiserReplica(config, RedisLatentStore(client, ttl_s=app.store.entry_ttl_s))
        self._watch = StallWatch(app.denoiser.stall_timeout_s)
        self._has_masks = app.reuse and app.mask_generator_config() is not None
        await asyncio.to_thread(self._replica.start)

    async def generate(self, request: DenoiseRequest) -> AsyncGenerator[DenoiseEvent, None]:
        """Stream the events of one clip."""
        # Closed here rather than by the garbage collector: the work must stop as soon as the caller goes.
        with self._watch.working():
            async with contextlib.aclosing(self._replica.generate(request)) as events:
                async for event in events:
                    self._watch.moved()
                    yield self._with_reference(event)

    def check_health(self) -> None:
        """Fail when a clip has stopped moving; Serve then puts another replica in this one's place."""
        self._watch.check()

    def _with_reference(self, event: DenoiseEvent) -> DenoiseEvent:
        """Leave a clip's frames in this node's object store, from where the mask generator takes them."""
        if not isinstance(event, TrajectoryStored):
            return event
        return dataclasses.replace(event, frames_FHWC=ray.put(event.frames_FHWC) if self._has_masks else None)

    def partition(self) -> PartitionKey:
        """Give the loaded model's part of the reuse key."""
        return self._replica.partition
