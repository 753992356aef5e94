"""Conformance suites of the contracts, shipped with them: a backend's test subclasses one and says how to make it.

Needs pytest and hypothesis; nothing else of this package imports it.
"""

from cache_store.testing.entries import EntryStoreConformance
from cache_store.testing.index import IndexMachine, VectorIndexConformance
from cache_store.testing.latents import LatentStoreConformance

__all__ = ["EntryStoreConformance", "IndexMachine", "LatentStoreConformance", "VectorIndexConformance"]
