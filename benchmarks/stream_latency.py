"""How soon a viewer sees a change: `python -m benchmarks.stream_latency [--json]` (Speculative Sampling, table 3).

The same 60-second traces of changes, few and many, for chunks short and long, committed chunk by chunk (the baseline)
and group by group. In simulated time, with calls that take what they were measured to take here; and some of the
traces in real time, through a real server and a WebSocket client, whose clock starts when it sends a prompt.
"""

import asyncio
import dataclasses
import json
import logging
import random
import statistics
import tempfile
import time
from collections.abc import Sequence
from typing import Final

from websockets.asyncio.client import ClientConnection, connect

from benchmarks.report import Report, Scalar, argument_parser, publish
from benchmarks.stream_costs import PROMPTS, ChunkCosts, measure_chunks, read_costs
from reprise.speculative.latency import Commitment, LatencyModel
from reprise.speculative.report import StreamReport, read_report
from reprise.speculative.simulation import simulate
from reprise.wan.live_presets import LivePreset, tiny_live

TRACE_S: Final = 60.0
FREQUENCIES: Final = {"low": (1, 2), "high": (3, 11)}
"""Least and most changes of a trace."""
LENGTHS: Final = ("short", "long")


def draw_traces(count: int, frequency: str, *, seed: int) -> list[list[float]]:
    """Draw when prompts change, with no regard to playback."""
    rng = random.Random(f"{seed} {frequency}")
    least, most = FREQUENCIES[frequency]
    return [sorted(rng.uniform(1, TRACE_S - 6) for _ in range(rng.randint(least, most))) for _ in range(count)]


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """One way to serve."""

    length: str
    costs: ChunkCosts
    commitment: Commitment

    @property
    def name(self) -> str:
        """Name it as the paper does."""
        return "baseline" if self.commitment is Commitment.CHUNK else "speculative"

    def play(self, traces: Sequence[Sequence[float]]) -> list[StreamReport]:
        """Serve every trace in simulated time."""
        config, call = self.costs.config(self.commitment), self.costs.simulated()
        return [
            read_report(simulate(config, changes, until_s=TRACE_S, call=call), group_s=self.costs.group_s)
            for changes in traces
        ]


def row_of(arm: Arm, frequency: str, reports: Sequence[StreamReport], clock: str) -> dict[str, Scalar]:
    """Sum up one arm's streams."""
    responses = sorted(response for report in reports for response in report.responses_s)
    return {
        "clock": clock,
        "frequency": frequency,
        "chunk": arm.costs.chunk_latents,
        "arm": arm.name,
        "changes": len(responses),
        "l50_s": statistics.median(responses),
        "l95_s": quantile(responses, 0.95),
        "mean_s": statistics.fmean(responses),
        "stall_share": statistics.fmean(report.stall_share for report in reports),
        "stalls": sum(report.num_stalls for report in reports),
        "stood_in": sum(report.num_underruns - report.num_stalls for report in reports),
        "activity": statistics.fmean(report.activity for report in reports),
        "discarded_share": sum(report.num_discarded for report in reports)
        / sum(report.num_discarded + report.num_delivered for report in reports),
        "superseded": sum(report.num_superseded for report in reports),
    }


def quantile(ordered: Sequence[float], share: float) -> float:
    """Give the smallest value that so large a share does not exceed."""
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


async def watch(url: str, changes: Sequence[float], commitment: Commitment) -> list[float]:
    """Play one trace in real time; seconds from sending each prompt to having the first pictures made for it."""
    sent: dict[int, float] = {}
    responses: list[float] = []

    async def change(socket: ClientConnection, began: float) -> None:
        for sequence, at in enumerate(changes, 1):
            await asyncio.sleep(began + at - time.perf_counter())
            sent[sequence] = time.perf_counter()
            message = {"type": "prompt", "prompt": PROMPTS[sequence % 2], "sequence": sequence}
            await socket.send(json.dumps(message))
        await asyncio.sleep(began + TRACE_S - time.perf_counter())
        await socket.send(json.dumps({"type": "stop"}))

    async with connect(url) as socket:
        await socket.send(
            json.dumps({"type": "start", "prompt": PROMPTS[0], "seed": 0, "commitment": commitment.value})
        )
        changing, shown = None, 0
        waits_for_pictures: int | None = None
        async for frame in socket:
            if isinstance(frame, bytes):
                if waits_for_pictures is not None and waits_for_pictures > shown:
                    shown = waits_for_pictures
                    responses.append(time.perf_counter() - sent[shown])
                if changing is None:
                    changing = asyncio.create_task(change(socket, time.perf_counter()))
                continue
            message = json.loads(frame)
            if message["type"] == "commit":
                waits_for_pictures = message["sequence"]
            elif message["type"] == "underrun":
                logging.warning("the real stream was short of frame %d", message["frame"])
        if changing is not None:
            await changing
    return responses


