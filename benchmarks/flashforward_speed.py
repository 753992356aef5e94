"""How fast the three schedules are: `python -m benchmarks.flashforward_speed [--json]` (FlashForward, A.2).

On one worker videos are made and timed, the methods in turn. With a worker for each stage, which this machine may not
have, the very lists of forwards are walked on a virtual clock: every forward takes the median time that forwards of
its role and with as much KV to read took in the same run; handing over takes nothing.
"""

import functools
import statistics
from typing import Final

import torch

from benchmarks.forward_costs import Measured, measure
from benchmarks.report import Report, Scalar, argument_parser, publish
from reprise.flashforward.model import load_long
from reprise.flashforward.schedule import Method, Placement, list_forwards
from reprise.flashforward.walk import walk
from reprise.wan.long_presets import LongPreset, tiny_long
from reprise.wan.presets import TEMPORAL_STRIDE

LATENTS: Final = (21, 81, 161, 261)
SUMMARY_LATENTS: Final = 81
PLACEMENTS: Final = {
    Method.FLASH_FORWARD: tuple(Placement),
    Method.SELF_FORCING: (Placement.ONE_WORKER,),
    Method.HIAR: (Placement.ONE_WORKER, Placement.WORKER_PER_STAGE),
}
BEST: Final = {
    Method.FLASH_FORWARD: Placement.DEDICATED_PLANNER,
    Method.SELF_FORCING: Placement.ONE_WORKER,
    Method.HIAR: Placement.WORKER_PER_STAGE,
}
"""What `*_workers` of the summary compare: each method on the workers that it can use."""


def virtual_s(preset: LongPreset, measured: Measured, method: Method, placement: Placement, num_latents: int) -> float:
    """Give the seconds of a video on the virtual clock."""
    layout = preset.layout(TEMPORAL_STRIDE * (num_latents - 1) + 1)
    return walk(list_forwards(method, layout, placement), functools.partial(measured.cost, method)).makespan


def rows_of(preset: LongPreset, measured: Measured, lengths: list[int]) -> list[dict[str, Scalar]]:
    """List every method on every placement at every length; ratios are to HiAR and Self-Forcing at their best."""
    rows: list[dict[str, Scalar]] = []
    for num_latents in lengths:
        clock = functools.partial(virtual_s, preset, measured)
        hiar = clock(Method.HIAR, BEST[Method.HIAR], num_latents)
        serial = clock(Method.SELF_FORCING, BEST[Method.SELF_FORCING], num_latents)
        for method, placements in PLACEMENTS.items():
            for placement in placements:
                seconds = clock(method, placement, num_latents)
                is_one = placement is Placement.ONE_WORKER
                rows.append(
                    {
                        "latents": num_latents,
                        "method": method.value,
                        "placement": placement.value,
                        "workers": placement.num_workers(len(preset.sigmas) - 1),
                        "measured_s": statistics.median(measured.videos[method, num_latents]) if is_one else None,
                        "virtual_s": seconds,
                        "vs_hiar_workers": hiar / seconds,
                        "vs_self_forcing": serial / seconds,
                    }
                )
    return rows


def summary_of(preset: LongPreset, measured: Measured, lengths: list[int]) -> dict[str, float]:
    """Give the figures with a bar, times faster; with one worker those of measured videos."""
    figures = {}
    for num_latents in lengths:
        best = {method: virtual_s(preset, measured, method, BEST[method], num_latents) for method in Method}
        ours = best[Method.FLASH_FORWARD]
        figures[f"vs_hiar_{num_latents}_workers"] = best[Method.HIAR] / ours
        figures[f"vs_self_forcing_{num_latents}_workers"] = best[Method.SELF_FORCING] / ours
    for name, method in (("vs_hiar_1", Method.HIAR), ("vs_self_forcing_1", Method.SELF_FORCING)):
        pairs = zip(
            measured.videos[method, SUMMARY_LATENTS],
            measured.videos[Method.FLASH_FORWARD, SUMMARY_LATENTS],
            strict=True,
        )
        figures[name] = statistics.median(theirs / ours for theirs, ours in pairs)
    return figures


def main() -> None:
    """Run the benchmark."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--latents", type=int, nargs="+", default=list(LATENTS), help=f"must have {SUMMARY_LATENTS}")
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.set_num_threads(1)
    preset = tiny_long()
    models = {method: load_long(preset, method=method) for method in Method}
    measured = measure(models, options.latents, repeats=options.repeats, seed=options.seed)
    publish(
        Report(
            name="flashforward_speed",
            parameters={"repeats": options.repeats, "threads": 1},
            rows=rows_of(preset, measured, options.latents),
            summary=summary_of(preset, measured, options.latents),
            notes=[
                "measured: first forward to last latent, without text encoding and decoding, as in the paper",
                "vs_*_workers: a gang of 4 + 1 against HiAR on 4 workers and Self-Forcing on 1, on the virtual clock",
                "vs_*_1: median over repeats of videos made one after the other on one worker",
            ],
        ),
        options,
    )


if __name__ == "__main__":
    main()
