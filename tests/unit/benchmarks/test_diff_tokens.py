"""The benchmark of differing words: its counts, its labels, both engines, and what it says when the data is missing."""

import json
import pathlib
import sys
from typing import Any

import pytest

from benchmarks import diff_tokens
from benchmarks.diff_tokens import SEEN, UNSEEN, Tally, read_pairs, tiny_pairs
from reprise.tinyworld import read_prompt
from tests.fakes.chat_server import chat_server, unused_port

ROW: dict[str, Any] = {
    "source": "A red-hot pan, on the stove.",
    "target": "A blue pan, on a stove.",
    "edits": [
        {"op": "replace", "from": "red-hot", "to": "blue", "src_span": [1, 2], "dst_span": [1, 2]},
        {"op": "replace", "from": "the", "to": "a", "src_span": [5, 6], "dst_span": [5, 6]},
    ],
}


@pytest.fixture
def data(monkeypatch: pytest.MonkeyPatch, tmp_path: pathlib.Path) -> pathlib.Path:
    """A data folder with the same two pairs in every set; in the second nothing of meaning changes."""
    folder = tmp_path / "edit_pairs"
    folder.mkdir()
    same = ROW | {"source": "A blue pan, on the stove.", "edits": ROW["edits"][1:]}
    for name in (*SEEN, *UNSEEN):
        (folder / f"{name}.jsonl").write_text(f"{json.dumps(ROW)}\n{json.dumps(same)}\n")
    monkeypatch.setattr(diff_tokens, "DATA", tmp_path)
    return folder


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["diff_tokens", "--json", "--tiny-pairs", "5", *options])
    diff_tokens.main()
    return json.loads(capsys.readouterr().out)


@pytest.mark.usefixtures("data")
def test_labels_are_places_of_words() -> None:
    pair, _ = read_pairs("tgve_304")
    assert {pair.source[slice(*place)] for place in pair.removed} == {"red-hot", "the"}
    assert {pair.target[slice(*place)] for place in pair.added} == {"blue", "a"}


@pytest.mark.usefixtures("data")
def test_without_an_endpoint_the_model_is_null(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    document = run(monkeypatch, capsys)
    assert list(document["summary"]) == ["aligner_f1", "aligner_ms", "llm_f1", "llm_ms"]
    assert document["summary"]["aligner_f1"] == 1
    assert document["summary"]["aligner_ms"] > 0
    assert (document["summary"]["llm_f1"], document["summary"]["llm_ms"]) == (None, None)
    rows = {row["set"]: row for row in document["rows"]}
    assert list(rows) == [*SEEN, *UNSEEN, "tiny_world", "all unseen"]
    assert [rows[name]["seen"] for name in rows] == [True, False, False, True, False]
    assert rows["tgve_304"]["f1"] == 1
    assert rows["tgve_304"]["f1_all_words"] == pytest.approx(2 * 2 / (2 * 2 + 4))  # two of six: no articles
    assert rows["all unseen"]["pairs"] == 4


@pytest.mark.usefixtures("data")
def test_the_model_is_measured_beside_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    said = json.dumps({"removed": ["red-hot", "stove"], "added": ["blue"], "object": None})
    with chat_server(lambda _: said) as server:
        options = ("--base-url", server.base_url, "--model", "m", "--llm-pairs", "1")
        document = run(monkeypatch, capsys, *options)
    rows = {row["set"]: row for row in document["rows"] if row["engine"] == "llm"}
    assert rows["tgve_304"]["pairs"] == 1
    assert (rows["tgve_304"]["precision"], rows["tgve_304"]["recall"]) == (pytest.approx(2 / 3), 1)
    assert rows["tiny_world"]["unanswered"] == 1  # its words are in none of those prompts
    assert document["summary"]["llm_f1"] == pytest.approx(0.8)
    assert document["summary"]["llm_ms"] > 0


@pytest.mark.usefixtures("data")
def test_no_answer_counts_as_nothing_found(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"http://127.0.0.1:{unused_port()}/v1"
    document = run(monkeypatch, capsys, "--base-url", url, "--model", "m")
    rows = {row["set"]: row for row in document["rows"] if row["engine"] == "llm"}
    assert (rows["tgve_304"]["unanswered"], rows["tgve_304"]["recall"]) == (2, 0)
    assert document["summary"]["llm_f1"] == 0


def test_missing_data_is_named(data: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (data / "tgve_304.jsonl").unlink()
    monkeypatch.setattr(sys, "argv", ["diff_tokens"])
    with pytest.raises(SystemExit, match=r"tgve_304\.jsonl is missing: set REPRISE_DATA"):
        diff_tokens.main()


def test_half_an_endpoint_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run(monkeypatch, capsys, "--base-url", "http://127.0.0.1/v1")
    assert "--base-url and --model go together" in capsys.readouterr().err


def test_a_tally() -> None:
    tally = Tally()
    tally.add(frozenset({(0, 1), (2, 3), (4, 5)}), frozenset({(0, 1), (8, 9)}))
    assert [tally.precision(), tally.recall(), tally.f1()] == pytest.approx([1 / 2, 1 / 3, 2 / 5])
    assert (Tally().precision(), Tally().recall(), Tally().f1()) == (1, 1, 1)


def test_labels_of_the_tiny_world_are_what_changed() -> None:
    for pair in tiny_pairs(200, seed=3):
        old, new = read_prompt(pair.source), read_prompt(pair.target)
        assert old is not None
        assert new is not None
        if old == new:
            assert pair.removed | pair.added == frozenset()
        else:
            assert pair.removed | pair.added