def play_for_real(
    traces: Sequence[Sequence[float]], preset: LivePreset
) -> tuple[dict[Commitment, list[float]], ChunkCosts]:
    """Serve traces one after the other by the whole application on this machine; and what its calls took."""
    from deployments import serve
    from deployments.config import AppConfig

    with tempfile.TemporaryDirectory(prefix="reprise-bench-") as folder:
        config = AppConfig.model_validate(
            {
                "preset": "tiny-4step",
                "data_dir": folder,
                "long": {"enabled": False},
                "masks": {"engine": "off"},
                "live": {"chunk_latents": preset.chunk_latents, "event_logs": True},
            }
        )
        port = serve.free_port()
        serve.start(config, host="127.0.0.1", port=port)
        try:
            url = f"ws://127.0.0.1:{port}/v1/streams"
            responses = {
                commitment: [one for changes in traces for one in asyncio.run(watch(url, changes, commitment))]
                for commitment in Commitment
            }
        finally:
            serve.stop()
        logs = [path.read_text() for path in (config.data_path() / "streams").iterdir()]
        return responses, read_costs(logs, preset)


def summary_of(rows: Sequence[dict[str, Scalar]], costs: dict[str, ChunkCosts]) -> dict[str, Scalar]:
    """Give the figures with a bar."""
    found = {(row["frequency"], row["chunk"], row["arm"]): row for row in rows if row["clock"] == "simulated"}
    short, long = (costs[length] for length in LENGTHS)
    figures: dict[str, Scalar] = {}
    for length, cost in costs.items():
        model = LatencyModel(chunk_groups=cost.chunk_latents, group_s=cost.group_s, compute_s=cost.compute_s)
        ours, baseline = (found["low", cost.chunk_latents, arm] for arm in ("speculative", "baseline"))
        reduction_s = float(str(baseline["mean_s"])) - float(str(ours["mean_s"]))
        figures |= {
            f"compute_{length}_s": cost.compute_s,
            f"headroom_{length}": cost.compute_s < model.chunk_s / 3,
            f"reduction_{length}_s": reduction_s,
            f"reduction_share_{length}": reduction_s / model.reduction_s,
        }
    figures["reduction_share"] = figures["reduction_share_long"]
    figures["stalls"] = sum(int(str(row["stalls"])) for row in found.values())
    figures["long_may_beat_short"] = long.compute_s - short.compute_s < (short.chunk_latents - 1) * short.group_s / 2
    figures["long_beats_short"] = all(
        float(str(found[frequency, long.chunk_latents, "speculative"]["l50_s"]))
        < float(str(found[frequency, short.chunk_latents, "baseline"]["l50_s"]))
        for frequency in FREQUENCIES
    )
    return figures


def main() -> None:
    """Run the benchmark."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--traces", type=int, default=300, help="of each frequency, simulated; the paper has 30")
    parser.add_argument("--real", type=int, default=3, help="traces in real time, a minute each per arm")
    parser.add_argument("--short", type=int, default=2, help="latents of a short chunk")
    parser.add_argument("--long", type=int, default=8, help="latents of a long chunk")
    parser.add_argument("--calls", type=int, default=24, help="calls of each length that are measured")
    options = parser.parse_args()
    costs = {
        length: measure_chunks(
            dataclasses.replace(tiny_live(), chunk_latents=getattr(options, length)), num_calls=options.calls
        )
        for length in LENGTHS
    }
    rows = []
    for frequency in FREQUENCIES:
        traces = draw_traces(options.traces, frequency, seed=options.seed)
        for length, cost in costs.items():
            for commitment in (Commitment.CHUNK, Commitment.GROUP):
                arm = Arm(length=length, costs=cost, commitment=commitment)
                rows.append(row_of(arm, frequency, arm.play(traces), "simulated"))
    summary = summary_of(rows, costs)
    if options.real:
        traces = draw_traces(options.traces, "high", seed=options.seed)[: options.real]
        measured, served = play_for_real(traces, dataclasses.replace(tiny_live(), chunk_latents=options.long))
        gaps = []
        for commitment, responses in measured.items():
            arm = Arm(length="long", costs=served, commitment=commitment)
            expected = row_of(arm, "high", arm.play(traces), "simulated, traces and calls of the real")
            rows += [
                expected,
                {
                    "clock": "real",
                    "frequency": "high",
                    "chunk": options.long,
                    "arm": arm.name,
                    "changes": len(responses),
                    "l50_s": statistics.median(responses),
                    "l95_s": quantile(sorted(responses), 0.95),
                    "mean_s": statistics.fmean(responses),
                },
            ]
            gaps.append(abs(statistics.fmean(responses) / float(str(expected["mean_s"])) - 1))
        summary |= {"compute_served_s": served.compute_s, "realtime_gap": max(gaps)}
    publish(
        Report(
            name="stream_latency",
            parameters={"traces": options.traces, "real": options.real, "trace_s": TRACE_S, "threads": 1},
            rows=rows,
            summary=summary,
            notes=[
                "seconds from a prompt's arrival to the first group made for it; real: from when the client sent it",
                "reduction_share is of (T - delta)/2",
                "stood_in counts late groups for which what had been predicted before the change was shown",
                "discarded_share is of all sampled groups",
            ],
        ),
        options,
    )


if __name__ == "__main__":
    main()
