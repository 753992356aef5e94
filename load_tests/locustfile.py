"""Locust users who post clips from one trace and follow each job to its end.

    locust -f load_tests/locustfile.py --headless --users 2 --run-time 10m --stop-timeout 600 --host http://127.0.0.1:8000

A JOB line of the statistics is the time from just before the POST to the answer that said how the job ended, told apart
by hit and miss; it is as fine as the server's `openai-poll-after-ms`. Jobs that had not ended when the test stopped are
listed as such, never dropped. The trace is one stream, so one process: no `--processes`, no workers. Knows nothing
about what a good result is.
"""

import dataclasses
import json
import pathlib
import sys
import time
from typing import Any, Final

import gevent  # type: ignore[import-untyped]
from locust import FastHttpUser, constant, events, task
from locust.exception import StopUser

from load_tests.ledger import JobRow, Ledger, Outcome, write_rows
from load_tests.others import Canceller, Streamer, Tally
from load_tests.traces import TraceItem, open_trace

CONNECT_TIMEOUT_S: Final = 5.0
ANSWER_TIMEOUT_S: Final = 30.0
"""Of one HTTP call, none of which waits for a clip; how long a job may take is `--job-timeout-s`."""
DEFAULT_POLL_S: Final = 0.5


class Workload:
    """What all users of a run share: the trace, its ledger and the fields that every request has."""

    def __init__(self, options: Any) -> None:
        self._trace = open_trace(options.trace, seed=options.trace_seed, num_requests=options.requests)
        self._steps, self._size = options.steps, options.size
        self.job_timeout_s: float = options.job_timeout_s
        self.jobs_file = pathlib.Path(options.jobs_file)
        self.tally_file = pathlib.Path(options.tally_file)
        self.tally = Tally()
        self.ledger = Ledger()
        self.is_over = False
        """The trace has ended, and the run ends with the jobs that are open."""

    def take(self) -> TraceItem | None:
        """Begin the next request of the trace; None at its end."""
        item = next(self._trace, None)
        if item is not None:
            self.ledger.begin(item, time.perf_counter())
        return item

    def body(self, item: TraceItem) -> dict[str, Any]:
        """Give the body of a request."""
        body = {"prompt": item.prompt, "seed": item.index}
        if self._steps:
            body["num_inference_steps"] = self._steps
        return body | ({"size": self._size} if self._size else {})


class ClipUser(FastHttpUser):  # type: ignore[misc]  # locust ships no types that mypy can follow
    """Posts a clip, waits for it, posts the next: as many jobs are under way as there are users."""

    host = "http://127.0.0.1:8000"
    wait_time = constant(0)
    connection_timeout = CONNECT_TIMEOUT_S
    network_timeout = ANSWER_TIMEOUT_S

    @task  # type: ignore[untyped-decorator]
    def make_clip(self) -> None:
        """Run one job."""
        workload: Workload = self.environment.workload
        begin = time.perf_counter()
        item = workload.take()
        if item is None:
            if not workload.is_over:
                workload.is_over = True
                # In a greenlet of its own, for it waits for the jobs of the other users, and when this user has left.
                gevent.spawn_later(0.2, self.environment.runner.quit)
            raise StopUser
        row = self._run(item, workload, begin)
        workload.ledger.end(row)
        report(self.environment, row)

    def _run(self, item: TraceItem, workload: Workload, begin: float) -> JobRow:
        response = self.client.post("/v1/videos", json=workload.body(item), name="/v1/videos")
        if response.status_code != 200:
            return failure(item, begin, reason=f"POST gave {response.status_code}: {(response.text or '')[:200]}")
        job = response.json()
        last_seen = job["status"]
        while job["status"] in ("queued", "in_progress"):
            if time.perf_counter() - begin > workload.job_timeout_s:
                reason = f"{last_seen} after {workload.job_timeout_s:g} s"
                return failure(item, begin, reason=reason, video_id=job["id"], outcome=Outcome.UNFINISHED)
            gevent.sleep(poll_s(response.headers))
            response = self.client.get(f"/v1/videos/{job['id']}", name="/v1/videos/{id}")
            if response.status_code == 404:
                return failure(item, begin, reason="the job is gone", video_id=job["id"])
            # Any other fault may pass: a restarted server goes on with the job.
            if response.status_code == 200:
                job = response.json()
            last_seen = job["status"] if response.status_code == 200 else f"GET gave {response.status_code}"
        return final_row(item, begin, job)


