"""The operator's routes, apart from the tenants' and under a key of their own: keys, limits, webhooks, purge.

Offered only where API keys are on. What they do holds from the next request on, in every replica.
"""

import asyncio
from typing import Annotated, Any, Final

from fastapi import APIRouter, Depends, Path
from pydantic import BaseModel, ConfigDict, Field, HttpUrl

from deployments.api.auth import require_admin
from deployments.api.errors import InvalidRequest, NotFound
from deployments.api.services import ApiServices, services_of
from deployments.api.tenants import TENANT_NAME, ApiKey, TenantLimits, TenantStore
from deployments.api.webhook_store import WebhookStore
from reprise.chorus.plan import ReuseMode

router = APIRouter(prefix="/admin/tenants", tags=["admin"], dependencies=[Depends(require_admin)])

Services = Annotated[ApiServices, Depends(services_of)]
Tenant = Annotated[str, Path(pattern=f"^{TENANT_NAME.pattern}$")]
_PAGE: Final = 100


class _Body(BaseModel):
    model_config = ConfigDict(extra="forbid")


class NewKey(_Body):
    """Body of a request for a key."""

    name: str = Field("", max_length=100)


class KeyObject(BaseModel):
    """An API key; `key` is there only in the answer that made it."""

    id: str
    tenant: str
    name: str
    created_at: int
    key: str | None = None


class KeyList(BaseModel):
    """API keys, the oldest first."""

    data: list[KeyObject]


class LimitsBody(_Body):
    """What a tenant may do; what is left out or null is as the server's configuration says."""

    weight: float = Field(1.0, gt=0, le=1000)
    max_unfinished_jobs: int | None = Field(None, ge=0)
    reuse_modes: list[ReuseMode] = Field(default_factory=lambda: list(ReuseMode), min_length=1)
    min_tau: float | None = Field(None, ge=0, le=1)
    max_streams: int | None = Field(None, ge=0)


class WebhookBody(_Body):
    """Where a tenant is told."""

    url: HttpUrl


class WebhookObject(BaseModel):
    """A tenant's webhook; `secret` is there only in the answer that made it."""

    url: str
    secret: str | None = None


class Purged(BaseModel):
    """What a purge has removed."""

    tenant: str
    videos: int


@router.get("")
async def list_keys(services: Services) -> KeyList:
    """List the keys of all tenants."""
    return _key_list(await _tenants(services).keys())


@router.post("/{tenant}/keys")
async def create_key(tenant: Tenant, body: NewKey, services: Services) -> KeyObject:
    """Make a key; a tenant begins to be with its first."""
    key, text = await _tenants(services).create_key(tenant, name=body.name)
    return KeyObject(**_fields(key), key=text)


@router.get("/{tenant}/keys")
async def list_tenant_keys(tenant: Tenant, services: Services) -> KeyList:
    """List a tenant's keys."""
    return _key_list(await _tenants(services).keys(tenant))


@router.delete("/{tenant}/keys/{key_id}")
async def delete_key(tenant: Tenant, key_id: str, services: Services) -> KeyList:
    """Revoke a key, and give those that are left."""
    if not await _tenants(services).delete_key(tenant, key_id):
        raise NotFound(f"{tenant} has no key of this id", param="key_id")
    return _key_list(await _tenants(services).keys(tenant))


@router.get("/{tenant}/limits")
async def get_limits(tenant: Tenant, services: Services) -> LimitsBody:
    """Tell what a tenant may do."""
    limits = await _tenants(services).limits(tenant)
    return LimitsBody(
        weight=limits.weight,
        max_unfinished_jobs=limits.max_unfinished_jobs,
        reuse_modes=list(limits.reuse_modes),
        min_tau=limits.min_tau,
        max_streams=limits.max_streams,
    )


@router.put("/{tenant}/limits")
async def set_limits(tenant: Tenant, body: LimitsBody, services: Services) -> LimitsBody:
    """Replace what a tenant may do."""
    least = services.settings.limits.min_tau
    if body.min_tau is not None and body.min_tau < least:
        raise InvalidRequest(f"min_tau must be at least the model's own {least}, got {body.min_tau}", param="min_tau")
    limits = TenantLimits(**{**body.model_dump(), "reuse_modes": tuple(body.reuse_modes)})
    await _tenants(services).set_limits(tenant, limits)
    return body


@router.put("/{tenant}/webhook")
async def set_webhook(tenant: Tenant, body: WebhookBody, services: Services) -> WebhookObject:
    """Set where a tenant is told of finished and failed videos, with a new secret, shown once."""
    hook = await _webhooks(services).set(tenant, str(body.url))
    return WebhookObject(url=hook.url, secret=hook.secret)


@router.get("/{tenant}/webhook")
async def get_webhook(tenant: Tenant, services: Services) -> WebhookObject:
    """Tell where a tenant is told, without the secret."""
    hook = await _webhooks(services).get(tenant)
    if hook is None:
        raise NotFound(f"{tenant} has no webhook", param="tenant")
    return WebhookObject(url=hook.url)


@router.delete("/{tenant}/webhook")
async def delete_webhook(tenant: Tenant, services: Services) -> WebhookObject:
    """Tell a tenant nothing any more."""
    hook = await get_webhook(tenant, services)
    await _webhooks(services).remove(tenant)
    return hook


@router.delete("/{tenant}/data")
async def purge(tenant: Tenant, services: Services) -> Purged:
    """Remove a tenant's jobs, files and everything that could be reused of them; its keys and limits stay."""
    removed: list[str] = []
    while True:
        page = await services.jobs.page(tenant, after=None, limit=_PAGE, order="asc")
        for job in page.jobs:
            await services.jobs.delete(tenant, job.id)
            await asyncio.to_thread(services.artifacts.delete, tenant, job.id)
            removed.append(job.id)
        if not page.has_more:
            break
    await services.forget_source(tenant, None)
    for video_id in removed:
        await services.jobs.leftovers.purged(tenant, video_id)
    return Purged(tenant=tenant, videos=len(removed))


def _tenants(services: ApiServices) -> TenantStore:
    assert services.tenants is not None, "these routes are offered only with a tenant store"
    return services.tenants


def _webhooks(services: ApiServices) -> WebhookStore:
    assert services.webhooks is not None, "these routes are offered only with a webhook store"
    return services.webhooks


def _fields(key: ApiKey) -> dict[str, Any]:
    return {"id": key.id, "tenant": key.tenant, "name": key.name, "created_at": key.created_at}


def _key_list(keys: list[ApiKey]) -> KeyList:
    return KeyList(data=[KeyObject(**_fields(key)) for key in keys])
