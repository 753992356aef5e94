"""What every VectorIndex must do: a suite of cases, and a Hypothesis machine against ExactIndex."""

import threading
from abc import ABC, abstractmethod

import numpy as np
import pytest
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, initialize, invariant, rule

from cache_store.contracts import FloatArray, VectorIndex
from cache_store.index.exact import ExactIndex
from cache_store.testing.samples import DIM, keys_of, unit_vectors

SCORE_TOLERANCE = 1e-5
"""Two libraries sum a dot product of 8 float32 in different orders."""


def assert_same_answers(index: VectorIndex, oracle: ExactIndex, query: FloatArray, count: int) -> None:
    """Compare scores in order, and keys wherever the scores leave no choice."""
    expected, found = oracle.nearest(query, count), index.nearest(query, count)
    assert [n.score for n in found] == pytest.approx([n.score for n in expected], abs=SCORE_TOLERANCE)
    true_score = {n.key: n.score for n in oracle.nearest(query, max(len(oracle), 1))}
    for neighbor in found:
        assert neighbor.score == pytest.approx(true_score[neighbor.key], abs=SCORE_TOLERANCE)
    assert len({n.key for n in found}) == len(found)


class VectorIndexConformance(ABC):
    """What every index must do; one that is approximate must be exact at this size."""

    @abstractmethod
    def make(self, dim: int) -> VectorIndex:
        """Return an empty index."""

    def filled(self, count: int = 20) -> VectorIndex:
        """Return an index of random vectors under keys 100, 101, ..."""
        index = self.make(DIM)
        index.add(np.arange(100, 100 + count), unit_vectors(count))
        return index

    def test_empty_index_finds_nothing(self) -> None:
        """An index starts empty."""
        index = self.make(DIM)
        assert (index.dim, len(index), index.nearest(unit_vectors(1)[0], 3)) == (DIM, 0, [])

    def test_a_vector_is_its_own_nearest(self) -> None:
        """The best match of a stored vector is itself, at similarity 1."""
        index = self.filled()
        for row, vector in enumerate(unit_vectors(20)):
            (best,) = index.nearest(vector, 1)
            assert best.key == 100 + row
            assert best.score == pytest.approx(1, abs=SCORE_TOLERANCE)

    def test_count_is_bounded_by_the_length(self) -> None:
        """More neighbours than there are vectors: all of them."""
        assert len(self.filled(5).nearest(unit_vectors(1)[0], 50)) == 5

    def test_removed_keys_are_not_found(self) -> None:
        """Removal leaves the other keys as they were."""
        index = self.filled()
        assert index.remove(keys_of(103, 104, 999)) == 2
        assert index.remove(keys_of(103)) == 0
        assert {n.key for n in index.nearest(unit_vectors(20)[3], 50)} == set(range(100, 120)) - {103, 104}

    def test_adding_a_key_again_replaces_its_vector(self) -> None:
        """One key has one vector."""
        index = self.filled()
        other = unit_vectors(1, seed=9)
        index.add(keys_of(107), other)
        assert len(index) == 20
        assert index.nearest(other[0], 1)[0].key == 107
        assert index.nearest(unit_vectors(20)[7], 1)[0].key != 107

    def test_equal_vectors_under_different_keys_are_all_found(self) -> None:
        """Duplicates are not merged; their scores may differ in the last bit, so their order is open."""
        index = self.make(DIM)
        index.add(keys_of(9, 4, 6), np.repeat(unit_vectors(1), 3, axis=0))
        assert {n.key for n in index.nearest(unit_vectors(1)[0], 3)} == {4, 6, 9}

    def test_wrong_dimension_names_both(self) -> None:
        """A vector of another encoder is refused before it can do harm."""
        index = self.filled()
        with pytest.raises(ValueError, match=r"dimension 8.*\(1, 5\)"):
            index.add(keys_of(1), unit_vectors(1, dim=5))
        with pytest.raises(ValueError, match=r"dimension 8.*\(5,\)"):
            index.nearest(unit_vectors(1, dim=5)[0], 1)
        assert len(index) == 20

    @pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, 2.0])
    def test_vectors_that_are_not_unit_are_refused(self, value: float) -> None:
        """NaN, infinity and wrong norms never get in, and are not searched for: the score would be no cosine."""
        index = self.filled()
        with pytest.raises(ValueError, match="unit vectors"):
            index.add(keys_of(1), np.full((1, DIM), value, np.float32))
        with pytest.raises(ValueError, match="unit vectors"):
            index.nearest(np.full(DIM, value, np.float32), 1)
        assert len(index) == 20

    def test_bad_calls_are_refused(self) -> None:
        """Repeated, negative or missing keys, a count of nothing."""
        index, two = self.filled(), unit_vectors(2)
        for keys in (keys_of(1, 1), keys_of(-1, 2), keys_of(1)):
            with pytest.raises(ValueError, match="expected"):
                index.add(keys, two)
        with pytest.raises(ValueError, match="count"):
            index.nearest(two[0], 0)

    def test_threads_never_see_a_wrong_id(self) -> None:
        """Searches run beside additions and removals; vectors that stay are found under their own keys."""
        index, stable = self.filled(), unit_vectors(20)
        stop, faults = threading.Event(), list[BaseException]()

        def search() -> None:
            try:
                while not stop.is_set():
                    for row, vector in enumerate(stable):
                        assert index.nearest(vector, 1)[0].key == 100 + row
            except BaseException as error:
                faults.append(error)

        def change(first: int) -> None:
            try:
                for turn in range(60):
                    keys = np.arange(first, first + 16)
                    index.add(keys, -unit_vectors(16, seed=first + turn % 3))
                    assert index.remove(keys) == 16
            except BaseException as error:
                faults.append(error)

        searchers = [threading.Thread(target=search) for _ in range(4)]
        writers = [threading.Thread(target=change, args=(first,)) for first in (1_000, 2_000)]
        for thread in (*searchers, *writers):
            thread.start()
        for thread in writers:
            thread.join()
        stop.set()
        for thread in searchers:
            thread.join()
        assert (faults, len(index)) == ([], 20)


