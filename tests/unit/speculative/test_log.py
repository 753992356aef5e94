"""Logs that are replayed, reports that are read from them, and the diagram."""

import json
import pathlib

import pytest

from reprise.speculative.estimator import EstimatorConfig
from reprise.speculative.events import Fallback, Launch
from reprise.speculative.log import Divergence, header_line, replay, step_line
from reprise.speculative.machine import MachineConfig
from reprise.speculative.report import read_report
from reprise.speculative.simulation import Call, simulate
from reprise.speculative.transitions import draw

DOCUMENT = pathlib.Path(__file__).parents[3] / "docs" / "stream-protocol.md"
CONFIG = MachineConfig(chunk_groups=4, group_s=0.5, estimator=EstimatorConfig(initial_s=0.4))


def call(launch: Launch) -> Call:
    """Every third call fails, every fifth takes five times as long."""
    if launch.job % 3 == 2:
        return Call(ready_s=[], slot_s=0.1)
    slow = 5 if launch.job % 5 == 4 else 1
    return Call(ready_s=[slow * (0.3 + 0.01 * group) for group in range(launch.num_groups)], slot_s=slow * 0.4)


def log_lines() -> list[str]:
    steps = simulate(CONFIG, [1.3, 3.1, 3.2, 7.7], until_s=12, call=call)
    return [header_line(CONFIG), *map(step_line, steps)]


def test_a_log_gives_the_same_decisions_again() -> None:
    lines = log_lines()
    assert [step_line(step) for step in replay(lines)] == lines[1:]
    report = read_report(replay(lines), group_s=0.5)
    assert len(report.responses_s) + report.num_superseded == 4
    assert report.num_underruns > 0
    assert 0 < report.stall_share < 0.5
    assert 0 < report.activity < 1


@pytest.mark.parametrize("fallback", Fallback)
def test_a_minute_of_any_fallback_plays_as_much_as_it_did_not_stall(fallback: Fallback) -> None:
    config = MachineConfig(
        chunk_groups=4, group_s=0.5, estimator=EstimatorConfig(initial_s=0.4), fallback=fallback, retry_s=0.2
    )
    report = read_report(simulate(config, [5.2, 20.9, 33.3], until_s=60, call=call), group_s=0.5)
    assert report.num_delivered * 0.5 + report.stalled_s == pytest.approx(report.played_s, abs=2.0)


def test_a_log_that_decides_otherwise_is_told() -> None:
    lines = log_lines()
    record = json.loads(lines[5])
    record["commands"] = [{"command": "Start"}]
    with pytest.raises(Divergence, match="line 6"):
        replay([*lines[:5], json.dumps(record), *lines[6:]])


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "line 1"),
        (['{"config": {"chunk_groups": 4}}'], "line 1"),
        ([header_line(CONFIG), "nonsense"], "line 2"),
        ([header_line(CONFIG), '{"at": 0, "event": "Explode", "commands": []}'], "line 2"),
        ([header_line(CONFIG), '{"at": 0, "event": "Update", "commands": []}'], "line 2"),
    ],
)
def test_what_is_no_log_is_refused_with_its_line(lines: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        replay(lines)


def test_the_documents_show_the_table_as_it_is() -> None:
    assert f"```mermaid\n{draw()}\n```" in DOCUMENT.read_text()
