"""The main job, end to end: `make demo`.

Starts the server on the bundled models, posts prompts to /v1/videos as any client would, and shows which ones were
served from an earlier one's latents. Writes the MP4 files and one contact sheet to outputs/demo.
"""

import argparse
import io
import pathlib
import shutil
import signal
import statistics
import sys
import time
from typing import Any, Final

import av
import httpx
import numpy as np
from numpy.typing import NDArray
from PIL import Image
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from deployments.config import AppConfig
from deployments.serve import free_port, start, stop
from reprise.tinyworld import read_prompt, score_video

PROMPTS: Final = (
    "a large red circle moves right over a blue background",
    "a small green star rises over a striped black background",
    "a huge scarlet ball drifts right in front of a navy background",
    "a white square rests on a purple gradient backdrop",
    "a large orange circle moves right over a blue background",
    "an animation of a tiny green star is moving up against a black background with stripes",
    "a yellow triangle moves down on a green background and a cyan star stays still",
    "a white box does not move on a purple background with a gradient",
)
"""Three themes, each met again in other words or with one attribute changed."""


def make_video(client: httpx.Client, prompt: str, *, seed: int, progress: Progress) -> dict[str, Any]:
    """Post one prompt and follow its job to the end."""
    response = client.post("/v1/videos", json={"prompt": prompt, "seed": seed, "size": "64x64", "seconds": "4"})
    response.raise_for_status()
    job: dict[str, Any] = response.json()
    bar = progress.add_task(prompt[:60], total=100)
    while job["status"] in ("queued", "in_progress"):
        progress.update(bar, completed=job["progress"])
        time.sleep(0.1)
        job = client.get(f"/v1/videos/{job['id']}").raise_for_status().json()
    progress.update(bar, completed=job["progress"])
    if job["status"] != "completed":
        raise RuntimeError(f"{job['id']} failed: {job['error']}")
    return job


def read_mp4(data: bytes) -> NDArray[np.uint8]:
    """Decode every frame (T, H, W, C)."""
    with av.open(io.BytesIO(data)) as container:
        return np.stack([frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)])


def words_found(prompt: str, frames_THWC: NDArray[np.uint8]) -> str:
    """Say which of the prompt's attributes the exact scorer reads back from the pixels."""
    scene = read_prompt(prompt)
    if scene is None:
        return "-"
    score, first = score_video(frames_THWC, scene), scene.objects[0]
    marks = {
        first.colour: score.colour,
        first.shape: score.shape,
        first.motion: score.motion,
        f"{scene.background} {scene.pattern}": score.background and score.pattern,
    }
    return ", ".join(word if is_right else f"[red strike]{word}[/red strike]" for word, is_right in marks.items())


def region_text(reuse: dict[str, Any]) -> str:
    """Say which steps worked on one object alone, and on how much of the picture, or why none did."""
    if reuse["region_phrase"] is None:
        return "" if reuse["region_reason"] is None else f"none ({reuse['region_reason']})"
    return f"{reuse['k1']} to {reuse['k2']}: {reuse['region_phrase']}, {reuse['see_share']:.0%} seen"


def contact_sheet(clips: list[NDArray[np.uint8]], *, num_columns: int = 6, zoom: int = 2) -> Image.Image:
    """Lay a few frames of every clip out, one row a clip."""
    rows = []
    for frames_THWC in clips:
        picked = np.linspace(0, len(frames_THWC) - 1, num_columns).round().astype(int)
        rows.append(np.concatenate([np.pad(frames_THWC[t], ((1, 1), (1, 1), (0, 0))) for t in picked], 1))
    sheet = np.concatenate(rows, 0)
    return Image.fromarray(sheet.repeat(zoom, 0).repeat(zoom, 1))


def summary_table(jobs: list[dict[str, Any]], clips: list[NDArray[np.uint8]]) -> Table:
    """Set the closing table."""
    table = Table(title="What was reused", expand=True)
    for name in (
        "#",
        "prompt",
        "",
        "source",
        "m",
        "skipped",
        "region only",
        "denoise s",
        "speed-up",
        "read back from the pixels",
    ):
        table.add_column(name)
    number = {job["id"]: str(index) for index, job in enumerate(jobs, 1)}
    full_s = statistics.median(job["reuse"]["seconds"]["denoise"] for job in jobs if not job["reuse"]["hit"])
    for job, frames_THWC in zip(jobs, clips, strict=True):
        reuse = job["reuse"]
        seconds, score = reuse["seconds"]["denoise"], reuse["matching_score"]
        table.add_row(
            number[job["id"]],
            job["prompt"],
            "[green]hit[/green]" if reuse["hit"] else f"miss ({reuse['reason']})",
            f"#{number[reuse['source_id']]}" if reuse["hit"] else "",
            "" if score is None else f"{score:.2f}",
            f"{reuse['k1']} of {reuse['effective']['num_inference_steps']}" if reuse["hit"] else "",
            region_text(reuse) if reuse["hit"] else "",
            f"{seconds:.2f}",
            f"{full_s / seconds:.2f}x" if reuse["hit"] else "",
            words_found(job["prompt"], frames_THWC),
        )
    return table


def main() -> int:
    """Run the demo; fails unless at least two prompts were served from another's latents, each faster than a miss."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--output", type=pathlib.Path, default=pathlib.Path("outputs/demo"))
    args = parser.parse_args()
    console = Console(width=None if sys.stdout.isatty() else 170)
    shutil.rmtree(args.output, ignore_errors=True)
    args.output.mkdir(parents=True)
    console.print("starting Ray Serve, the embedded store and the bundled models ...")
    port = free_port()
    start(AppConfig(data_dir=str(args.output / "data")), host="127.0.0.1", port=port)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # after the start, since Ray takes SIGTERM over
    try:
        jobs, clips = [], []
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.percentage:>3.0f}%"),
            TimeElapsedColumn(),
        )
        with (
            httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client,
            Progress(*columns, console=console) as bars,
        ):
            for index, prompt in enumerate(PROMPTS, 1):
                job = make_video(client, prompt, seed=index, progress=bars)
                data = client.get(f"/v1/videos/{job['id']}/content").raise_for_status().content
                (args.output / f"{index}.mp4").write_bytes(data)
                jobs.append(job)
                clips.append(read_mp4(data))
    finally:
        stop()
    contact_sheet(clips).save(args.output / "contact-sheet.png")
    console.print(summary_table(jobs, clips))
    console.print(f"videos and contact-sheet.png are in {args.output}")
    misses = [job["reuse"]["seconds"]["denoise"] for job in jobs if not job["reuse"]["hit"]]
    hits = [job["reuse"]["seconds"]["denoise"] for job in jobs if job["reuse"]["hit"]]
    is_good = len(hits) >= 2 and max(hits) < statistics.median(misses)
    if not is_good:
        console.print("[red]expected at least two hits, each denoised faster than the median miss[/red]")
    return 0 if is_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
