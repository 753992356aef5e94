"""More than the server can do: `python -m benchmarks.load --json`.

Capacity is measured first, with a few jobs always under way. Then clips are asked for at random moments, in turns as
often as the server can make them (`at capacity`) and three times as often (`overload`), and last for a while at 70 %
(`soak`), in which the memory of every process is watched. `reject_ms`: median time of a refusal, `p95_ratio`: job time
of the admitted in overload over that at capacity (95 % each, from the server's own log), `slope_mb_h`: growth of the
process that grows most, over the second half of the soak, the store apart: `store_kb_per_job` is what it keeps of a
job until that expires.
"""

import asyncio
import dataclasses
import json
import pathlib
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Any, Final

import httpx
import numpy as np
import psutil

from benchmarks.report import Report, Scalar, argument_parser, publish
from deployments import serve
from deployments.config import AppConfig

BODY: Final[dict[str, str | int]] = {"num_frames": 5, "num_inference_steps": 4, "size": "64x64", "reuse": "off"}
PROMPT: Final = "a red circle moves right over a black background"
OVERLOAD: Final = 3.0
SOAK_LOAD: Final = 0.7
STORE: Final = "valkey-server"
SETTLE_S: Final = 10.0
"""Of a phase, until the queue is as long as it gets."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """What one phase of requests has seen."""

    name: str
    offered_per_s: float
    answers: list[tuple[int, float]]
    """Status and seconds of each POST."""
    job_s: list[float]
    """From the server's log: of the jobs that came when the phase had settled."""

    @property
    def reject_s(self) -> list[float]:
        """Give the times of refusals."""
        return [seconds for status, seconds in self.answers if status in (429, 503)]

    def row(self) -> dict[str, Scalar]:
        """Give the row of the report."""
        codes = [status for status, _ in self.answers]
        return {
            "phase": self.name,
            "offered_per_s": self.offered_per_s,
            "requests": len(codes),
            "admitted": codes.count(200),
            "refused": codes.count(429) + codes.count(503),
            "other": sum(status not in (200, 429, 503) for status in codes),
            "reject_ms": _quantile([1000 * seconds for seconds in self.reject_s], 0.5),
            "reject_p95_ms": _quantile([1000 * seconds for seconds in self.reject_s], 0.95),
            "job_p50_s": _quantile(self.job_s, 0.5),
            "job_p95_s": _quantile(self.job_s, 0.95),
        }


class Bench:
    """Sends requests to a running server and reads its log of jobs."""

    def __init__(self, url: str, log: pathlib.Path, *, seed: int) -> None:
        self._http = httpx.AsyncClient(base_url=url, timeout=30.0, limits=httpx.Limits(max_connections=200))
        self._log = log
        self._draw = random.Random(seed)

    async def post(self) -> tuple[int, float]:
        """Ask for one clip; its status and the seconds until it was there."""
        begin = time.perf_counter()
        body = BODY | {"prompt": PROMPT, "seed": self._draw.randrange(2**31)}
        answer = await self._http.post("/v1/videos", json=body)
        return answer.status_code, time.perf_counter() - begin

    def ended(self) -> list[dict[str, Any]]:
        """Read the jobs that have ended so far."""
        return [json.loads(line) for line in self._log.read_text().splitlines()] if self._log.exists() else []

    async def capacity(self, *, num_jobs: int, under_way: int) -> float:
        """Measure how many jobs a second end while some always wait."""
        before = len(self.ended())
        sent, begin = 0, time.perf_counter()
        while (done := len(self.ended()) - before) < num_jobs:
            while sent < min(done + under_way, num_jobs):
                await self.post()
                sent += 1
            await asyncio.sleep(0.02)
        return num_jobs / (time.perf_counter() - begin)

    async def phase(self, name: str, *, per_s: float, seconds: float) -> Phase:
        """Ask at random moments, whatever the answers are, then let the queue run dry."""
        begin, began_at = time.perf_counter(), time.time()
        calls: list[asyncio.Task[tuple[int, float]]] = []
        due = begin
        while (due := due + self._draw.expovariate(per_s)) < begin + seconds:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            calls.append(asyncio.create_task(self.post()))
        answers = [await call for call in calls]
        ended_at, admitted = time.time(), sum(status == 200 for status, _ in answers)
        while len(rows := [row for row in self.ended() if began_at <= row["created_at"] <= ended_at]) < admitted:
            await asyncio.sleep(0.2)
        job_s = [row["job_s"] for row in rows if row["created_at"] > began_at + SETTLE_S]
        return Phase(name=name, offered_per_s=per_s, answers=answers, job_s=job_s)

    async def close(self) -> None:
        """Close the connections."""
        await self._http.aclose()


async def watch_memory(readings: dict[str, list[tuple[float, float]]], *, period_s: float = 2.0) -> None:
    """Note the memory of every process of the server, for ever."""
    while True:
        for process in psutil.Process().children(recursive=True):
            try:
                name = f"{process.cmdline()[0]} {process.pid}"
                readings.setdefault(name, []).append((time.perf_counter(), process.memory_info().rss / 2**20))
            except (psutil.Error, IndexError):
                continue  # it has just ended
        await asyncio.sleep(period_s)


