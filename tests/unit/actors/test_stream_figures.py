"""Figures of live streams while they play, against the report that is read from the same steps afterwards."""

import pytest

from actors.stream_figures import StreamFigures, StreamWatch
from reprise.speculative.estimator import EstimatorConfig
from reprise.speculative.events import Fallback
from reprise.speculative.machine import MachineConfig
from reprise.speculative.report import read_report
from reprise.speculative.simulation import simulate
from tests.unit.speculative.test_log import call


@pytest.mark.parametrize("fallback", Fallback)
def test_figures_are_those_of_the_report(fallback: Fallback) -> None:
    config = MachineConfig(
        chunk_groups=4, group_s=0.5, estimator=EstimatorConfig(initial_s=0.4), fallback=fallback, retry_s=0.2
    )
    steps = simulate(config, [1.3, 3.1, 3.2, 7.7, 20.9], until_s=60, call=call)
    figures = StreamFigures()
    watch = StreamWatch(figures)
    taken = []
    for number, step in enumerate(steps):
        watch.see(step.event, step.commands, step.now)
        if number % 7 == 0:
            taken.append(figures.take())
    taken.append(figures.take())
    report = read_report(steps, group_s=0.5)
    assert [wait for one in taken for wait in one.starts_s] == pytest.approx([report.startup_s])
    assert [wait for one in taken for wait in one.changes_s] == pytest.approx(list(report.responses_s))
    assert sum(one.num_underruns for one in taken) == report.num_underruns > 0
    assert sum(one.num_discarded for one in taken) == report.num_discarded > 0
    assert figures.take() == StreamFigures()
