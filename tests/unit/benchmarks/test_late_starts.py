"""Changes of every kind differ in that one thing, and the benchmark gives the keys it promises."""

import json
import sys

import numpy as np
import pytest

from benchmarks import late_starts
from benchmarks.late_starts import KINDS, SINGLE, draw_changes


def test_changes_of_every_kind_differ_in_one_thing() -> None:
    changes = list(draw_changes(2, rng=np.random.default_rng(1)))
    assert sorted(change.kind for change in changes) == sorted(2 * KINDS)
    for change in changes:
        if change.kind in SINGLE:
            source, target = (
                {**vars_of(scene), **vars_of(scene.objects[0])} for scene in (change.source, change.target)
            )
            assert [name for name in SINGLE if source[name] != target[name]] == [change.kind]


def vars_of(value: object) -> dict[str, object]:
    return {name: getattr(value, name) for name in SINGLE if hasattr(value, name)}


def test_json_holds_a_row_for_every_kind_and_step(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["late_starts", "--json", "--pairs", "1"])
    late_starts.main()
    document = json.loads(capsys.readouterr().out)
    assert {(row["kind"], row["k1"]) for row in document["rows"]} == {(k, s) for k in KINDS for s in range(4)}
    assert document["summary"].keys() >= {"loss_1_motion", "loss_2_size", "loss_1_one_more"}
