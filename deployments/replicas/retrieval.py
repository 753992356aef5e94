"""The retrieval deployment, the single writer of the index; every call runs in a thread."""

import asyncio
from typing import Any

from ray.serve.handle import DeploymentHandle

from actors.retrieval import Admission, RetrievalReplica
from cache_store.cache import CacheStats
from cache_store.contracts import EncoderTag
from cache_store.partition import PartitionKey
from deployments.config import AppConfig
from deployments.metrics import RayMetrics, Sample, cache_samples, record_regularly
from deployments.replicas.store import Store, store_url
from reprise.chorus.plan import Candidate


class RetrievalDeployment:
    """Finds sources; the single writer of the index."""

    async def __init__(self, config: AppConfig, store: Store, embedder: DeploymentHandle) -> None:  # type: ignore[misc] # Serve awaits it
        encoder: EncoderTag = await embedder.tag.remote()
        self._replica = RetrievalReplica(config.retrieval_config(), encoder=encoder, store_url=await store_url(store))
        await asyncio.to_thread(self._replica.start)
        self._last_stats: CacheStats | None = None
        self._watching = asyncio.create_task(record_regularly(RayMetrics(), self._read))

    async def _read(self) -> list[Sample]:
        before, self._last_stats = self._last_stats, self._replica.stats()
        return cache_samples(self._last_stats, before)

    async def candidates(self, partition: PartitionKey, vector: bytes, count: int) -> list[Candidate]:
        """Give the nearest sources of a partition."""
        return await asyncio.to_thread(self._replica.candidates, partition, vector, count)

    async def source(self, partition: PartitionKey, source_id: str, vector: bytes) -> list[Candidate]:
        """Give one source, if it is stored in this partition."""
        return await asyncio.to_thread(self._replica.source, partition, source_id, vector)

    async def admit(self, admission: Admission) -> str:
        """Register a source."""
        return await asyncio.to_thread(self._replica.admit, admission)

    async def touch(self, tenant: str, source_id: str, steps_saved: int) -> None:
        """Count one use."""
        await asyncio.to_thread(self._replica.touch, tenant, source_id, steps_saved)

    async def purge(self, tenant: str, source_id: str | None = None) -> None:
        """Forget one source of a tenant, or all."""
        await asyncio.to_thread(self._replica.purge, tenant, source_id)

    def stats(self) -> Any:
        """Give sizes and counts of the cache."""
        return self._replica.stats()
