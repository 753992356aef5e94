"""What a load test must keep to, read from thresholds.yaml, and what of it was missed."""

import dataclasses
import pathlib
from collections.abc import Mapping, Sequence
from typing import Final

import yaml

from load_tests.ledger import JobRow, Outcome

LONG_RUN: Final = 500
"""Requests from which on the hit rate is judged."""
PATH: Final = pathlib.Path(__file__).with_name("thresholds.yaml")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """Bounds on what became of jobs and streams; times are reported, not judged: they belong to the machine."""

    max_failed_jobs: int
    max_unfinished_jobs: int
    min_completed_jobs: int
    """A run in which nothing happened has proved nothing."""
    max_cancel_faults: int
    """Jobs that were there after their delete."""
    max_stream_faults: int
    """Live streams that broke, or in which a change was never seen."""
    min_hit_percent: int
    """In the last hundred requests of a run that has had five hundred or more, of which the cache is full enough."""


def read_thresholds(path: pathlib.Path = PATH) -> Thresholds:
    """Read the file; every key must be there and no other."""
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    names = {field.name for field in dataclasses.fields(Thresholds)}
    if not isinstance(values, dict) or set(values) != names or not all(type(v) is int for v in values.values()):
        raise ValueError(f"{path} must map {', '.join(sorted(names))} to whole numbers, got {values}")
    return Thresholds(**values)


def missed(thresholds: Thresholds, rows: Sequence[JobRow], tally: Mapping[str, int] | None = None) -> list[str]:
    """Say which bounds a run misses, with both numbers; empty when none."""
    outcomes = [row.outcome for row in rows]
    failed, unfinished, completed = (
        outcomes.count(outcome) for outcome in (Outcome.FAILED, Outcome.UNFINISHED, Outcome.COMPLETED)
    )
    found = []
    if failed > thresholds.max_failed_jobs:
        found.append(f"{failed} jobs failed, at most {thresholds.max_failed_jobs} may")
    if unfinished > thresholds.max_unfinished_jobs:
        found.append(f"{unfinished} jobs did not finish, at most {thresholds.max_unfinished_jobs} may")
    if completed < thresholds.min_completed_jobs:
        found.append(f"{completed} jobs completed, at least {thresholds.min_completed_jobs} must")
    for name, bound in (
        ("cancel_faults", thresholds.max_cancel_faults),
        ("stream_faults", thresholds.max_stream_faults),
    ):
        count = (tally or {}).get(name, 0)
        if count > bound:
            found.append(f"{count} {name.replace('_', ' ')}, at most {bound} may be")
    last = [row.hit is True for row in rows if row.outcome is Outcome.COMPLETED][-100:]
    if len(rows) >= LONG_RUN and 100 * sum(last) < thresholds.min_hit_percent * len(last):
        percent = 100 * sum(last) / len(last)
        found.append(f"{percent:.0f} % of the last {len(last)} were hits, {thresholds.min_hit_percent} % must be")
    return found
