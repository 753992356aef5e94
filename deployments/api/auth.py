"""Who a request acts for: the tenant of its API key, or the one tenant of a server without keys.

A key comes as `Authorization: Bearer`, as the official clients send it. What only reads may also show it as a cookie,
since a browser can put no header on a video's address or a WebSocket.
"""

import dataclasses
import hashlib
import hmac
from typing import Final

from starlette.requests import HTTPConnection

from deployments.api.errors import ApiError
from deployments.api.services import ApiServices, services_of
from deployments.api.tenants import DEFAULT_TENANT, TenantLimits

COOKIE: Final = "reprise_api_key"
_READS: Final = frozenset({"GET", "HEAD"})


class Unauthorized(ApiError):
    """The caller shows no key, or one that is not valid."""

    status = 401
    type = "invalid_request_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, code="invalid_api_key", headers={"www-authenticate": "Bearer"})


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Caller:
    """A tenant and what it may do."""

    tenant: str
    limits: TenantLimits


async def caller_of(connection: HTTPConnection) -> Caller:
    """Give who a request or a WebSocket acts for; raises Unauthorized."""
    services = services_of(connection)
    if services.tenants is None:
        return Caller(tenant=DEFAULT_TENANT, limits=TenantLimits())
    key = await services.tenants.find(_shown_key(connection))
    if key is None:
        raise Unauthorized("the API key is not valid; it may have been revoked")
    return Caller(tenant=key.tenant, limits=await services.tenants.limits(key.tenant))


async def tenant_of(connection: HTTPConnection) -> str:
    """Give the tenant that a request acts for; raises Unauthorized."""
    return (await caller_of(connection)).tenant


async def require_admin(connection: HTTPConnection) -> None:
    """Let nobody pass but the operator; raises Unauthorized."""
    services: ApiServices = services_of(connection)
    shown = hashlib.sha256(_shown_key(connection).encode()).hexdigest()
    if not hmac.compare_digest(shown, services.settings.admin_key_sha256):
        raise Unauthorized("this is not the admin key")


def _shown_key(connection: HTTPConnection) -> str:
    scheme, _, text = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer" and text.strip():
        return text.strip()
    cookie = connection.cookies.get(COOKIE)
    if cookie and (connection.scope["type"] == "websocket" or connection.scope["method"] in _READS):
        return cookie
    raise Unauthorized("no API key; send it as Authorization: Bearer")
