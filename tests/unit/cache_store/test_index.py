"""Every index backend passes the shipped suite and agrees with the oracle; the inverted lists keep their recall."""

import numpy as np
import pytest
from hypothesis import settings

from cache_store.contracts import VectorIndex
from cache_store.index.exact import ExactIndex
from cache_store.index.flat import FaissFlatIndex
from cache_store.index.ivf import FaissIvfIndex
from cache_store.testing import IndexMachine, VectorIndexConformance
from cache_store.testing.samples import unit_vectors


class TestExactIndex(VectorIndexConformance):
    def make(self, dim: int) -> VectorIndex:
        return ExactIndex(dim)


class TestFaissFlatIndex(VectorIndexConformance):
    def make(self, dim: int) -> VectorIndex:
        return FaissFlatIndex(dim)


class TestFaissIvfIndex(VectorIndexConformance):
    def make(self, dim: int) -> VectorIndex:
        return FaissIvfIndex(dim, train_at=16)  # lists are made within the suite


class FlatMachine(IndexMachine):
    def make(self) -> VectorIndex:
        return FaissFlatIndex(8)


class IvfMachine(IndexMachine):
    """With so few lists every one is searched, so the answers must be exact through every retraining."""

    def make(self) -> VectorIndex:
        return FaissIvfIndex(8, train_at=16)


TestFlatMachine = FlatMachine.TestCase
TestIvfMachine = IvfMachine.TestCase
TestFlatMachine.settings = TestIvfMachine.settings = settings(max_examples=20, stateful_step_count=25, deadline=None)


def test_ivf_finds_all_when_the_searched_lists_run_dry() -> None:
    index = FaissIvfIndex(8, train_at=2_000)
    index.add(np.arange(2_000), unit_vectors(2_000))
    index.remove(np.arange(1_990))
    assert {n.key for n in index.nearest(unit_vectors(1, seed=5)[0], 10)} == set(range(1_990, 2_000))


def test_ivf_keeps_its_recall_while_it_grows() -> None:
    """8,000 vectors around 200 centres: 99 of 100 best matches are the true ones, after two retrainings."""
    rng, dim = np.random.default_rng(3), 32
    centres = unit_vectors(200, dim=dim, seed=1)
    rows = centres[rng.integers(0, 200, 8_000)] + 0.6 * unit_vectors(8_000, dim=dim, seed=2)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    index, exact = FaissIvfIndex(dim, train_at=1_000), ExactIndex(dim)
    for part in np.split(np.arange(8_000), 8):
        index.add(part, rows[part])
    exact.add(np.arange(8_000), rows)
    queries = rows[::40] + 0.1 * unit_vectors(200, dim=dim, seed=4)
    queries /= np.linalg.norm(queries, axis=1, keepdims=True)
    found = [index.nearest(query, 1)[0].key == exact.nearest(query, 1)[0].key for query in queries]
    assert np.mean(found) >= 0.99


def test_ivf_searches_while_it_retrains(monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that comes in the middle of a retraining is answered from the old lists."""
    index, rows = FaissIvfIndex(8, train_at=100), unit_vectors(100)
    answers: list[int] = []
    retrain = index._retrain

    def search_inside() -> None:
        answers.append(index.nearest(rows[7], 1)[0].key)
        retrain()

    monkeypatch.setattr(index, "_retrain", search_inside)
    index.add(np.arange(100), rows)
    assert (answers, index.nearest(rows[7], 1)[0].key) == ([7], 7)
