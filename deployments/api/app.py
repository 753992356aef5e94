"""Build the HTTP app: videos, live streams, the playground, `/v1/models` and `/health`. Runs with or without Ray.

Talks to the rest of the system through the job store, the artifact store and what it is given.
"""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncIterator
from typing import Literal

from fastapi import Depends, FastAPI, Response
from pydantic import BaseModel
from redis.exceptions import RedisError
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.api import admin, live, playground, videos
from deployments.api.artifacts import ArtifactStore
from deployments.api.auth import caller_of
from deployments.api.description import ERRORS, describe_errors
from deployments.api.errors import REQUEST_ID_HEADER, install_error_handlers
from deployments.api.jobs import JobStore
from deployments.api.live_streams import LiveStreams
from deployments.api.retention import keep_sweeping
from deployments.api.services import (
    ApiServices,
    ApiSettings,
    CheckReadiness,
    CountRefusal,
    FindMask,
    ForgetSource,
    PredictWork,
    Readiness,
    no_count,
    no_prediction,
)
from deployments.api.tenants import TenantStore
from deployments.api.webhook_store import WebhookStore


class Health(BaseModel):
    """`alive`: the process answers. `ready`: a job sent now will be worked on."""

    alive: Literal[True] = True
    ready: bool
    reason: str | None


class ModelObject(BaseModel):
    """One served model."""

    id: str
    object: Literal["model"] = "model"
    created: int = 0
    owned_by: str = "reprise"


class ModelList(BaseModel):
    """The served models."""

    object: Literal["list"] = "list"
    data: list[ModelObject]


class _NameRequests:
    """Give every request an id, in the state for the log and in the response for the caller."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request_id = f"req_{secrets.token_hex(12)}"
        scope.setdefault("state", {})["request_id"] = request_id

        async def send_named(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message["headers"], (REQUEST_ID_HEADER.encode(), request_id.encode())]
            await send(message)

        await self._app(scope, receive, send_named)


async def _ready() -> Readiness:
    return Readiness(ready=True)


def create_api(
    settings: ApiSettings,
    jobs: JobStore,
    artifacts: ArtifactStore,
    *,
    forget_source: ForgetSource,
    check_readiness: CheckReadiness = _ready,
    find_mask: FindMask | None = None,
    live_streams: LiveStreams | None = None,
    tenants: TenantStore | None = None,
    webhooks: WebhookStore | None = None,
    predict_work: PredictWork = no_prediction,
    count_refusal: CountRefusal = no_count,
) -> FastAPI:
    """Build the app; `check_readiness` tells of what lies behind the job store, which the app checks itself.

    `forget_source` is called when a video is deleted. With `tenants` every caller must show a key. The app's lifespan
    sweeps expired files and closes the stores at the end.
    """

    @contextlib.asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        sweep = asyncio.create_task(keep_sweeping(jobs, artifacts, forget_source, period_s=settings.sweep_period_s))
        try:
            yield
        finally:
            sweep.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await sweep
            await jobs.close()
            for store in (tenants, webhooks):
                if store is not None:
                    await store.close()

    app = FastAPI(title="Reprise", lifespan=lifespan, responses=ERRORS)
    describe_errors(app)
    app.state.services = ApiServices(
        settings=settings,
        jobs=jobs,
        artifacts=artifacts,
        forget_source=forget_source,
        find_mask=find_mask,
        live=live_streams,
        tenants=tenants,
        webhooks=webhooks,
        predict_work=predict_work,
        count_refusal=count_refusal,
    )
    app.add_middleware(_NameRequests)
    install_error_handlers(app)
    app.include_router(videos.router)
    app.include_router(live.router)
    if tenants is not None:
        app.include_router(admin.router)
    playground.mount(app)

    @app.head("/health", include_in_schema=False)
    @app.get("/health", responses={503: {"model": Health, "description": "Alive, and not ready"}})
    async def health(response: Response) -> Health:
        """Answer 200 when ready and 503 when not; any answer means alive."""
        try:
            await jobs.ping()
            state = await check_readiness()
        except RedisError:
            state = Readiness(ready=False, reason="the job store does not answer")
        response.status_code = 200 if state.ready else 503
        return Health(ready=state.ready, reason=state.reason)

    @app.get("/v1/models", dependencies=[Depends(caller_of)])
    async def list_models() -> ModelList:
        return ModelList(data=[ModelObject(id=settings.limits.model)])

    return app
