"""What the routes work with: the settings and the stores, carried by the app's state."""

import dataclasses
from collections.abc import Awaitable, Callable
from typing import cast

from starlette.requests import HTTPConnection

from actors.messages import ClipRequest
from deployments.api.artifacts import ArtifactStore
from deployments.api.jobs import JobStore
from deployments.api.limits import ApiLimits
from deployments.api.live_streams import LiveStreams
from deployments.api.tenants import TenantStore
from deployments.api.webhook_store import WebhookStore


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ApiSettings:
    """Settings of the HTTP edge."""

    limits: ApiLimits
    poll_after_ms: int = 500
    """How long a client is told to wait before it asks again for an unfinished job."""
    max_body_bytes: int = 16 * 1024 * 1024
    """Bodies above this are refused unread."""
    sweep_period_s: float = 60.0
    """How often expired files are removed."""
    admin_key_sha256: str = ""
    """Of the key that the operator's routes ask for, in hexadecimal; where API keys are on."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Readiness:
    """Whether new work will be done, and if not, what is missing."""

    ready: bool
    reason: str | None = None


CheckReadiness = Callable[[], Awaitable[Readiness]]

FindMask = Callable[[str, str, str], Awaitable[bytes | None]]
"""Given a tenant, a source's id and the phrase of an object in it: its stored mask, if there is one."""

ForgetSource = Callable[[str, str | None], Awaitable[None]]
"""Given a tenant and the id of a video, or None for all: drop everything that later requests could reuse of it."""


PredictWork = Callable[[str, ClipRequest], Awaitable[float]]
"""Given a tenant and a request: the seconds that a worker will spend on it, 0 where nobody can tell. Never raises."""

CountRefusal = Callable[[str], None]
"""Given an error's code: count one more."""


async def no_prediction(_tenant: str, _request: ClipRequest) -> float:
    """Tell nothing."""
    return 0.0


def no_count(_code: str) -> None:
    """Count nothing."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ApiServices:
    """Everything a route may use."""

    settings: ApiSettings
    jobs: JobStore
    artifacts: ArtifactStore
    forget_source: ForgetSource
    predict_work: PredictWork = no_prediction
    count_refusal: CountRefusal = no_count
    find_mask: FindMask | None = None
    live: LiveStreams | None = None
    """Where live streams are made, if they are."""
    tenants: TenantStore | None = None
    """Whose keys callers must show; None asks for none."""
    webhooks: WebhookStore | None = None
    """Where the operator sets whom to tell; there when `tenants` is."""


def services_of(connection: HTTPConnection) -> ApiServices:
    """Give the services of the app that a request or a WebSocket came to."""
    return cast(ApiServices, connection.app.state.services)
