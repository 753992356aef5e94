"""What the server costs around the bare work, for misses and for hits: `python -m benchmarks.overhead [--json]`.

Starts the application, sends one clip at a time over HTTP and compares the time from POST to completed with the
time that the denoiser spent on denoising and decoding in the same job. A hit's prompt is its source's with another
colour.
"""

import contextlib
import statistics
import sys
import tempfile
import time
from typing import Any

import httpx

from benchmarks.report import Report, Scalar, argument_parser, publish
from deployments.config import AppConfig
from deployments.serve import free_port, start, stop
from reprise.tinyworld import write_prompt
from reprise.tinyworld.scene import BACKGROUNDS, MOTIONS, PATTERNS, SHAPES, ObjectSpec, SceneSpec

POLL_S = 0.02


def scene(index: int, colour: str) -> SceneSpec:
    """Give the scene of pair `index`; no two pairs agree in shape, motion and background."""
    shapes, motions, backgrounds = SHAPES, tuple(MOTIONS), tuple(BACKGROUNDS)
    item = ObjectSpec(shapes[index % len(shapes)], colour, "large", motions[index % len(motions)])
    return SceneSpec((item,), backgrounds[index % len(backgrounds)], PATTERNS[index % len(PATTERNS)])


def run_job(client: httpx.Client, body: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Post one clip and give the seconds until it was seen completed, and its job."""
    begin = time.perf_counter()
    job: dict[str, Any] = client.post("/v1/videos", json=body).raise_for_status().json()
    while job["status"] in ("queued", "in_progress"):
        time.sleep(POLL_S)
        job = client.get(f"/v1/videos/{job['id']}").raise_for_status().json()
    if job["status"] != "completed":
        raise RuntimeError(f"{job['id']} failed: {job['error']}")
    return time.perf_counter() - begin, job


def measure(client: httpx.Client, *, pairs: int, size: str) -> list[dict[str, Scalar]]:
    """Run pairs of a source and a follower, one after the other."""
    rows: list[dict[str, Scalar]] = []
    for index in range(pairs):
        for colour in ("red", "blue"):
            prompt = write_prompt(scene(index, colour))
            body = {"prompt": prompt, "size": size, "seconds": "4", "seed": index}
            wall_s, job = run_job(client, body)
            seconds = job["reuse"]["seconds"]
            bare_s = seconds["denoise"] + seconds["decode"]
            rows.append(
                {
                    "prompt": prompt,
                    "hit": job["reuse"]["hit"],
                    "k1": job["reuse"]["k1"],
                    "wall_s": wall_s,
                    "bare_s": bare_s,
                    "overhead_share": (wall_s - bare_s) / bare_s,
                    **{f"{name}_s": value for name, value in seconds.items()},
                }
            )
    return rows


def median(rows: list[dict[str, Scalar]], name: str, *, hit: bool) -> float:
    """Give the median of a column over hits or over misses."""
    values = [row[name] for row in rows if row["hit"] is hit]
    if not values:
        raise RuntimeError(f"no {'hit' if hit else 'miss'} among {len(rows)} jobs; expected every second to be a hit")
    return statistics.median(float(value) for value in values if isinstance(value, int | float))


def main() -> None:
    """Run the benchmark."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--size", default="64x64", help="delivered size; a larger canvas costs encoding time")
    options = parser.parse_args()
    port = free_port()
    # Ray writes warnings of its own to the standard output, which belongs to the report.
    with tempfile.TemporaryDirectory(prefix="reprise-overhead-") as folder, contextlib.redirect_stdout(sys.stderr):
        start(AppConfig(data_dir=folder), host="127.0.0.1", port=port)
        try:
            with httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
                rows = measure(client, pairs=options.pairs, size=options.size)
        finally:
            stop()
    publish(
        Report(
            name="overhead",
            parameters={"preset": "tiny", "pairs": options.pairs, "size": options.size, "steps": 50, "poll_s": POLL_S},
            rows=rows,
            summary={
                "miss_overhead_share": median(rows, "overhead_share", hit=False),
                "hit_overhead_share": median(rows, "overhead_share", hit=True),
                "hit_speedup": median(rows, "wall_s", hit=False) / median(rows, "wall_s", hit=True),
            },
        ),
        options,
    )


if __name__ == "__main__":
    main()
