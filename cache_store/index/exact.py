"""The oracle: every score computed with numpy. Slow to change, obviously right; other indexes are tested against it."""

import threading

import numpy as np

from cache_store.contracts import FloatArray, KeyArray, Neighbor
from cache_store.index.validate import checked_batch, checked_query, ranked


class ExactIndex:
    """A matrix of vectors beside an array of keys."""

    def __init__(self, dim: int) -> None:
        self._vectors: FloatArray = np.empty((0, dim), np.float32)
        self._keys: KeyArray = np.empty(0, np.int64)
        self._lock = threading.Lock()

    @property
    def dim(self) -> int:
        """Length of every vector."""
        return int(self._vectors.shape[1])

    def add(self, keys: KeyArray, vectors: FloatArray) -> None:
        """Store one row per key; a key that is present already gets the new vector."""
        keys, vectors = checked_batch(keys, vectors, self.dim)
        with self._lock:
            kept = ~np.isin(self._keys, keys)
            self._vectors = np.concatenate([self._vectors[kept], vectors])
            self._keys = np.concatenate([self._keys[kept], keys])

    def remove(self, keys: KeyArray) -> int:
        """Forget the keys, ignoring unknown ones; return how many were there."""
        with self._lock:
            kept = ~np.isin(self._keys, keys)
            self._vectors, self._keys = self._vectors[kept], self._keys[kept]
            return int((~kept).sum())

    def nearest(self, vector: FloatArray, count: int) -> list[Neighbor]:
        """Return `min(count, len(self))` neighbours, best first, equal scores by key."""
        query = checked_query(vector, self.dim, count)
        with self._lock:
            vectors, keys = self._vectors, self._keys
        scores = vectors @ query[0]
        best = np.lexsort((keys, -scores))[:count]
        return ranked(keys[best], scores[best])

    def __len__(self) -> int:
        return len(self._keys)
