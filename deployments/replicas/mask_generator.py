"""The mask generator's deployment: segmenting runs in a thread, so that health checks are answered meanwhile."""

import asyncio

import numpy as np
from numpy.typing import NDArray

from actors.mask_generator import MaskGeneratorConfig, MaskGeneratorReplica, MasksMade
from cache_store.connection import BLOB_TIMEOUT_S, connect
from cache_store.latents.redis import RedisLatentStore
from deployments.config import AppConfig
from deployments.replicas.store import Store, store_url


class MaskGeneratorDeployment:
    """Makes masks of stored sources; one source at a time."""

    async def __init__(self, config: MaskGeneratorConfig, app: AppConfig, store: Store) -> None:  # type: ignore[misc] # Serve awaits it
        client = connect(await store_url(store), timeout_s=BLOB_TIMEOUT_S)
        self._store = RedisLatentStore(client, ttl_s=app.store.entry_ttl_s)
        self._replica = await asyncio.to_thread(MaskGeneratorReplica, config)

    async def make(
        self, tenant: str, source_id: str, frames_FHWC: NDArray[np.uint8], phrases: tuple[str, ...]
    ) -> MasksMade:
        """Make the masks of a source's phrases and store them beside its latents."""
        return await asyncio.to_thread(
            self._replica.make,
            self._store,
            tenant=tenant,
            source_id=source_id,
            frames_FHWC=frames_FHWC,
            phrases=phrases,
        )
