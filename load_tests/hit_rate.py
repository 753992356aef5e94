"""How the hit rate grows while the cache fills: `python -m load_tests.hit_rate jobs.jsonl > hit_rate.csv`.

One line per hundred requests in the order they were sent, as Chorus' figure 9 counts them. Knows nothing about how the
rows were made.
"""

import argparse
import csv
import dataclasses
import pathlib
import statistics
import sys
from collections.abc import Iterable, Sequence
from typing import Final, TextIO

from load_tests.ledger import JobRow, Outcome, read_rows

WINDOW: Final = 100


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Window:
    """Consecutive requests of a trace; shares and medians are over those that completed."""

    first: int
    last: int
    """Counted from 1, both included."""
    requests: int
    completed: int
    hits: int
    hit_rate: float | None
    """None when nothing completed."""
    median_job_s: float | None
    median_denoise_s: float | None


def hit_rate_table(rows: Iterable[JobRow], *, window: int = WINDOW) -> list[Window]:
    """Sum up rows by window; a window without a request is left out."""
    if window < 1:
        raise ValueError(f"a window must hold at least one request, got {window}")
    by_window: dict[int, list[JobRow]] = {}
    for row in rows:
        by_window.setdefault(row.index // window, []).append(row)
    return [_sum_up(number * window, window, by_window[number]) for number in sorted(by_window)]


def _sum_up(start: int, window: int, rows: Sequence[JobRow]) -> Window:
    completed = [row for row in rows if row.outcome is Outcome.COMPLETED]
    hits = sum(row.hit is True for row in completed)
    return Window(
        first=start + 1,
        last=start + window,
        requests=len(rows),
        completed=len(completed),
        hits=hits,
        hit_rate=hits / len(completed) if completed else None,
        median_job_s=_median(row.seconds for row in completed),
        median_denoise_s=_median(row.denoise_s for row in completed if row.denoise_s is not None),
    )


def _median(values: Iterable[float]) -> float | None:
    known = list(values)
    return statistics.median(known) if known else None


def hits_in_order(rows: Iterable[JobRow]) -> list[bool | None]:
    """Tell of every request of a trace whether it was a hit; None where it did not complete."""
    found = {row.index: row.hit if row.outcome is Outcome.COMPLETED else None for row in rows}
    return [found.get(index) for index in range(max(found, default=-1) + 1)]


def share_of_hits(hits: Sequence[bool | None], *, first: int, last: int) -> float | None:
    """Give the hit rate of requests `first` to `last`, counted from 1, both included; None when none completed."""
    if not 1 <= first <= last <= len(hits):
        raise ValueError(f"expected 1 <= first <= last <= {len(hits)} requests, got first={first}, last={last}")
    known = [hit for hit in hits[first - 1 : last] if hit is not None]
    return sum(known) / len(known) if known else None


def write_csv(windows: Iterable[Window], file: TextIO) -> None:
    """Write the table with a header; what is not known is empty."""
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(field.name for field in dataclasses.fields(Window))
    for window in windows:
        writer.writerow(_cell(value) for value in dataclasses.astuple(window))


def _cell(value: float | None) -> str:
    if value is None:
        return ""
    return str(value) if isinstance(value, int) else f"{value:.3f}"


def main() -> None:
    """Read rows, write the table to standard output."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("jobs", type=pathlib.Path, help="jobs.jsonl of a load test")
    options = parser.parse_args()
    write_csv(hit_rate_table(read_rows(options.jobs)), sys.stdout)


if __name__ == "__main__":
    main()
