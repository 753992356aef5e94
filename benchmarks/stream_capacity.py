"""How many streams one worker carries: `python -m benchmarks.stream_capacity [--json]`.

Streams come one after the other and change their prompts as in the traces of many changes; the worker takes the call
that is due first. Counted are the most streams without a stall of which 95 % of the changes are seen within a bound,
for the best length of a chunk: short chunks keep the baseline's wait short, long ones make calls cheaper.
"""

import dataclasses
from typing import Final

from benchmarks.report import Report, Scalar, argument_parser, publish
from benchmarks.stream_costs import ChunkCosts, measure_chunks
from benchmarks.stream_latency import TRACE_S, draw_traces, quantile
from reprise.speculative.latency import Commitment
from reprise.speculative.report import read_report
from reprise.speculative.simulation import Trace, simulate_group
from reprise.wan.live_presets import tiny_live

CHUNKS: Final = (2, 4, 8)
MOST_STREAMS: Final = 64
ARMS: Final = {"ours": Commitment.GROUP, "baseline": Commitment.CHUNK}


def try_streams(costs: ChunkCosts, commitment: Commitment, count: int, *, seed: int) -> dict[str, Scalar]:
    """Serve so many streams at once."""
    traces = [
        Trace(changes=changes, begin_s=number * costs.group_s * 1.7)
        for number, changes in enumerate(draw_traces(count, "high", seed=seed))
    ]
    played = simulate_group(costs.config(commitment), traces, until_s=TRACE_S, call=costs.simulated())
    reports = [read_report(steps, group_s=costs.group_s) for steps in played]
    responses = sorted(response for report in reports for response in report.responses_s)
    return {
        "chunk": costs.chunk_latents,
        "streams": count,
        "l95_s": quantile(responses, 0.95),
        "stalls": sum(report.num_stalls for report in reports),
        "activity": sum(report.num_calls for report in reports) * costs.compute_s / TRACE_S,
    }


def main() -> None:
    """Run the benchmark."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--bound", type=float, default=1.5, help="seconds within which 95 %% of changes must be seen")
    parser.add_argument("--calls", type=int, default=24, help="calls of each length that are measured")
    options = parser.parse_args()
    every = [
        measure_chunks(dataclasses.replace(tiny_live(), chunk_latents=chunk), num_calls=options.calls)
        for chunk in CHUNKS
    ]
    rows: list[dict[str, Scalar]] = []
    summary: dict[str, Scalar] = {}
    for name, commitment in ARMS.items():
        most = 0
        for costs in every:
            count = 0
            while count < MOST_STREAMS:
                row = try_streams(costs, commitment, count + 1, seed=options.seed)
                if row["stalls"] or float(str(row["l95_s"])) > options.bound:
                    break
                count += 1
                best = row
            if count:
                rows.append({"arm": name, **best})
            else:
                rows.append({"arm": name, **row, "streams": 0})
            most = max(most, count)
        summary[name] = most
    publish(
        Report(
            name="stream_capacity",
            parameters={"bound_s": options.bound, "trace_s": TRACE_S, "threads": 1},
            rows=rows,
            summary=summary,
            notes=["a row is the largest number of streams that held; with 0 streams, what one alone was like"],
        ),
        options,
    )


if __name__ == "__main__":
    main()
