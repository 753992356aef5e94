"""Locust itself, as a process of its own (it patches the standard library), against a stand-in for the server."""

import http.server
import json
import pathlib
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from load_tests.ledger import JobRow, Outcome, read_rows

ROOT = pathlib.Path(__file__).parents[3]


class PlayedServer(http.server.BaseHTTPRequestHandler):
    """Does with a job what its seed says: 0 and 1 miss and hit, 2 fails, 3 is refused, 4 stays queued, 5 is deleted."""

    jobs: dict[str, tuple[int, float]]
    bodies: list[dict[str, Any]]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.bodies.append(body)
        seed = body["seed"]
        if seed == 3:
            return self._answer(429, {"error": {"message": "the queue is full"}})
        self.jobs[f"video_{seed}"] = (seed, time.monotonic())
        return self._answer(200, {"id": f"video_{seed}", "status": "queued"})

    def do_GET(self) -> None:
        name = self.path.rsplit("/", 1)[1]
        seed, begin = self.jobs[name]
        job: dict[str, Any] = {"id": name, "status": "queued"}
        if seed == 5:
            return self._answer(404, {})
        if seed != 4 and time.monotonic() - begin > 0.2:
            job["status"] = "failed" if seed == 2 else "completed"
            job["error"] = {"code": "numerical_error", "message": "NaN"} if seed == 2 else None
            job["reuse"] = {
                "hit": seed == 1,
                "k1": 10 * seed,
                "reason": None if seed else "empty_cache",
                "effective": {"num_inference_steps": 50, "guidance_scale": 4.0},
                "seconds": {"denoise": 0.1},
            }
        return self._answer(200, job)

    def _answer(self, status: int, body: dict[str, Any]) -> None:
        data = json.dumps(body).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(data)))
        self.send_header("openai-poll-after-ms", "50")
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[http.server.ThreadingHTTPServer]:
    handler = type("Handler", (PlayedServer,), {"jobs": {}, "bodies": []})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def locust(
    server: http.server.ThreadingHTTPServer, folder: pathlib.Path, *options: str
) -> tuple[dict[int, JobRow], str]:
    command = [sys.executable, "-m", "locust", "-f", "load_tests/locustfile.py", "--headless", "--only-summary"]
    places = ["--host", f"http://127.0.0.1:{server.server_address[1]}", "--jobs-file", str(folder / "jobs.jsonl")]
    run = subprocess.run([*command, *places, *options], cwd=ROOT, capture_output=True, text=True, timeout=120)
    return {row.index: row for row in read_rows(folder / "jobs.jsonl")}, run.stdout + run.stderr


def test_every_end_of_a_job_is_told_apart(server: http.server.ThreadingHTTPServer, tmp_path: pathlib.Path) -> None:
    rows, output = locust(
        server, tmp_path, "--requests", "6", "--users", "6", "--spawn-rate", "6", "--stop-timeout", "20",
        "--job-timeout-s", "1", "--steps", "4",
    )  # fmt: skip
    done, failed, unfinished = Outcome.COMPLETED, Outcome.FAILED, Outcome.UNFINISHED
    assert [rows[index].outcome for index in range(6)] == [done, done, failed, failed, unfinished, failed]
    assert [(rows[index].hit, rows[index].k1, rows[index].reason) for index in (0, 1)] == [
        (False, 0, "empty_cache"),
        (True, 10, None),
    ]
    for index, reason in ((2, "numerical_error"), (3, "429"), (4, "queued after 1 s"), (5, "gone")):
        assert reason in (rows[index].reason or "")
    assert rows[1].seconds > 0.2, "the time of a job runs to the answer that says how it ended"
    assert rows[4].seconds > 1
    assert "jobs not finished when the test stopped: 0" in output
    for name in ("hit", "miss", "failed", "unfinished"):
        assert re.search(rf"JOB +{name} ", output), output
    bodies = server.RequestHandlerClass.bodies  # type: ignore[attr-defined]
    assert sorted(body["seed"] for body in bodies) == list(range(6))
    assert all(body["num_inference_steps"] == 4 and "size" not in body for body in bodies)


def test_what_is_open_at_the_stop_is_reported(server: http.server.ThreadingHTTPServer, tmp_path: pathlib.Path) -> None:
    rows, output = locust(
        server, tmp_path, "--users", "3", "--spawn-rate", "3", "--run-time", "3", "--stop-timeout", "0"
    )
    assert rows[4].outcome is Outcome.UNFINISHED
    assert rows[4].seconds > 1
    assert rows[4].reason == "open when the test stopped"
    assert re.search(r"jobs not finished when the test stopped: [1-3]\n", output)
    assert re.search(r"JOB +unfinished ", output), output
