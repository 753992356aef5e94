"""What became of every job of a load test, unfinished ones included, as one JSON object a line.

A load tool's own statistics leave out what never answered; here every request that was begun has a row. Standard
library only; knows nothing about Locust or HTTP.
"""

import dataclasses
import enum
import json
import pathlib
from collections.abc import Iterable

from load_tests.traces import TraceItem


class Outcome(enum.StrEnum):
    """The three ends of a job, as its client saw them."""

    COMPLETED = "completed"
    FAILED = "failed"
    """Refused, failed or gone."""
    UNFINISHED = "unfinished"
    """Neither when the test stopped, or within the job's deadline."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class JobRow:
    """One job; `seconds` runs from just before the POST to the answer that said how it ended."""

    index: int
    kind: str
    outcome: Outcome
    seconds: float
    video_id: str | None = None
    hit: bool | None = None
    k1: int | None = None
    num_steps: int | None = None
    guidance_scale: float | None = None
    denoise_s: float | None = None
    reason: str | None = None
    """Why nothing was reused; of a failed or unfinished job, what was seen last."""


class Ledger:
    """Rows of finished jobs and the open ones; invariant: every index that was begun is in one of the two."""

    def __init__(self) -> None:
        self._open: dict[int, tuple[TraceItem, float]] = {}
        self._rows: dict[int, JobRow] = {}

    def begin(self, item: TraceItem, now: float) -> None:
        """Note that a request is about to be sent."""
        if item.index in self._open or item.index in self._rows:
            raise ValueError(f"request {item.index} was begun before")
        self._open[item.index] = (item, now)

    def end(self, row: JobRow) -> None:
        """Note how a request ended."""
        if row.index not in self._open:
            raise ValueError(f"request {row.index} ended, but it is not open")
        del self._open[row.index]
        self._rows[row.index] = row

    @property
    def rows(self) -> list[JobRow]:
        """Rows of the requests that ended, in the order of the trace."""
        return [self._rows[index] for index in sorted(self._rows)]

    def open_rows(self, now: float) -> list[JobRow]:
        """Give a row for every request that has not ended: unfinished now."""
        return [
            JobRow(
                index=item.index,
                kind=str(item.kind),
                outcome=Outcome.UNFINISHED,
                seconds=now - begin,
                reason="open when the test stopped",
            )
            for item, begin in self._open.values()
        ]


def write_rows(path: pathlib.Path, rows: Iterable[JobRow]) -> None:
    """Write rows as JSON lines."""
    path.write_text("".join(json.dumps(dataclasses.asdict(row)) + "\n" for row in rows), encoding="utf-8")


def read_rows(path: pathlib.Path) -> list[JobRow]:
    """Read what `write_rows` wrote."""
    rows = []
    for line in path.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        rows.append(JobRow(**{**fields, "outcome": Outcome(fields["outcome"])}))
    return rows
