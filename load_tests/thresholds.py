"""What a load test must keep to, read from thresholds.yaml, and what of it was missed."""

import dataclasses
import pathlib
from collections.abc import Iterable
from typing import Final

import yaml

from load_tests.ledger import JobRow, Outcome

PATH: Final = pathlib.Path(__file__).with_name("thresholds.yaml")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Thresholds:
    """Bounds on the number of jobs by outcome; times are reported, not judged: they belong to the machine."""

    max_failed_jobs: int
    max_unfinished_jobs: int
    min_completed_jobs: int
    """A run in which nothing happened has proved nothing."""


def read_thresholds(path: pathlib.Path = PATH) -> Thresholds:
    """Read the file; every key must be there and no other."""
    values = yaml.safe_load(path.read_text(encoding="utf-8"))
    names = {field.name for field in dataclasses.fields(Thresholds)}
    if not isinstance(values, dict) or set(values) != names or not all(type(v) is int for v in values.values()):
        raise ValueError(f"{path} must map {', '.join(sorted(names))} to whole numbers, got {values}")
    return Thresholds(**values)


def missed(thresholds: Thresholds, rows: Iterable[JobRow]) -> list[str]:
    """Say which bounds the rows miss, with both numbers; empty when none."""
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
    return found
