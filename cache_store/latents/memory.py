"""Latents in a dict of this process, in stored form: for tests and for trying things out. Nothing expires."""

import threading

from cache_store.contracts import LatentKey, LatentRecord
from cache_store.latents.mask_wire import decode_mask, encode_mask
from cache_store.latents.wire import decode, encode


class MemoryLatentStore:
    """One dict of steps and one of masks per source."""

    def __init__(self) -> None:
        self._sources: dict[tuple[str, str], dict[int, bytes]] = {}
        self._masks: dict[tuple[str, str], dict[str, bytes]] = {}
        self._lock = threading.Lock()

    def put(self, key: LatentKey, record: LatentRecord) -> bool:
        """Store the record."""
        blob = encode(key, record)
        with self._lock:
            self._sources.setdefault((key.tenant, key.source_id), {})[key.step] = blob
        return True

    def get(self, key: LatentKey) -> LatentRecord | None:
        """Return the record; `None` when it is missing or does not match its checksum."""
        with self._lock:
            blob = self._sources.get((key.tenant, key.source_id), {}).get(key.step)
        return None if blob is None else decode(key, blob)

    def put_mask(self, tenant: str, source_id: str, phrase: str, data: bytes) -> bool:
        """Store a phrase's mask; `False` when the source has no latents."""
        blob = encode_mask(tenant, source_id, phrase, data)
        with self._lock:
            if (tenant, source_id) not in self._sources:
                return False
            self._masks.setdefault((tenant, source_id), {})[phrase] = blob
        return True

    def mask(self, tenant: str, source_id: str, phrase: str) -> bytes | None:
        """Return the mask; `None` when it is missing or does not match its checksum."""
        with self._lock:
            blob = self._masks.get((tenant, source_id), {}).get(phrase)
        return None if blob is None else decode_mask(tenant, source_id, phrase, blob)

    def sizes(self, tenant: str, source_id: str) -> dict[int, int]:
        """Return the stored bytes of each step of a source."""
        with self._lock:
            return {step: len(blob) for step, blob in self._sources.get((tenant, source_id), {}).items()}

    def delete(self, tenant: str, source_id: str) -> None:
        """Remove every step and mask of a source."""
        with self._lock:
            self._sources.pop((tenant, source_id), None)
            self._masks.pop((tenant, source_id), None)

    def delete_tenant(self, tenant: str) -> None:
        """Remove every source of a tenant."""
        with self._lock:
            self._sources = {key: steps for key, steps in self._sources.items() if key[0] != tenant}
            self._masks = {key: masks for key, masks in self._masks.items() if key[0] != tenant}
