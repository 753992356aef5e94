"""Checks shared by every index: a wrong vector is refused before it reaches a library that would crash."""

from typing import Final

import numpy as np
from numpy.typing import ArrayLike

from cache_store.contracts import FloatArray, KeyArray, Neighbor

UNIT_TOLERANCE: Final = 1e-3
"""How far a norm may be from 1; float32 rounding stays a thousand times below, bfloat16 encoders do not."""


def checked_batch(keys: KeyArray, vectors: FloatArray, dim: int) -> tuple[KeyArray, FloatArray]:
    """Return contiguous int64 keys and float32 unit rows, or raise ValueError."""
    keys = np.ascontiguousarray(keys, dtype=np.int64)
    rows = np.ascontiguousarray(vectors, dtype=np.float32)
    if rows.ndim != 2 or rows.shape[1] != dim:
        raise ValueError(f"expected vectors of dimension {dim}, got shape {rows.shape}: was another encoder used?")
    if keys.shape != (len(rows),):
        raise ValueError(f"expected one key per vector, got keys of shape {keys.shape} for {len(rows)} vectors")
    if len(np.unique(keys)) != len(keys) or (keys < 0).any():
        raise ValueError("expected distinct keys that are not negative: draw them from EntryStore.next_vector_id")
    _check_unit(rows)
    return keys, rows


def checked_query(vector: FloatArray, dim: int, count: int) -> FloatArray:
    """Return the query as one float32 unit row, or raise ValueError."""
    query = np.ascontiguousarray(vector, dtype=np.float32)
    if query.shape != (dim,):
        raise ValueError(f"expected a query of dimension {dim}, got shape {query.shape}: was another encoder used?")
    if count < 1:
        raise ValueError(f"expected count of at least 1, got {count}")
    _check_unit(query[None])
    return query[None]


def _check_unit(rows: FloatArray) -> None:
    """Refuse rows whose inner product would not be a cosine."""
    norms = np.linalg.norm(rows, axis=1)
    if not (np.abs(norms - 1) <= UNIT_TOLERANCE).all():  # also false for NaN
        raise ValueError(f"expected unit vectors, got norms of {norms.min():.4g} to {norms.max():.4g}: normalise them")


def ranked(keys: ArrayLike, scores: ArrayLike) -> list[Neighbor]:
    """Order neighbours best first, equal scores by key; faiss marks an empty place with key -1."""
    pairs = zip(np.asarray(keys).tolist(), np.asarray(scores).tolist(), strict=True)
    found = [Neighbor(int(key), float(score)) for key, score in pairs if key >= 0]
    return sorted(found, key=lambda neighbor: (-neighbor.score, neighbor.key))
