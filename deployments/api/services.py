"""What the routes work with: the settings and the two stores, carried by the app's state."""

import dataclasses
from collections.abc import Awaitable, Callable
from typing import cast

from fastapi import Request

from deployments.api.artifacts import ArtifactStore
from deployments.api.jobs import JobStore
from deployments.api.limits import ApiLimits
from deployments.api.live_streams import LiveStreams


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


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Readiness:
    """Whether new work will be done, and if not, what is missing."""

    ready: bool
    reason: str | None = None


CheckReadiness = Callable[[], Awaitable[Readiness]]

FindMask = Callable[[str, str, str], Awaitable[bytes | None]]
"""Given a tenant, a source's id and the phrase of an object in it: its stored mask, if there is one."""

ForgetSource = Callable[[str, str], Awaitable[None]]
"""Given a tenant and the id of a video: drop everything that later requests could reuse of it."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ApiServices:
    """Everything a route may use."""

    settings: ApiSettings
    jobs: JobStore
    artifacts: ArtifactStore
    forget_source: ForgetSource
    find_mask: FindMask | None = None
    live: LiveStreams | None = None
    """Where live streams are made, if they are."""


def services_of(request: Request) -> ApiServices:
    """Give the services of the app that a request came to."""
    return cast(ApiServices, request.app.state.services)


def tenant_of() -> str:
    """Give the tenant that a request acts for; there is one until API keys map to tenants."""
    return "default"
