"""The sums of a load test: the ledger, the table of windows and the thresholds."""

import dataclasses
import io
import pathlib

import pytest

from load_tests.hit_rate import Window, hit_rate_table, hits_in_order, share_of_hits, write_csv
from load_tests.ledger import JobRow, Ledger, Outcome, read_rows, write_rows
from load_tests.thresholds import LONG_RUN, Thresholds, missed, read_thresholds
from load_tests.traces import Kind, TraceItem


def row(index: int, *, hit: bool | None = False, seconds: float = 1.0, outcome: Outcome = Outcome.COMPLETED) -> JobRow:
    return JobRow(index=index, kind="edit", outcome=outcome, seconds=seconds, hit=hit, denoise_s=seconds / 2)


def failed(index: int) -> JobRow:
    return JobRow(index=index, kind="edit", outcome=Outcome.FAILED, seconds=0.1, reason="POST gave 429")


def item(index: int) -> TraceItem:
    return TraceItem(index=index, session=0, kind=Kind.FIRST, prompt="a star")


def test_windows_follow_the_trace_whatever_the_order_of_the_rows() -> None:
    rows = [row(0), row(1, hit=True, seconds=3.0), failed(2), row(3, hit=True), row(4, seconds=9.0)]
    expected = [
        Window(
            first=1,
            last=3,
            requests=3,
            completed=2,
            hits=1,
            hit_rate=0.5,
            median_job_s=2.0,
            median_denoise_s=1.0,
        ),
        Window(
            first=4,
            last=6,
            requests=2,
            completed=2,
            hits=1,
            hit_rate=0.5,
            median_job_s=5.0,
            median_denoise_s=2.5,
        ),
    ]
    assert hit_rate_table(rows, window=3) == expected
    assert hit_rate_table(reversed(rows), window=3) == expected


def test_a_window_in_which_nothing_completed_has_no_rate() -> None:
    (window,) = hit_rate_table([failed(0)])
    assert (window.completed, window.hit_rate, window.median_job_s) == (0, None, None)


def test_no_rows_no_windows() -> None:
    assert hit_rate_table([]) == []
    with pytest.raises(ValueError, match="got 0"):
        hit_rate_table([], window=0)


def test_hits_follow_the_trace_and_what_did_not_complete_is_unknown() -> None:
    hits = hits_in_order([row(4), row(0, hit=True), failed(2), row(1)])
    assert hits == [True, False, None, None, False]
    assert hits_in_order([]) == []
    assert share_of_hits(hits, first=1, last=3) == 0.5
    assert share_of_hits(hits, first=5, last=5) == 0
    assert share_of_hits(hits, first=3, last=4) is None


@pytest.mark.parametrize(("first", "last"), [(0, 1), (2, 1), (1, 3)])
def test_a_share_of_requests_that_are_not_there_is_refused(first: int, last: int) -> None:
    with pytest.raises(ValueError, match="<= 2 requests"):
        share_of_hits([True, False], first=first, last=last)


def test_the_csv() -> None:
    file = io.StringIO()
    write_csv(hit_rate_table([row(0, hit=True), failed(100)]), file)
    assert file.getvalue().splitlines() == [
        "first,last,requests,completed,hits,hit_rate,median_job_s,median_denoise_s",
        "1,100,1,1,1,1.000,1.000,0.500",
        "101,200,1,0,0,,,",
    ]


def test_rows_come_back(tmp_path: pathlib.Path) -> None:
    rows = [row(0, hit=True), failed(1), row(2, hit=None, outcome=Outcome.UNFINISHED)]
    write_rows(tmp_path / "jobs.jsonl", rows)
    assert read_rows(tmp_path / "jobs.jsonl") == rows


def test_what_never_ended_is_a_row_too() -> None:
    ledger = Ledger()
    ledger.begin(item(1), 10.0)
    ledger.begin(item(0), 11.0)
    ledger.end(row(0))
    assert ledger.rows == [row(0)]
    (late,) = ledger.open_rows(15.0)
    assert (late.index, late.outcome, late.seconds, late.kind) == (1, Outcome.UNFINISHED, 5.0, "first")


def test_a_request_begins_and_ends_once() -> None:
    ledger = Ledger()
    with pytest.raises(ValueError, match="not open"):
        ledger.end(row(0))
    ledger.begin(item(0), 0.0)
    with pytest.raises(ValueError, match="begun before"):
        ledger.begin(item(0), 0.0)
    ledger.end(row(0))
    with pytest.raises(ValueError, match="begun before"):
        ledger.begin(item(0), 0.0)
    assert ledger.rows == [row(0)]


LOOSE = Thresholds(
    max_failed_jobs=1,
    max_unfinished_jobs=1,
    min_completed_jobs=1,
    max_cancel_faults=0,
    max_stream_faults=1,
    min_hit_percent=0,
)


def test_missed_thresholds_name_both_numbers() -> None:
    strict = dataclasses.replace(LOOSE, max_failed_jobs=0, max_unfinished_jobs=0, min_completed_jobs=2)
    assert missed(strict, [row(0), row(1)]) == []
    rows = [row(0), failed(1), row(2, outcome=Outcome.UNFINISHED)]
    assert missed(strict, rows) == [
        "1 jobs failed, at most 0 may",
        "1 jobs did not finish, at most 0 may",
        "1 jobs completed, at least 2 must",
    ]
    assert missed(LOOSE, rows) == []


def test_the_other_users_are_judged_too() -> None:
    tally = {"cancel_faults": 1, "stream_faults": 2, "cancelled": 5}
    assert missed(LOOSE, [row(0)], tally) == [
        "1 cancel faults, at most 0 may be",
        "2 stream faults, at most 1 may be",
    ]


def test_hits_are_judged_at_the_end_of_a_long_run() -> None:
    misses = [row(index, hit=False) for index in range(LONG_RUN)]
    wanted = dataclasses.replace(LOOSE, min_hit_percent=30)
    assert missed(wanted, misses[1:]) == []
    assert missed(wanted, misses) == ["0 % of the last 100 were hits, 30 % must be"]
    assert missed(wanted, [*misses[30:], *(row(1000 + index, hit=True) for index in range(30))]) == []


def test_our_thresholds_are_readable_and_an_empty_run_misses_them() -> None:
    assert missed(read_thresholds(), [])


@pytest.mark.parametrize("text", ["", "max_failed_jobs: 0", "max_failed_jobs: many\nmax_unfinished_jobs: 0\n"])
def test_incomplete_thresholds_are_refused(tmp_path: pathlib.Path, text: str) -> None:
    path = tmp_path / "thresholds.yaml"
    path.write_text(text)
    with pytest.raises(ValueError, match="min_completed_jobs"):
        read_thresholds(path)
