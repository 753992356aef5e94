"""Faults over jobs: `python -m benchmarks.faults --json`.

A server on the tiny model is broken again and again, in every way of `load_tests.faults.kinds`, while clients ask for
the shortest clips. Then every finished clip is fetched once more, and what is left over is counted. `lost`: jobs gone
or never final, `wrong`: another clip than on a sound server, or a failure whose reason is not true, `leaked`: files,
latents, queue entries, processes of nobody.
"""

import argparse
import collections
import concurrent.futures
import dataclasses
import pathlib
import random
import sys
import tempfile
import threading
import time
from typing import Any, Final

from benchmarks.report import Report, Scalar, argument_parser, publish
from load_tests.faults.customers import PATIENCE_S, PROMPTS, SHORTEST, Customer, End, Oracle, Outcome
from load_tests.faults.kinds import FAULTS, inject
from load_tests.faults.plant import Plant, running
from load_tests.faults.survey import survey

DELETED_SHARE: Final = 0.05


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Run:
    """What one run has seen."""

    bodies: list[dict[str, Any]]
    outcomes: list[Outcome]
    faults: collections.Counter[str]
    seconds: float


class Shift:
    """Customers that share a number of jobs, and one who breaks things until both are done."""

    def __init__(self, plant: Plant, oracle: Oracle, options: argparse.Namespace) -> None:
        self._plant, self._oracle, self._seed = plant, oracle, options.seed
        self._num_jobs, self._num_faults, self._pause_s = options.jobs, options.faults, options.pause_s
        self._lock = threading.Lock()
        self._taken = 0
        self._has_broken_all = threading.Event()
        self._done: list[tuple[dict[str, Any], Outcome]] = []
        self._faults: collections.Counter[str] = collections.Counter()

    def run(self, *, num_customers: int) -> Run:
        """Work until there were enough jobs and enough faults."""
        begin = time.perf_counter()
        with concurrent.futures.ThreadPoolExecutor() as pool:
            working = [pool.submit(self._ask, number) for number in range(num_customers)]
            working.append(pool.submit(self._break))
            for each in working:
                each.result()
        return Run(
            bodies=[body for body, _ in self._done],
            outcomes=[outcome for _, outcome in self._done],
            faults=self._faults,
            seconds=time.perf_counter() - begin,
        )

    def _ask(self, number: int) -> None:
        customer = Customer(self._plant.url, self._oracle, seed=1000 * self._seed + number)
        draw = random.Random(number)
        while self._take():
            body = customer.random_body()
            outcome = customer.run(body, delete=draw.random() < DELETED_SHARE)
            with self._lock:
                self._done.append((body, outcome))
                if len(self._done) % 100 == 0:
                    sys.stderr.write(f"{len(self._done)} jobs, {self._faults.total()} faults\n")
        customer.close()

    def _take(self) -> bool:
        with self._lock:
            self._taken += 1
            return self._taken <= self._num_jobs or not self._has_broken_all.is_set()

    def _break(self) -> None:
        draw = random.Random(self._seed)
        names = [name for _ in range(-(-self._num_faults // len(FAULTS))) for name in FAULTS][: self._num_faults]
        draw.shuffle(names)
        try:
            for name in names:
                time.sleep(draw.random() * 2 * self._pause_s)
                inject(name, self._plant, draw)
                self._faults[name] += 1
        finally:
            self._has_broken_all.set()


def fetch_again(plant: Plant, oracle: Oracle, run: Run) -> list[Outcome]:
    """Fetch every finished clip once more, when nothing is broken any longer."""
    customer = Customer(plant.url, oracle, seed=0)
    again = []
    for body, outcome in zip(run.bodies, run.outcomes, strict=True):
        if outcome.end is End.COMPLETED:
            assert outcome.video_id is not None
            again.append(customer.check_again(body, outcome.video_id))
    customer.close()
    return again


def main() -> None:
    """Run the benchmark."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--jobs", type=int, default=2000, help="at least; more while faults are left")
    parser.add_argument("--faults", type=int, default=300)
    parser.add_argument("--customers", type=int, default=4)
    parser.add_argument("--pause-s", type=float, default=1.5, help="mean time between two faults")
    options = parser.parse_args()
    oracle = Oracle()
    with tempfile.TemporaryDirectory(prefix="reprise-faults-") as folder, running(pathlib.Path(folder)) as plant:
        calm = Customer(plant.url, oracle, seed=0)
        for prompt in PROMPTS:
            for seed in range(3):
                outcome = calm.run({"prompt": prompt, "seed": seed, "reuse": "off", **SHORTEST})
                if outcome.end is not End.COMPLETED:
                    raise RuntimeError(f"a sound server failed: {outcome}")
        calm.close()
        run = Shift(plant, oracle, options).run(num_customers=options.customers)
        again = fetch_again(plant, oracle, run)
        deleted = {outcome.video_id for outcome in run.outcomes if outcome.end is End.DELETED and outcome.video_id}
        left = survey(plant, deleted=deleted)
    ends = collections.Counter(outcome.end for outcome in run.outcomes)
    late = collections.Counter(outcome.end for outcome in again)
    bad = [each for each in [*run.outcomes, *again] if each.end in (End.LOST, End.WRONG, End.REFUSED)]
    rows: list[dict[str, Scalar]] = [
        {"end": str(end), "jobs": ends[end], "fetched_again": late[end]} for end in End if ends[end] or late[end]
    ]
    rows += [{"fault": name, "injected": count} for name, count in sorted(run.faults.items())]
    publish(
        Report(
            name="faults",
            parameters={
                "jobs": options.jobs,
                "faults": options.faults,
                "customers": options.customers,
                "pause_s": options.pause_s,
                "patience_s": PATIENCE_S,
                "preset": "tiny-4step",
            },
            rows=rows,
            summary={
                "faults": run.faults.total(),
                "jobs": len(run.outcomes),
                "completed": ends[End.COMPLETED],
                "failed_honestly": ends[End.FAILED],
                "refused": ends[End.REFUSED],
                "lost": ends[End.LOST] + late[End.LOST],
                "wrong": ends[End.WRONG] + late[End.WRONG],
                "leaked": left.count,
                "seconds": run.seconds,
            },
            notes=[
                "failed_honestly: interrupted, storage_failed or worker_lost, when that was what a fault had done",
                *(f"{each.end} {each.video_id}: {each.detail}" for each in bad[:20]),
                *([f"left over: {left}"] if left.count else []),
            ],
        ),
        options,
    )


if __name__ == "__main__":
    main()
