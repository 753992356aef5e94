"""Small values for tests: unit vectors, keys, an entry."""

import numpy as np

from cache_store.contracts import EncoderTag, EntryRecord, FloatArray, KeyArray
from cache_store.entries.wire import embedding_bytes

DIM = 8
ENCODER = EncoderTag(name="test-clip", revision="1", dim=DIM)


def unit_vectors(count: int, *, dim: int = DIM, seed: int = 0) -> FloatArray:
    """Return random rows of norm 1."""
    rows: FloatArray = np.random.default_rng(seed).standard_normal((count, dim)).astype(np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def keys_of(*keys: int) -> KeyArray:
    """Return an array of keys."""
    return np.array(keys, np.int64)


def some_entry(
    *, tenant: str = "default", source_id: str = "video_1", seed: int = 0, num_bytes: int = 100
) -> EntryRecord:
    """Return an entry with a random embedding."""
    return EntryRecord(
        source_id=source_id,
        tenant=tenant,
        partition="p",
        vector_id=seed + 1,
        prompt="a red ball rolls over sand",
        seed=2**63 - 1,
        embedding=embedding_bytes(unit_vectors(1, seed=seed)[0]),
        encoder=ENCODER,
        steps=(0, 5, 10),
        num_steps=50,
        num_bytes=num_bytes,
        created_at=1_000.0,
        expires_at=1_000.0 + 3_600,
        last_used_at=1_000.0,
    )
