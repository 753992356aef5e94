"""What it costs to hand a tensor from stage to stage: `python -m benchmarks.wavefront_transport [--json]`.

Chunks go through four actors that only take a tensor and give it on, as the latents of a wavefront do, many of them
under way at once. Two ways of Ray beside each other: object references between ordered actor calls, which the product
uses, and a compiled graph with shared-memory channels. `ms_per_hop` is the time of the whole run over all hops.
"""

import logging
import statistics
import time
from typing import Any, Final

import ray
import torch
from ray.dag import InputNode

from benchmarks.report import Report, Scalar, argument_parser, publish

STAGES: Final = 4
IN_FLIGHT: Final = 8
SHAPES: Final = {
    "tiny": (1, 16, 3, 8, 8),
    "480p": (1, 16, 3, 60, 104),
    "720p": (1, 16, 3, 90, 160),
}
"""Latents of one chunk, float32."""


@ray.remote(num_cpus=1)
class Stage:
    """Gives on what it gets, in new memory."""

    def run(self, latent: torch.Tensor) -> torch.Tensor:
        """Take a tensor and give another one."""
        return latent + 1


def new_stages() -> list[Any]:
    """Start the actors of one wavefront."""
    stages = [Stage.remote() for _ in range(STAGES)]  # type: ignore[attr-defined]
    ray.get([stage.__ray_ready__.remote() for stage in stages])
    return stages


def by_references(stages: list[Any], latent: torch.Tensor, chunks: int) -> float:
    """Give the seconds of all chunks by ordered actor calls."""
    begin, under_way = time.perf_counter(), []
    for _ in range(chunks):
        ref: Any = latent
        for stage in stages:
            ref = stage.run.remote(ref)
        under_way.append(ref)
        if len(under_way) == IN_FLIGHT:
            ray.get(under_way.pop(0))
    ray.get(under_way)
    return time.perf_counter() - begin


def by_graph(graph: Any, latent: torch.Tensor, chunks: int) -> float:
    """Give the seconds of all chunks by a compiled graph."""
    begin, under_way = time.perf_counter(), []
    for _ in range(chunks):
        under_way.append(graph.execute(latent))
        if len(under_way) == IN_FLIGHT:
            ray.get(under_way.pop(0))
    for ref in under_way:
        ray.get(ref)
    return time.perf_counter() - begin


def compile_graph(stages: list[Any], num_bytes: int) -> Any:
    """Wire the stages one after the other."""
    with InputNode() as latent:
        node: Any = latent
        for stage in stages:
            node = stage.run.bind(node)
    return node.experimental_compile(_buffer_size_bytes=num_bytes + 1_000_000, _max_inflight_executions=IN_FLIGHT + 2)


def main() -> None:
    """Run the benchmark."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--chunks", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    ray.init(
        address="local",
        num_cpus=2 * STAGES,  # logical: the actors share whatever there is
        object_store_memory=512 << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.WARNING,
    )
    rows: list[dict[str, Scalar]] = []
    plain = new_stages()
    for name, shape in SHAPES.items():
        latent, wired = torch.randn(shape), new_stages()
        graph = compile_graph(wired, latent.nbytes)
        ways = {"object references": (by_references, plain), "compiled graph": (by_graph, graph)}
        seconds: dict[str, list[float]] = {way: [] for way in ways}
        for repeat in range(options.repeats + 1):
            for way, (run, through) in ways.items():
                took = run(through, latent, options.chunks)
                if repeat:  # the first warms up
                    seconds[way].append(took)
        for stage in wired:  # the graph's own teardown leaves them waiting for a channel
            ray.kill(stage)
        rows += [
            {
                "latents": name,
                "kilobytes": latent.nbytes / 1024,
                "way": way,
                "ms_per_hop": 1000 * statistics.median(took) / options.chunks / STAGES,
            }
            for way, took in seconds.items()
        ]
    ray.shutdown()
    publish(
        Report(
            name="wavefront_transport",
            parameters={"chunks": options.chunks, "repeats": options.repeats, "stages": STAGES},
            rows=rows,
            summary={f"{row['way']}_{row['latents']}_ms".replace(" ", "_"): row["ms_per_hop"] for row in rows},
            notes=["all actors run on one machine; between machines references and channels both go over the network"],
        ),
        options,
    )


if __name__ == "__main__":
    main()
