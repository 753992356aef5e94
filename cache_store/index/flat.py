"""Exact search in faiss: inner product over all vectors, explicit ids. The embedded default, best below 20,000.

Knows nothing about entries or partitions.
"""

import threading

import faiss
import numpy as np

from cache_store.contracts import FloatArray, KeyArray, Neighbor
from cache_store.index.validate import checked_batch, checked_query, ranked


class FaissFlatIndex:
    """One lock around every call: a faiss index that changes under a search crashes or gives wrong ids.

    Invariant: `_keys` holds exactly the ids in the faiss index.
    """

    def __init__(self, dim: int) -> None:
        self._dim = dim
        self._index = faiss.IndexIDMap2(faiss.IndexFlatIP(dim))  # never implicit ids: they shift on removal
        self._keys: set[int] = set()
        self._lock = threading.Lock()

    @property
    def dim(self) -> int:
        """Length of every vector."""
        return self._dim

    def add(self, keys: KeyArray, vectors: FloatArray) -> None:
        """Store one row per key; a key that is present already gets the new vector."""
        keys, vectors = checked_batch(keys, vectors, self._dim)
        with self._lock:
            self._remove(keys)
            self._index.add_with_ids(vectors, keys)
            self._keys.update(keys.tolist())

    def remove(self, keys: KeyArray) -> int:
        """Forget the keys, ignoring unknown ones; return how many were there."""
        with self._lock:
            return self._remove(keys)

    def _remove(self, keys: KeyArray) -> int:
        known = self._keys.intersection(keys.tolist())
        if known:  # faiss walks over all vectors even for an unknown id
            self._index.remove_ids(np.fromiter(known, np.int64))  # type: ignore[arg-type]  # its stub omits arrays
            self._keys -= known
        return len(known)

    def nearest(self, vector: FloatArray, count: int) -> list[Neighbor]:
        """Return `min(count, len(self))` neighbours, best first, equal scores by key."""
        query = checked_query(vector, self._dim, count)
        with self._lock:
            count = min(count, len(self._keys))
            if count == 0:
                return []
            scores, keys = self._index.search(query, count)
        return ranked(keys[0], scores[0])

    def __len__(self) -> int:
        return len(self._keys)
