"""The stored form of an entry: JSON of what never changes, the raw embedding, a checksum, and three counters.

Nothing is ever unpickled, and what was not written by us, or for another encoder, reads as missing.
"""

import dataclasses
import hashlib
import json
import logging
import math
from collections.abc import Mapping
from typing import Final

import numpy as np

from cache_store.contracts import EncoderTag, EntryRecord, FloatArray
from cache_store.index.validate import UNIT_TOLERANCE

logger = logging.getLogger(__name__)

COUNTERS: Final = ("uses", "steps_saved", "last_used_at")


def embedding_bytes(vector: FloatArray) -> bytes:
    """Return a vector as little-endian float32."""
    return np.ascontiguousarray(vector, dtype="<f4").tobytes()


def embedding_vector(embedding: bytes) -> FloatArray:
    """Return the vector of `embedding_bytes`."""
    return np.frombuffer(embedding, dtype="<f4").astype(np.float32)


def to_fields(record: EntryRecord) -> dict[str, bytes]:
    """Return the fields of the stored hash."""
    values = dataclasses.asdict(record)
    embedding = values.pop("embedding")
    counters = {name: json.dumps(values.pop(name)).encode() for name in COUNTERS}
    facts = json.dumps(values).encode()
    return {"facts": facts, "embedding": embedding, "checksum": _checksum(facts, embedding), **counters}


def from_fields(fields: Mapping[bytes, bytes], encoder: EncoderTag) -> EntryRecord | None:
    """Return the record, or log why the fields are not an entry of `encoder` and return `None`."""
    try:
        return _from_fields(fields, encoder)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        logger.warning("an entry is unreadable and counts as missing: %s: %s", type(error).__name__, error)
        return None


def _from_fields(fields: Mapping[bytes, bytes], encoder: EncoderTag) -> EntryRecord:
    facts, embedding = fields[b"facts"], fields[b"embedding"]
    if fields[b"checksum"] != _checksum(facts, embedding):
        raise ValueError("checksum mismatch")
    values = json.loads(facts)
    values["encoder"] = EncoderTag(**values["encoder"])
    values["steps"] = tuple(values["steps"])
    last_used_at = float(fields[b"last_used_at"])
    if values["encoder"] != encoder:
        raise ValueError(f"expected an embedding of {encoder}, got {values['encoder']}")
    if len(embedding) != 4 * encoder.dim or not math.isfinite(last_used_at):
        raise ValueError(f"expected {encoder.dim} numbers and a time, got {len(embedding)} bytes and {last_used_at}")
    if not abs(float(np.linalg.norm(embedding_vector(embedding))) - 1) <= UNIT_TOLERANCE:
        raise ValueError("the embedding is not a unit vector")
    uses, steps_saved = int(fields[b"uses"]), int(fields[b"steps_saved"])
    return EntryRecord(**values, embedding=embedding, uses=uses, steps_saved=steps_saved, last_used_at=last_used_at)


def _checksum(facts: bytes, embedding: bytes) -> bytes:
    return hashlib.blake2b(len(facts).to_bytes(8, "little") + facts + embedding, digest_size=16).hexdigest().encode()
