"""How long a top-1 look-up takes: our indexes and Chroma, 768-d, one thread, side by side (Chorus appendix B.2).

The vectors are clustered as prompt embeddings are: a direction that all share, topics of uneven size, sub-topics, and
noise whose spectrum decays. Uniform vectors would have no neighbours to find. Queries are new draws.
"""

import argparse
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from typing import Final

import faiss
import numpy as np

from benchmarks.report import Report, Scalar, argument_parser, publish
from cache_store.contracts import FloatArray, VectorIndex
from cache_store.index.flat import FaissFlatIndex
from cache_store.index.ivf import FaissIvfIndex

DIM: Final = 768
CHUNK: Final = 20_000
"""Vectors made and added at a time, so that a million need no second copy."""
MAX_EXHAUSTIVE: Final = 100_000
"""The flat index and Chroma are measured up to this size."""
CHROMA_BATCH: Final = 2_000


class PromptVectors:
    """A world of clustered unit vectors; equal seeds give equal worlds."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        rng = np.random.default_rng(seed)
        self._shared, self._topics, self._subtopics = (_unit(rng, count) for count in (1, 500, 5_000))
        decay = np.arange(1, DIM + 1, dtype=np.float32) ** -0.5
        self._spectrum = rng.permutation(decay / np.linalg.norm(decay))

    def draw(self, count: int, part: int) -> FloatArray:
        """Return `count` vectors; other parts are other draws of the same world."""
        rng = np.random.default_rng([self._seed, part])
        topics = rng.zipf(1.3, count) % 500
        subtopics = (37 * topics + rng.zipf(1.5, count)) % 5_000
        noise = rng.standard_normal((count, DIM), dtype=np.float32) * self._spectrum
        rows = self._shared + 0.8 * self._topics[topics] + 0.6 * self._subtopics[subtopics] + 0.5 * noise
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        vectors: FloatArray = rows.astype(np.float32)
        return vectors

    def chunks(self, count: int) -> Iterator[FloatArray]:
        """Yield `count` vectors in parts."""
        for start in range(0, count, CHUNK):
            yield self.draw(min(CHUNK, count - start), 1 + start // CHUNK)


def _unit(rng: np.random.Generator, count: int) -> FloatArray:
    rows = rng.standard_normal((count, DIM), dtype=np.float32)
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    return rows


def measure(index: VectorIndex, world: PromptVectors, size: int, queries: FloatArray) -> dict[str, Scalar]:
    """Fill an index, and return build time, look-up time, recall against an exhaustive search, and removal time."""
    best, build_s, start_key = np.full(len(queries), -np.inf, np.float32), 0.0, 0
    for rows in world.chunks(size):
        begin = time.perf_counter()
        index.add(np.arange(start_key, start_key + len(rows)), rows)
        build_s += time.perf_counter() - begin
        start_key += len(rows)
        best = np.maximum(best, (queries @ rows.T).max(axis=1))
    found = np.array([index.nearest(query, 1)[0].score for query in queries])
    begin = time.perf_counter()
    index.remove(np.array([size // 2]))
    removal_ms = 1_000 * (time.perf_counter() - begin)
    times = lookup_times_ms(lambda query: index.nearest(query, 1), queries)
    return {
        "median_ms": statistics.median(times),
        "p95_ms": float(np.quantile(times, 0.95)),
        "recall": float(np.mean(found >= best - 1e-5)),  # a tie in the last bits is no miss
        "build_s": build_s,
        "remove_ms": removal_ms,
    }


def lookup_times_ms(look_up: Callable[[FloatArray], object], queries: FloatArray) -> list[float]:
    """Time each query on its own."""
    times = []
    for query in queries:
        begin = time.perf_counter()
        look_up(query)
        times.append(1_000 * (time.perf_counter() - begin))
    return times


def measure_chroma(world: PromptVectors, size: int, queries: FloatArray, limit_s: float) -> dict[str, Scalar] | None:
    """Do the same with Chroma; `None` when it has not taken up the vectors within the limit."""
    import chromadb
    from chromadb.config import Settings

    client = chromadb.EphemeralClient(Settings(anonymized_telemetry=False))
    collection = client.create_collection(f"prompts-{size}", metadata={"hnsw:space": "cosine"}, embedding_function=None)
    best, begin, count = np.full(len(queries), -np.inf, np.float32), time.perf_counter(), 0
    for rows in world.chunks(size):
        for start in range(0, len(rows), CHROMA_BATCH):
            batch = rows[start : start + CHROMA_BATCH]
            collection.add(ids=[str(count + place) for place in range(len(batch))], embeddings=batch)
            count += len(batch)
            if time.perf_counter() - begin > limit_s:
                return None
        best = np.maximum(best, (queries @ rows.T).max(axis=1))
    build_s = time.perf_counter() - begin

    def look_up(query: FloatArray) -> float:
        answer = collection.query(query_embeddings=query[None], n_results=1, include=["distances"])
        return 1 - float(answer["distances"][0][0])

    found = np.array([look_up(query) for query in queries])
    times = lookup_times_ms(look_up, queries)
    client.delete_collection(f"prompts-{size}")
    return {
        "median_ms": statistics.median(times),
        "p95_ms": float(np.quantile(times, 0.95)),
        "recall": float(np.mean(found >= best - 1e-4)),  # Chroma returns 1 - cosine, rounded once more
        "build_s": build_s,
    }


def run(options: argparse.Namespace) -> Report:
    """Measure every size."""
    faiss.omp_set_num_threads(1)  # with more threads than free cores one query gets slower, not faster
    world = PromptVectors(options.seed)
    queries = world.draw(options.queries, 0)
    rows: list[dict[str, Scalar]] = []
    summary: dict[str, float] = {}
    notes: list[str] = []
    for size in options.sizes:
        label = _label(size)
        if size <= MAX_EXHAUSTIVE:
            rows.append({"vectors": size, "index": "flat", **measure(FaissFlatIndex(DIM), world, size, queries)})
        row = measure(FaissIvfIndex(DIM), world, size, queries)
        rows.append({"vectors": size, "index": "ivf", **row})
        summary |= {f"faiss_{label}_ms": _number(row, "median_ms"), f"recall_{label}": _number(row, "recall")}
        gc.collect()  # an index of 3 GB goes before the next is made
    for size in (size for size in options.sizes if size <= MAX_EXHAUSTIVE):
        try:
            chroma = measure_chroma(world, size, queries, options.chroma_limit_s)
        except ImportError:
            notes.append("chromadb is not installed and was left out: pip install 'reprise[bench]'")
            break
        if chroma is None:
            notes.append(f"Chroma did not take up {size} vectors within {options.chroma_limit_s:g} s")
            continue
        rows.append({"vectors": size, "index": "chroma", **chroma})
        summary[f"chroma_{_label(size)}_ms"] = _number(chroma, "median_ms")
    notes.append("the ivf index compares with all vectors below 16,384 and with the nearest lists above")
    parameters: dict[str, Scalar] = {
        "dim": DIM, "queries": options.queries, "neighbours": 1, "faiss_threads": 1,
        "sizes": " ".join(map(str, options.sizes)), "chroma_limit_s": options.chroma_limit_s, "vectors": "clustered",
    }  # fmt: skip
    return Report(name="retrieval", parameters=parameters, rows=rows, summary=summary, notes=notes)


def _number(row: dict[str, Scalar], name: str) -> float:
    value = row[name]
    assert isinstance(value, float)
    return value


def _label(size: int) -> str:
    return f"{size // 1_000_000}m" if size % 1_000_000 == 0 else f"{size // 1_000}k" if size % 1_000 == 0 else str(size)


def main() -> None:
    """Parse the options and print the report."""
    parser = argument_parser("Time of a top-1 look-up, 768-d, one thread.")
    parser.add_argument("--sizes", type=int, nargs="+", default=[1_000, 100_000, 1_000_000], help="numbers of vectors")
    parser.add_argument("--queries", type=int, default=300, help="look-ups per size")
    parser.add_argument("--chroma-limit-s", type=float, default=180.0, help="longest time Chroma may take to load")
    options = parser.parse_args()
    publish(run(options), options)


if __name__ == "__main__":
    main()
