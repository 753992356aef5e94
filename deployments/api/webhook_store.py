"""Where tenants want to be told of their ended jobs, and which of them they have not been told yet, in Redis.

    reprise:{jobs}:webhooks      hash of a tenant -> JSON of a Webhook
    reprise:{jobs}:deliveries    sorted set of `<tenant>/<video id>/<attempts>` by the time of the next attempt, seconds

Knows nothing about how a delivery is made.
"""

import base64
import dataclasses
import json
import secrets
from typing import Final

from redis.asyncio import Redis

from deployments.api.job_keys import PREFIX
from deployments.api.redis_client import RedisStore

LEASE_S: Final = 60.0
"""A delivery that a sender has begun is left to it for so long."""
SECRET_PREFIX: Final = "whsec_"
_HOOKS: Final = f"{PREFIX}:webhooks"
_DELIVERIES: Final = f"{PREFIX}:deliveries"
_BATCH: Final = 8
_BEGIN: Final = """
-- Lease what is due in one step, so that of two senders with different clocks only one gets it.
-- KEYS: deliveries | ARGV: now, end of the lease, most
local due = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, ARGV[3])
for _, member in ipairs(due) do redis.call('ZADD', KEYS[1], ARGV[2], member) end
return due
"""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Webhook:
    """Where a tenant wants to be told, and the secret both sides know."""

    url: str
    secret: str = dataclasses.field(repr=False)


class WebhookStore(RedisStore):
    """The webhooks of all tenants and what is still to be delivered."""

    def __init__(self, redis: Redis) -> None:
        super().__init__(redis)
        self._begin = redis.register_script(_BEGIN)

    async def set(self, tenant: str, url: str) -> Webhook:
        """Set a tenant's address, with a new secret."""
        hook = Webhook(url=url, secret=SECRET_PREFIX + base64.b64encode(secrets.token_bytes(32)).decode())
        await self._redis.hset(_HOOKS, tenant, json.dumps(dataclasses.asdict(hook)))
        return hook

    async def get(self, tenant: str) -> Webhook | None:
        """Give a tenant's webhook, if it has one."""
        stored = await self._redis.hget(_HOOKS, tenant)
        return None if stored is None else Webhook(**json.loads(stored))

    async def remove(self, tenant: str) -> bool:
        """Tell a tenant nothing any more; False if it was told nothing."""
        return bool(await self._redis.hdel(_HOOKS, tenant))

    async def schedule(self, tenant: str, video_id: str, *, attempts: int = 0, at: float) -> None:
        """Have a delivery made at a time, after so many attempts."""
        await self._redis.zadd(_DELIVERIES, {f"{tenant}/{video_id}/{attempts}": at})

    async def begin_due(self, now: float) -> list[tuple[str, str, int]]:
        """Give (tenant, video id, attempts) of deliveries that are due; no other sender gets them for a while."""
        members = await self._begin(keys=[_DELIVERIES], args=[now, now + LEASE_S, _BATCH])
        parts = (member.split("/") for member in members)
        return [(tenant, video_id, int(attempts)) for tenant, video_id, attempts in parts]

    async def drop(self, tenant: str, video_id: str, attempts: int) -> None:
        """Forget a delivery."""
        await self._redis.zrem(_DELIVERIES, f"{tenant}/{video_id}/{attempts}")
