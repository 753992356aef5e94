"""Open the Redis clients of the HTTP edge and the router, whose every wait is bounded."""

from typing import Any, Self

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff


def connect_async(url: str, *, timeout_s: float = 5.0) -> Redis:
    """Return a client for `redis://`, `rediss://` or `unix://`; connects on first use.

    Without a socket timeout a paused server would hold a request for ever. A lost call is not repeated: its script may
    have run, and only the caller's Idempotency-Key tells a repeat from a second request.
    """
    return Redis.from_url(
        url,
        decode_responses=True,
        protocol=2,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 0),
    )


class RedisStore:
    """What keeps its values in Redis. Bound to the event loop it is first used on."""

    def __init__(self, redis: Redis) -> None:
        self._redis: Any = redis  # redis-py's types make every command sync or async

    @classmethod
    def connect(cls, url: str) -> Self:
        """Make a store on a Redis URL; connects on first use."""
        return cls(connect_async(url))

    async def close(self) -> None:
        """Close the connections."""
        await self._redis.aclose()
