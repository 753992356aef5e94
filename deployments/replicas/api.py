"""The HTTP deployment: the ASGI app, its stores, and the two things it asks of other deployments."""

import asyncio
import logging
from typing import Any

from ray import serve
from ray.serve.handle import DeploymentHandle

from actors.messages import ClipRequest
from cache_store.connection import connect
from cache_store.latents.redis import RedisLatentStore
from deployments.api.app import create_api
from deployments.api.artifacts import ArtifactStore
from deployments.api.jobs import JobStore
from deployments.api.services import ApiSettings, Readiness
from deployments.api.tenants import TenantStore
from deployments.api.webhook_store import WebhookStore
from deployments.config import AppConfig
from deployments.guard import Guard
from deployments.live_handle import RayLiveStreams
from deployments.metrics import RayMetrics, Sample
from deployments.replicas.store import Store, store_url
from deployments.serving_state import what_is_missing

logger = logging.getLogger(__name__)

READY_TIMEOUT_S = 1.0
MASK_TIMEOUT_S = 5.0
PREDICT_TIMEOUT_S = 0.5
"""For a look-up before a job is queued, which its caller waits for; later, and its work is not known."""
FORGET_TIMEOUT_S = 5.0
"""For removing a deleted video's latents, which its caller waits for."""


class ApiDeployment:
    """The HTTP edge; talks to the router through the job store only."""

    async def __init__(  # type: ignore[misc] # Serve awaits it
        self,
        settings: ApiSettings,
        config: AppConfig,
        store: Store,
        router: DeploymentHandle,
        retrieval: DeploymentHandle,
        live: DeploymentHandle | None,
    ) -> None:
        self._settings = settings
        url = await store_url(store)
        self._jobs = JobStore.connect(url, config.job_store_config())
        self._latents = RedisLatentStore(connect(url, timeout_s=MASK_TIMEOUT_S), ttl_s=config.store.entry_ttl_s)
        self._artifacts = ArtifactStore(config.artifacts())
        self._tenants = TenantStore.connect(url) if config.auth.enabled else None
        self._webhooks = WebhookStore.connect(url) if config.auth.enabled else None
        self._router = router
        self._metrics = RayMetrics()
        self._predicting = Guard("admission", timeout_s=PREDICT_TIMEOUT_S, metrics=self._metrics)
        self._retrieval = retrieval
        self._live = None if live is None else RayLiveStreams(live)

    def __serve_build_asgi_app__(self) -> Any:
        """Build the ASGI app on the replica."""
        return create_api(
            self._settings,
            self._jobs,
            self._artifacts,
            forget_source=self._forget_source,
            check_readiness=self._check_readiness,
            find_mask=self._find_mask,
            live_streams=self._live,
            tenants=self._tenants,
            webhooks=self._webhooks,
            predict_work=self._predict_work,
            count_refusal=self._count_refusal,
        )

    async def _check_readiness(self) -> Readiness:
        missing = await self._what_is_missing()
        if missing is not None:
            return Readiness(ready=False, reason=missing)
        try:
            await asyncio.wait_for(self._router.is_ready.remote(), timeout=READY_TIMEOUT_S)
        except Exception as error:  # whatever keeps the router from answering is the reason
            return Readiness(ready=False, reason=f"the router is not ready: {type(error).__name__}")
        return Readiness(ready=True)

    async def _what_is_missing(self) -> str | None:
        name = serve.get_replica_context().app_name
        try:
            status = await asyncio.wait_for(asyncio.to_thread(serve.status), timeout=READY_TIMEOUT_S)
        except Exception as error:  # replicas serve on without a controller for as long as it is away
            logger.warning("Serve's controller does not answer: %s", type(error).__name__)
            return None
        return what_is_missing(status.applications[name].deployments) if name in status.applications else None

    async def _predict_work(self, tenant: str, clip: ClipRequest) -> float:
        found = await self._predicting.call(lambda: self._router.estimate.remote(tenant, clip))
        return found if isinstance(found, float) else 0.0

    def _count_refusal(self, code: str) -> None:
        self._metrics.record([Sample("reprise_requests_refused_total", 1, (code,))])

    async def _forget_source(self, tenant: str, video_id: str | None) -> None:
        await asyncio.wait_for(self._retrieval.purge.remote(tenant, video_id), timeout=FORGET_TIMEOUT_S)

    async def _find_mask(self, tenant: str, video_id: str, phrase: str) -> bytes | None:
        return await asyncio.to_thread(self._latents.mask, tenant, video_id, phrase)
