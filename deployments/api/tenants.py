"""Tenants in Redis: their API keys, hashed, and what each may do. Shared by all replicas of the API.

    reprise:{jobs}:keys              hash of a key's SHA-256 -> JSON of an ApiKey; the key itself is stored nowhere
    reprise:{jobs}:limits:<tenant>   hash of a TenantLimits, part of which the job store's scripts read

A key is 256 random bits, so that one round of SHA-256 hides it as well as any slow hash. Knows nothing about HTTP.
"""

import dataclasses
import hashlib
import json
import re
import secrets
import time
from typing import Final, cast

from deployments.api.job_keys import PREFIX, limits_key
from deployments.api.redis_client import RedisStore
from reprise.chorus.plan import ReuseMode

DEFAULT_TENANT: Final = "default"
"""The one tenant of a server without API keys."""
TENANT_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_KEYS: Final = f"{PREFIX}:keys"
_KEY_PREFIX: Final = "sk-reprise-"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ApiKey:
    """What is known of a key."""

    id: str
    tenant: str
    name: str
    created_at: int


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TenantLimits:
    """What a tenant may do; None leaves it to the server's configuration."""

    weight: float = 1.0
    """Share of the workers where tenants compete."""
    max_unfinished_jobs: int | None = None
    """In each lane."""
    reuse_modes: tuple[ReuseMode, ...] = tuple(ReuseMode)
    """A request that names no mode gets the first of these."""
    min_tau: float | None = None
    """Least matching score, where it must be above the model's own."""
    max_streams: int | None = None
    """Live streams at a time."""

    def __post_init__(self) -> None:
        if not self.weight > 0:
            raise ValueError(f"weight must be above 0, got {self.weight}")
        for name in ("max_unfinished_jobs", "max_streams"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} must not be negative, got {value}")
        if not self.reuse_modes:
            raise ValueError("reuse_modes must not be empty; ['off'] lets the tenant reuse nothing")
        if self.min_tau is not None and not 0 <= self.min_tau <= 1:
            raise ValueError(f"min_tau must be between 0 and 1, got {self.min_tau}")


class TenantStore(RedisStore):
    """Keys and limits of all tenants."""

    async def create_key(self, tenant: str, *, name: str = "") -> tuple[ApiKey, str]:
        """Make a key of a tenant; its text is given once and cannot be read again."""
        text = _KEY_PREFIX + secrets.token_urlsafe(32)
        digest = _digest(text)
        key = ApiKey(id=f"key_{digest[:16]}", tenant=tenant, name=name, created_at=int(time.time()))
        await self._redis.hset(_KEYS, digest, json.dumps(dataclasses.asdict(key)))
        return key, text

    async def find(self, text: str) -> ApiKey | None:
        """Give the key that a caller shows, None when there is none like it (any more)."""
        stored = await self._redis.hget(_KEYS, _digest(text))
        return None if stored is None else ApiKey(**json.loads(stored))

    async def keys(self, tenant: str | None = None) -> list[ApiKey]:
        """Give a tenant's keys, or all, the oldest first."""
        found = [ApiKey(**json.loads(stored)) for stored in (await self._redis.hvals(_KEYS))]
        return sorted((key for key in found if tenant in (None, key.tenant)), key=lambda key: (key.created_at, key.id))

    async def delete_key(self, tenant: str, key_id: str) -> bool:
        """Revoke a key, at once; False if the tenant has none of this id."""
        for digest, stored in (await self._redis.hgetall(_KEYS)).items():
            key = ApiKey(**json.loads(stored))
            if (key.tenant, key.id) == (tenant, key_id):
                return bool(await self._redis.hdel(_KEYS, digest))
        return False

    async def limits(self, tenant: str) -> TenantLimits:
        """Give what a tenant may do."""
        return _limits_from_fields(cast(dict[str, str], await self._redis.hgetall(limits_key(tenant))))

    async def set_limits(self, tenant: str, limits: TenantLimits) -> None:
        """Replace what a tenant may do; holds from the next request on."""
        fields = {name: text for name, value in dataclasses.asdict(limits).items() if (text := _field(value))}
        async with self._redis.pipeline(transaction=True) as pipe:
            pipe.delete(limits_key(tenant))
            pipe.hset(limits_key(tenant), mapping=fields)
            await pipe.execute()


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _field(value: object) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value))
    return "" if value is None else str(value)


def _limits_from_fields(fields: dict[str, str]) -> TenantLimits:
    def number(name: str) -> int | None:
        return int(fields[name]) if name in fields else None

    return TenantLimits(
        weight=float(fields.get("weight", 1.0)),
        max_unfinished_jobs=number("max_unfinished_jobs"),
        reuse_modes=tuple(map(ReuseMode, fields["reuse_modes"].split()))
        if "reuse_modes" in fields
        else tuple(ReuseMode),
        min_tau=float(fields["min_tau"]) if "min_tau" in fields else None,
        max_streams=number("max_streams"),
    )
