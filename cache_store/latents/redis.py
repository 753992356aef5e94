"""Latents in Redis: one hash per source, one field per step and mask, so that a source expires and goes as a whole.

Knows nothing about entries: a source without an entry is merely unreachable until it expires.
"""

import logging
from typing import Final

import redis

from cache_store.connection import quoted, store_errors, unlink_matching
from cache_store.contracts import LatentKey, LatentRecord
from cache_store.errors import StoreFullError, StoreRefusedError
from cache_store.latents.mask_wire import decode_mask, encode_mask
from cache_store.latents.wire import decode, encode

logger = logging.getLogger(__name__)

MAX_VALUE_BYTES: Final = 256 << 20
"""Half of what a Redis server accepts as one value; a larger latent is not cached."""
GRACE_S: Final = 3_600
"""Latents outlive the entry that names them, so an entry that is still found has its latents."""

# A plain HSET would bring a source back that was purged while its masks were made, and without a time to live.
_PUT_MASK: Final = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
"""


class RedisLatentStore:
    """Every key has a time to live, so a forgotten source cannot fill the server for ever."""

    def __init__(self, client: redis.Redis, *, ttl_s: int, max_value_bytes: int = MAX_VALUE_BYTES) -> None:
        self._client = client
        self._ttl_s = ttl_s
        self._max_value_bytes = max_value_bytes
        self._put_mask = client.register_script(_PUT_MASK)

    def put(self, key: LatentKey, record: LatentRecord) -> bool:
        """Store the record; `False` when it is too large or the store is full: then nothing was kept."""
        blob = encode(key, record)
        if len(blob) > self._max_value_bytes:
            logger.warning("step %d of %s is not cached: %d bytes", key.step, key.source_id, len(blob))
            return False
        name = _name(key.tenant, key.source_id)
        try:
            with store_errors(), self._client.pipeline(transaction=True) as pipe:
                pipe.hset(name, str(key.step), blob)
                pipe.expire(name, self._ttl_s + GRACE_S)
                pipe.execute()
        except (StoreFullError, StoreRefusedError) as error:
            logger.warning("step %d of %s is not cached: %s", key.step, key.source_id, error)
            return False
        return True

    def get(self, key: LatentKey) -> LatentRecord | None:
        """Return the record; `None` when it is missing, expired or does not match its checksum."""
        try:
            with store_errors():
                blob = self._client.hget(_name(key.tenant, key.source_id), str(key.step))
        except StoreRefusedError as error:
            logger.warning("step %d of %s counts as missing: %s", key.step, key.source_id, error)
            return None
        return decode(key, blob) if isinstance(blob, bytes) else None

    def put_mask(self, tenant: str, source_id: str, phrase: str, data: bytes) -> bool:
        """Store a phrase's mask; `False` when it is too large, the store is full, or the source has no latents."""
        blob = encode_mask(tenant, source_id, phrase, data)
        if len(blob) > self._max_value_bytes:
            logger.warning("a mask of %s is not cached: %d bytes", source_id, len(blob))
            return False
        try:
            with store_errors():
                return bool(self._put_mask(keys=[_name(tenant, source_id)], args=[_mask_field(phrase), blob]))
        except (StoreFullError, StoreRefusedError) as error:
            logger.warning("a mask of %s is not cached: %s", source_id, error)
            return False

    def mask(self, tenant: str, source_id: str, phrase: str) -> bytes | None:
        """Return the mask; `None` when it is missing, expired or does not match its checksum."""
        try:
            with store_errors():
                blob = self._client.hget(_name(tenant, source_id), _mask_field(phrase))
        except StoreRefusedError as error:
            logger.warning("a mask of %s counts as missing: %s", source_id, error)
            return None
        return decode_mask(tenant, source_id, phrase, blob) if isinstance(blob, bytes) else None

    def sizes(self, tenant: str, source_id: str) -> dict[int, int]:
        """Return the stored bytes of each step of a source."""
        name = _name(tenant, source_id)
        with store_errors(), self._client.pipeline(transaction=False) as pipe:
            steps = sorted(int(field) for field in self._client.hkeys(name) if field.isdigit())
            for step in steps:
                pipe.hstrlen(name, str(step))
            lengths = pipe.execute()
        return {step: length for step, length in zip(steps, lengths, strict=True) if length}

    def delete(self, tenant: str, source_id: str) -> None:
        """Remove every step and mask of a source; the memory is freed beside the server's main thread."""
        with store_errors():
            self._client.unlink(_name(tenant, source_id))

    def delete_tenant(self, tenant: str) -> None:
        """Remove every source of a tenant."""
        unlink_matching(self._client, f"reprise:latents:{quoted(tenant)}:*")


def _name(tenant: str, source_id: str) -> str:
    return f"reprise:latents:{quoted(tenant)}:{quoted(source_id)}"


def _mask_field(phrase: str) -> str:
    return f"mask:{phrase}"
