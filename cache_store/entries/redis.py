"""Entries in Redis, one hash each, under a namespace per encoder: the one source of truth about the cache.

A new encoder, revision or dimension is a new namespace; what the old one wrote is ignored until it expires.
"""

import dataclasses
import hashlib
import itertools
import json
import logging
import math
from collections.abc import Collection, Iterator, Sequence
from typing import Final

import redis

from cache_store.connection import quoted, store_errors, unlink_matching
from cache_store.contracts import EncoderTag, EntryKey, EntryRecord
from cache_store.entries.wire import from_fields, to_fields

logger = logging.getLogger(__name__)

HEADER: Final = "reprise:entries:header"
VECTOR_ID: Final = "reprise:entries:vector-id"
SCAN_BATCH: Final = 500

# A plain increment would bring a deleted entry back as a hash without facts and without a time to live.
_TOUCH: Final = """
if redis.call('EXISTS', KEYS[1]) == 0 then return 0 end
redis.call('HINCRBY', KEYS[1], 'uses', 1)
redis.call('HINCRBY', KEYS[1], 'steps_saved', ARGV[1])
redis.call('HSET', KEYS[1], 'last_used_at', ARGV[2])
return 1
"""


class RedisEntryStore:
    """Every key has a time to live; the counter of vector ids outlives every entry that bears one."""

    def __init__(self, client: redis.Redis, *, encoder: EncoderTag, ttl_s: int) -> None:
        self._client = client
        self._encoder = encoder
        self._ttl_s = ttl_s
        tag = f"{quoted(encoder.name)}:{quoted(encoder.revision)}:{encoder.dim}"
        self._namespace = hashlib.blake2b(tag.encode(), digest_size=8).hexdigest()
        self._touch = client.register_script(_TOUCH)

    @property
    def encoder(self) -> EncoderTag:
        """Tag of the embeddings in view; entries under another tag are invisible."""
        return self._encoder

    def next_vector_id(self) -> int:
        """Draw a vector id that was never drawn before."""
        with store_errors(), self._client.pipeline(transaction=True) as pipe:
            pipe.incr(VECTOR_ID)
            pipe.expire(VECTOR_ID, 2 * self._ttl_s)
            return int(pipe.execute()[0])

    def put(self, record: EntryRecord) -> None:
        """Store or replace an entry; raises StoreFullError when there is no room."""
        name = self._name(record.key)
        with store_errors(), self._client.pipeline(transaction=True) as pipe:
            pipe.hset(name, items=list(itertools.chain(*to_fields(record).items())))
            pipe.expire(name, math.ceil(record.expires_at - record.created_at))
            pipe.execute()

    def get_many(self, keys: Sequence[EntryKey]) -> list[EntryRecord | None]:
        """Return the entries in order, `None` for what is missing or damaged."""
        return self._read([self._name(key) for key in keys])

    def touch(self, key: EntryKey, *, steps_saved: int, now: float) -> None:
        """Count one use; an entry that is gone stays gone."""
        with store_errors():
            self._touch(keys=[self._name(key)], args=[steps_saved, now])

    def delete(self, keys: Collection[EntryKey]) -> None:
        """Remove the entries, ignoring unknown ones."""
        with store_errors(), self._client.pipeline(transaction=False) as pipe:
            for key in keys:
                pipe.unlink(self._name(key))
            pipe.execute()

    def delete_tenant(self, tenant: str) -> None:
        """Remove every entry of a tenant, under whatever encoder it was made."""
        unlink_matching(self._client, f"reprise:entry:*:{quoted(tenant)}:*")

    def scan(self) -> Iterator[EntryRecord]:
        """Yield every readable entry of this encoder, in no order."""
        self._check_header()
        names = self._client.scan_iter(match=f"reprise:entry:{self._namespace}:*", count=SCAN_BATCH)
        while True:
            with store_errors():
                batch = [name.decode() for name in itertools.islice(names, SCAN_BATCH)]
            if not batch:
                return
            yield from (record for record in self._read(batch) if record is not None)

    def _read(self, names: Sequence[str]) -> list[EntryRecord | None]:
        with store_errors(), self._client.pipeline(transaction=False) as pipe:
            for name in names:
                pipe.hgetall(name)
            answers = pipe.execute(raise_on_error=False)  # a key of a wrong type spoils one answer, not all
        return [
            from_fields(fields, self._encoder) if isinstance(fields, dict) and fields else None for fields in answers
        ]

    def _check_header(self) -> None:
        """Say so when the entries in the store were made by another encoder, and write who makes them now."""
        header = json.dumps(dataclasses.asdict(self._encoder) | {"normalised": True})
        with store_errors():
            previous = self._client.set(HEADER, header, ex=2 * self._ttl_s, get=True)
        if isinstance(previous, bytes) and previous != header.encode():
            logger.warning("the encoder changed from %r to %s: entries of the old one are ignored", previous, header)

    def _name(self, key: EntryKey) -> str:
        return f"reprise:entry:{self._namespace}:{quoted(key.tenant)}:{quoted(key.source_id)}"