class IndexMachine(RuleBasedStateMachine):
    """Random additions, replacements, removals and returns of removed keys, compared with ExactIndex at each step."""

    keys: Bundle[int] = Bundle("keys")

    def make(self) -> VectorIndex:
        """Return an empty index of dimension DIM; overridden by the backend's test."""
        raise NotImplementedError

    @initialize()
    def start(self) -> None:
        """Begin with both empty."""
        self.index, self.oracle = self.make(), ExactIndex(DIM)

    @rule(target=keys, key=st.integers(0, 2**62), seed=st.integers(0, 50))
    def add(self, key: int, seed: int) -> int:
        """Add a key; equal seeds give equal vectors."""
        for index in (self.index, self.oracle):
            index.add(keys_of(key), unit_vectors(1, seed=seed))
        return key

    @rule(key=keys, seed=st.integers(0, 50))
    def add_again(self, key: int, seed: int) -> None:
        """Replace a vector, or bring a removed key back."""
        self.add(key, seed)

    @rule(first=st.integers(0, 1_000), count=st.integers(1, 80), seed=st.integers(0, 50))
    def add_many(self, first: int, count: int, seed: int) -> None:
        """Add a range of keys, some of which may be there."""
        for index in (self.index, self.oracle):
            index.add(np.arange(first, first + count), unit_vectors(count, seed=seed))

    @rule(key=keys)
    def remove(self, key: int) -> None:
        """Remove a key that was added once."""
        assert self.index.remove(keys_of(key)) == self.oracle.remove(keys_of(key))

    @rule(first=st.integers(0, 1_000), count=st.integers(1, 80))
    def remove_many(self, first: int, count: int) -> None:
        """Remove a range of keys, known or not."""
        keys = np.arange(first, first + count)
        assert self.index.remove(keys) == self.oracle.remove(keys)

    @rule(seed=st.integers(0, 50), count=st.integers(1, 5))
    def search(self, seed: int, count: int) -> None:
        """Ask both."""
        assert_same_answers(self.index, self.oracle, unit_vectors(1, seed=seed)[0], count)

    @invariant()
    def same_length(self) -> None:
        """Both hold as many vectors."""
        if hasattr(self, "index"):
            assert len(self.index) == len(self.oracle)
