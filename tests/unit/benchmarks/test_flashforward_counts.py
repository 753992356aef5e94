"""The counts benchmark gives the paper's figures and refuses lists that are not their formulas."""

import json
import sys

import pytest

from benchmarks import flashforward_counts
from benchmarks.flashforward_counts import cases, checked_walk
from reprise.flashforward.layout import Layout


def test_json_holds_every_schedule_and_the_figures_of_the_paper(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["flashforward_counts", "--json", "--latents", "2", "81", "--many-chunks", "50"])
    flashforward_counts.main()
    document = json.loads(capsys.readouterr().out)
    summary = document["summary"]
    assert summary.pop("list_s") > 0
    assert summary == {
        "flashforward": 123,
        "self_forcing": 134,
        "hiar": 212,
        "executed_flashforward": 123,
        "executed_self_forcing": 134,
        "executed_hiar": 212,
        "breakeven_hiar_21": 0.83,
        "breakeven_hiar_261": 0.52,
        "breakeven_self_forcing_21": 2.27,
        "breakeven_self_forcing_261": 3.21,
    }
    rows = document["rows"]
    assert len(rows) == 2 * len(list(cases()))
    assert all(row["forwards"] == row["forwards_formula"] for row in rows)
    assert all(row["makespan"] == row["makespan_formula"] for row in rows)
    assert [row["break_even_hiar"] for row in rows if "break_even_hiar" in row] == [None, pytest.approx(15 / 26)]


def test_a_list_that_is_not_its_formula_ends_the_command() -> None:
    case = next(cases())._replace(makespan=lambda _layout: 1.0)
    with pytest.raises(SystemExit, match="flashforward, one worker, 21 latents: the list has"):
        checked_walk(case, Layout(num_latents=21))
