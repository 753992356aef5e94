"""A benchmark says how its figures were made, and the retrieval one gives the keys it promises."""

import json
import math
import sys

import pytest

from benchmarks import retrieval
from benchmarks.report import Report, describe
from benchmarks.retrieval import PromptVectors, measure
from cache_store.index.exact import ExactIndex


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str) -> str:
    monkeypatch.setattr(sys, "argv", ["retrieval", "--sizes", "1000", "--queries", "3", *options])
    monkeypatch.setitem(sys.modules, "chromadb", None)  # as on a machine without the extra
    retrieval.main()
    return capsys.readouterr().out


def test_json_holds_the_figures_and_how_they_were_made(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = json.loads(run(monkeypatch, capsys, "--json", "--seed", "5"))
    assert set(document) >= {"hardware", "versions", "commit", "seed", "command", "parameters", "rows", "summary"}
    assert document["hardware"].keys() == {"cpu", "cores", "memory_bytes", "gpu"}
    assert document["seed"] == 5
    assert document["summary"].keys() == {"faiss_1k_ms", "recall_1k"}
    assert document["summary"]["recall_1k"] == 1
    assert any("chromadb is not installed" in note for note in document["notes"])


def test_table_has_one_line_per_row(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    lines = run(monkeypatch, capsys).splitlines()
    assert lines[0].split()[:3] == ["vectors", "index", "median_ms"]
    assert [line.split()[1] for line in lines[1:3]] == ["flat", "ivf"]


def test_figures_that_are_not_numbers_are_refused() -> None:
    document = describe(Report(name="x", parameters={}, rows=[], summary={"ratio": math.nan}), seed=0)
    with pytest.raises(ValueError, match="JSON compliant"):
        json.dumps(document, allow_nan=False)


def test_recall_of_the_oracle_is_one() -> None:
    world = PromptVectors(1)
    row = measure(ExactIndex(retrieval.DIM), world, 500, world.draw(10, 0))
    assert row["recall"] == 1
