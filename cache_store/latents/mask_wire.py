"""The bytes of a stored mask: magic, checksum, payload.

The checksum covers the key too, so that a value that was cut, changed, swapped with another or never written by us is
found out. What the payload means is the caller's. Knows no backend.
"""

import hashlib
import json
import logging
from typing import Final

logger = logging.getLogger(__name__)

MAGIC: Final = b"RPK1"
CHECKSUM_BYTES: Final = 16


def encode_mask(tenant: str, source_id: str, phrase: str, data: bytes) -> bytes:
    """Return the stored form."""
    return b"".join((MAGIC, _checksum(tenant, source_id, phrase, data), data))


def decode_mask(tenant: str, source_id: str, phrase: str, blob: bytes) -> bytes | None:
    """Return the payload, or log that the bytes are not the mask of this phrase and return `None`."""
    data = blob[len(MAGIC) + CHECKSUM_BYTES :]
    if blob != encode_mask(tenant, source_id, phrase, data):
        logger.warning("a mask of %s is unreadable and counts as missing", source_id)
        return None
    return data


def _checksum(tenant: str, source_id: str, phrase: str, data: bytes) -> bytes:
    key = json.dumps([tenant, source_id, phrase]).encode()
    return hashlib.blake2b(len(key).to_bytes(8, "little") + key + data, digest_size=CHECKSUM_BYTES).digest()