def poll_s(headers: Any) -> float:
    """Wait as long as the server asks."""
    text = (headers or {}).get("openai-poll-after-ms") or ""
    return int(text) / 1000 if text.isdecimal() else DEFAULT_POLL_S


def failure(
    item: TraceItem, begin: float, *, reason: str, video_id: str | None = None, outcome: Outcome = Outcome.FAILED
) -> JobRow:
    """Make the row of a job that brought no clip."""
    seconds = time.perf_counter() - begin
    return JobRow(
        index=item.index, kind=str(item.kind), outcome=outcome, seconds=seconds, video_id=video_id, reason=reason
    )


def final_row(item: TraceItem, begin: float, job: dict[str, Any]) -> JobRow:
    """Make the row of a job in its final status."""
    if job["status"] != "completed":
        return failure(item, begin, reason=json.dumps(job["error"]), video_id=job["id"])
    reuse = job["reuse"]
    return JobRow(
        index=item.index,
        kind=str(item.kind),
        outcome=Outcome.COMPLETED,
        seconds=time.perf_counter() - begin,
        video_id=job["id"],
        hit=reuse["hit"],
        k1=reuse["k1"],
        num_steps=reuse["effective"]["num_inference_steps"],
        guidance_scale=reuse["effective"]["guidance_scale"],
        denoise_s=reuse["seconds"]["denoise"],
        reason=reuse["reason"],
    )


def report(environment: Any, row: JobRow) -> None:
    """Add a job to Locust's statistics, one line per outcome and for hits and misses."""
    name = ("hit" if row.hit else "miss") if row.outcome is Outcome.COMPLETED else str(row.outcome)
    environment.events.request.fire(
        request_type="JOB",
        name=name,
        response_time=1000 * row.seconds,
        response_length=0,
        exception=None if row.outcome is Outcome.COMPLETED else RuntimeError(row.reason),
        context={},
    )


@events.init_command_line_parser.add_listener  # type: ignore[untyped-decorator]
def add_options(parser: Any) -> None:
    """Add the options of the workload."""
    parser.add_argument("--trace", default="tiny", help="`tiny`, `tiny-theme`, or a JSONL file with a `prompt` a line")
    parser.add_argument("--trace-seed", type=int, default=0)
    parser.add_argument("--requests", type=int, default=0, help="stop after so many; 0 goes on to the run time")
    parser.add_argument("--steps", type=int, default=0, help="denoising steps; 0 leaves them to the server")
    parser.add_argument("--size", default="", help="size of the clips; empty leaves it to the server")
    parser.add_argument("--job-timeout-s", type=float, default=600.0)
    parser.add_argument("--jobs-file", default="jobs.jsonl", help="where a row per job is written at the end")
    parser.add_argument("--tally-file", default="tally.json", help="where is written what the other users have seen")
    parser.add_argument("--cancellers", type=int, default=0, help="users who delete what they have asked for")
    parser.add_argument("--streamers", type=int, default=0, help="users who watch live streams")


@events.init.add_listener  # type: ignore[untyped-decorator]
def prepare(environment: Any, **_: Any) -> None:
    """Read the trace before the first request, so that a bad one costs nothing."""
    options = environment.parsed_options
    workload = environment.workload = Workload(options)
    # Locust takes a fixed count of 0 for none given, so whoever is not wanted must not be there.
    Canceller.fixed_count, Streamer.fixed_count = options.cancellers, options.streamers
    wanted = {Canceller: options.cancellers, Streamer: options.streamers}
    environment.user_classes = [kind for kind in environment.user_classes if wanted.get(kind, 1)]
    Canceller.tally = Streamer.tally = workload.tally


@events.quitting.add_listener  # type: ignore[untyped-decorator]
def write_down(environment: Any, **_: Any) -> None:
    """Write every job's row, and say how many were still open."""
    workload: Workload = environment.workload
    open_rows = workload.ledger.open_rows(time.perf_counter())
    for row in open_rows:
        report(environment, row)
    write_rows(workload.jobs_file, [*workload.ledger.rows, *open_rows])
    workload.tally_file.write_text(json.dumps(dataclasses.asdict(workload.tally)), encoding="utf-8")
    sys.stdout.write(f"jobs not finished when the test stopped: {len(open_rows)}\n")