def slopes(readings: dict[str, list[tuple[float, float]]]) -> dict[str, float]:
    """Give by how many MB an hour each process grew over the second half of its readings, the steepest first."""
    found = {}
    for name, points in readings.items():
        half = points[len(points) // 2 :]
        if len(half) > 10:
            at, megabytes = np.array(half).T
            found[name] = float(np.polyfit(at, megabytes, 1)[0] * 3600)
    return dict(sorted(found.items(), key=lambda each: -each[1]))


async def measure(url: str, log: pathlib.Path, options: Any) -> tuple[float, list[Phase], dict[str, float]]:
    """Run all phases."""
    bench = Bench(url, log, seed=options.seed)
    await bench.capacity(num_jobs=20, under_way=4)  # the server learns what a job costs
    per_s = await bench.capacity(num_jobs=options.capacity_jobs, under_way=4)
    phases = []
    for _ in range(options.turns):
        for name, factor in (("at capacity", 1.0), ("overload", OVERLOAD)):
            phases.append(await bench.phase(name, per_s=factor * per_s, seconds=options.phase_s))
    readings: dict[str, list[tuple[float, float]]] = {}
    watching = asyncio.create_task(watch_memory(readings))
    phases.append(await bench.phase("soak", per_s=SOAK_LOAD * per_s, seconds=60 * options.soak_minutes))
    watching.cancel()
    await bench.close()
    return per_s, phases, slopes(readings)


def _quantile(values: Sequence[float], share: float) -> float | None:
    return float(np.quantile(values, share)) if values else None


def _joined(phases: Sequence[Phase], name: str) -> Phase:
    mine = [phase for phase in phases if phase.name == name]
    return Phase(
        name=name,
        offered_per_s=statistics.fmean(phase.offered_per_s for phase in mine),
        answers=[answer for phase in mine for answer in phase.answers],
        job_s=[seconds for phase in mine for seconds in phase.job_s],
    )


def main() -> None:
    """Run the benchmark."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--capacity-jobs", type=int, default=150)
    parser.add_argument("--turns", type=int, default=3, help="of capacity and overload")
    parser.add_argument("--phase-s", type=float, default=45.0)
    parser.add_argument("--soak-minutes", type=float, default=8.0)
    parser.add_argument("--max-wait-s", type=float, default=2.0, help="the server's bound on waiting")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="reprise-load-") as folder:
        log = pathlib.Path(folder) / "jobs.log"
        config = AppConfig.model_validate(
            {
                "preset": "tiny-4step",
                "data_dir": folder,
                "admission": {"max_wait_s": options.max_wait_s},
                "log": {"jobs_file": str(log)},
                "long": {"enabled": False},
                "live": {"enabled": False},
                "masks": {"engine": "off"},
            }
        )
        port = serve.free_port()
        serve.start(config, host="127.0.0.1", port=port)
        try:
            per_s, phases, grown = asyncio.run(measure(f"http://127.0.0.1:{port}", log, options))
        finally:
            serve.stop()
    joined = {name: _joined(phases, name) for name in ("at capacity", "overload", "soak")}
    rows = [phase.row() for phase in joined.values()]
    # What the store holds grows with the jobs that it keeps until they expire; what a process holds must not.
    (store,) = (name for name in grown if STORE in name)
    kept_mb = grown.pop(store) * options.soak_minutes / 60
    num_kept = sum(status == 200 for status, _ in joined["soak"].answers)
    p95 = {name: _quantile(phase.job_s, 0.95) for name, phase in joined.items()}
    at_capacity, overload = p95["at capacity"], p95["overload"]
    publish(
        Report(
            name="load",
            parameters={
                "turns": options.turns,
                "phase_s": options.phase_s,
                "soak_minutes": options.soak_minutes,
                "max_wait_s": options.max_wait_s,
                "overload": OVERLOAD,
                "soak_load": SOAK_LOAD,
                "preset": "tiny-4step",
                **BODY,
            },
            rows=rows,
            summary={
                "capacity_per_s": per_s,
                "reject_ms": _quantile([1000 * seconds for seconds in joined["overload"].reject_s], 0.5),
                "p95_ratio": overload / at_capacity if overload and at_capacity else None,
                "refused_share": len(joined["overload"].reject_s) / len(joined["overload"].answers),
                "slope_mb_h": next(iter(grown.values())),
                "store_kb_per_job": 1024 * kept_mb / num_kept,
            },
            notes=[
                "grown, MB/h: "
                + ", ".join(f"{name.split('/')[-1]} {slope:.0f}" for name, slope in [*grown.items()][:6]),
                "the load comes from the same cores as the server runs on",
            ],
        ),
        options,
    )


if __name__ == "__main__":
    main()
