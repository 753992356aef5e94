"""The bytes of a stored latent: magic, header length, JSON header, raw elements.

The header carries dtype, shape, the key and a checksum, so that a value that was cut, changed, swapped with
another or never written by us is found out. Nothing is ever unpickled. Knows no backend.
"""

import hashlib
import json
import logging
import math
import struct
from typing import Final

from cache_store.contracts import LatentKey, LatentRecord

logger = logging.getLogger(__name__)

MAGIC: Final = b"RPL1"
MAX_HEADER_BYTES: Final = 4_096
MAX_DIMS: Final = 8
ITEM_BYTES: Final = {"float32": 4, "bfloat16": 2, "float16": 2}
"""The dtypes a latent may have."""


def encode(key: LatentKey, record: LatentRecord) -> bytes:
    """Return the stored form; raise ValueError when the record contradicts itself."""
    reason = _contradiction(record)
    if reason:
        raise ValueError(reason)
    header = json.dumps(
        {
            "tenant": key.tenant,
            "source_id": key.source_id,
            "step": key.step,
            "dtype": record.dtype,
            "shape": record.shape,
            "checksum": _checksum(record.data),
        }
    ).encode()
    if len(header) > MAX_HEADER_BYTES:
        raise ValueError(f"expected a header of at most {MAX_HEADER_BYTES} bytes, got {len(header)}: shorten the ids")
    return b"".join((MAGIC, struct.pack("<I", len(header)), header, record.data))


def decode(key: LatentKey, blob: bytes) -> LatentRecord | None:
    """Return the record, or log why the bytes are not one for `key` and return `None`."""
    try:
        return _decode(key, blob)
    except (ValueError, KeyError, TypeError, RecursionError, struct.error) as error:
        logger.warning("step %d of %s is unreadable and counts as missing: %s", key.step, key.source_id, error)
        return None


def _decode(key: LatentKey, blob: bytes) -> LatentRecord:
    if blob[:4] != MAGIC:
        raise ValueError("not a latent")
    (header_bytes,) = struct.unpack_from("<I", blob, 4)
    if header_bytes > MAX_HEADER_BYTES:
        raise ValueError(f"header of {header_bytes} bytes")
    header = json.loads(blob[8 : 8 + header_bytes])
    if (header["tenant"], header["source_id"], header["step"]) != (key.tenant, key.source_id, key.step):
        raise ValueError("stored under the key of another latent")
    data = blob[8 + header_bytes :]
    record = LatentRecord(dtype=header["dtype"], shape=tuple(header["shape"]), data=data)
    reason = _contradiction(record)
    if reason:
        raise ValueError(reason)
    if header["checksum"] != _checksum(data):
        raise ValueError("checksum mismatch")
    return record


def _contradiction(record: LatentRecord) -> str:
    """Say what is wrong with dtype, shape or length; empty when nothing is."""
    if record.dtype not in ITEM_BYTES:
        return f"expected a dtype of {', '.join(ITEM_BYTES)}, got {record.dtype!r}"
    if len(record.shape) > MAX_DIMS or not all(type(size) is int and size > 0 for size in record.shape):
        return f"expected at most {MAX_DIMS} positive sizes, got shape {record.shape}"
    expected = math.prod(record.shape) * ITEM_BYTES[record.dtype]
    if len(record.data) != expected:
        return f"expected {expected} bytes for {record.dtype} {record.shape}, got {len(record.data)}"
    return ""


def _checksum(data: bytes) -> str:
    return hashlib.blake2b(data, digest_size=16).hexdigest()
