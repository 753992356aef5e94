"""Open Redis clients whose every wait is bounded, and turn Redis faults into the errors of this package.

Knows nothing about what is stored. A client is synchronous and safe to share between threads; an event
loop calls it through a thread, so no connection pool is ever tied to a loop.
"""

import contextlib
import logging
import urllib.parse
from collections.abc import Iterator
from typing import Final

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from cache_store.errors import StoreFullError, StoreRefusedError, StoreUnavailableError

logger = logging.getLogger(__name__)

LOOKUP_TIMEOUT_S: Final = 0.15
"""For small values on the way to a reuse decision: a frozen server costs a request less than 200 ms."""
BLOB_TIMEOUT_S: Final = 10.0
"""For latents: a socket timeout covers the whole send of a value, and 64 MB take a third of a second."""


def connect(url: str, *, timeout_s: float) -> redis.Redis:
    """Return a client for `redis://`, `rediss://` or `unix://` that waits at most `timeout_s` per socket call.

    Nothing is sent yet. Only a lost connection is tried again, once, so that a restarted server costs
    nothing; a timeout is not, or the bound would double.
    """
    if not timeout_s > 0:
        raise ValueError(f"timeout_s must be positive, got {timeout_s}: pass LOOKUP_TIMEOUT_S or BLOB_TIMEOUT_S")
    return redis.Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 1, supported_errors=(redis.ConnectionError,)),
        health_check_interval=0,
    )


def warn_of_limits(client: redis.Redis, *, capacity_bytes: int) -> None:
    """Say so at start when the server may drop jobs by itself, or is full before the cache is."""
    try:
        limits = client.config_get("maxmemory*")
    except redis.ResponseError:
        logger.info("the Redis server does not let its limits be read; noeviction is assumed")
        return
    policy, max_memory_bytes = limits.get("maxmemory-policy"), int(limits.get("maxmemory") or 0)
    if policy != "noeviction":
        logger.warning("maxmemory-policy is %s: set noeviction, or jobs may vanish", policy)
    if 0 < max_memory_bytes < capacity_bytes * 5 // 4:
        text = "maxmemory is %d and the cache may take %d bytes: leave a fifth free for jobs, or writes are refused"
        logger.warning(text, max_memory_bytes, capacity_bytes)


@contextlib.contextmanager
def store_errors() -> Iterator[None]:
    """Translate Redis faults: full, unreachable (also loading or too slow), or refused."""
    try:
        yield
    except redis.exceptions.OutOfMemoryError as error:
        raise StoreFullError(f"the store is full ({error}): raise its maxmemory or lower the cache capacity") from error
    except (redis.ConnectionError, redis.TimeoutError) as error:
        raise StoreUnavailableError(f"the store gave no answer ({error}): check that the server runs") from error
    except redis.ResponseError as error:
        raise StoreRefusedError(f"the store refused a command ({error}): is another program using its keys?") from error


def quoted(part: str) -> str:
    """Quote a part of a key, so that no tenant or id can reach into another's keys with `:` or match with `*`."""
    return urllib.parse.quote(part, safe="")


def unlink_matching(client: redis.Redis, pattern: str) -> None:
    """Remove every key that matches, without one long blocking call; `~` is not special in a pattern."""
    with store_errors():
        for name in client.scan_iter(match=pattern, count=1_000):
            client.unlink(name)
