"""Forwards, makespans and break-evens of three schedules of long videos: `python -m benchmarks.flashforward_counts`.

For each length, schedule and placement the list of forwards is made and gone through, each forward taking one unit of
time; the closed forms stand beside what was found. `wait` and `busy_share` are of the workers that render: idle before
their last forward, on average, and time at work out of the makespan. `peak_kv` counts entries in all workers' memories
and in the fullest one's: the KV of one chunk at one stage, or of one anchor. `break_even_hiar` is the speed-up of
planner forwards from which FlashForward with a worker per stage beats HiAR, `break_even_self_forcing` that of
Self-Forcing's up to which it is beaten. The summary is from the lists, rounded to two digits; the command fails if a
list and a formula disagree. `list_s` is the longest that one of the lists of 10,000 chunks took to make and go
through. `executed_*` are forwards of the bundled model, counted at its first layer while it makes a video of each
schedule; there too a difference fails.
"""

import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Final, NamedTuple

from benchmarks.report import Report, Scalar, argument_parser, publish
from reprise.flashforward import formulas
from reprise.flashforward.break_even import walked_break_even_hiar, walked_break_even_self_forcing
from reprise.flashforward.denoiser import LongVideoSpec
from reprise.flashforward.layout import Layout
from reprise.flashforward.model import embed, load_long, new_denoiser
from reprise.flashforward.schedule import (
    Forward,
    Method,
    Placement,
    Role,
    flash_forward,
    hiar,
    list_forwards,
    self_forcing,
)
from reprise.flashforward.walk import Walk, walk
from reprise.flashforward.worker import render
from reprise.wan.long_presets import tiny_long

SUMMARY_LATENTS: Final = 81
BREAK_EVEN_LATENTS: Final = (21, 261)
LATENTS: Final = (21, 81, 161, 261, 321)
MANY_CHUNKS: Final = 10_000
SIDE: Final = 16
"""Pixels of the videos that are made: the number of forwards does not depend on it."""
CHUNK_LATENTS: Final = Layout(num_latents=1).chunk_latents


class Case(NamedTuple):
    """One schedule on one placement, with its closed forms."""

    schedule: str
    placement: Placement
    forwards: Callable[[Layout], Iterator[Forward]]
    count_forwards: Callable[[Layout], Mapping[Role, int]]
    makespan: Callable[[Layout], float]


def cases() -> Iterator[Case]:
    """Give every schedule on every placement that it has."""
    for placement in Placement:
        yield Case(
            "flashforward",
            placement,
            partial(flash_forward, placement=placement),
            formulas.flash_forward_forwards,
            partial(formulas.flash_forward_makespan, placement=placement),
        )
    yield Case(
        "self_forcing",
        Placement.ONE_WORKER,
        self_forcing,
        formulas.self_forcing_forwards,
        formulas.self_forcing_makespan,
    )
    for placement in (Placement.ONE_WORKER, Placement.WORKER_PER_STAGE):
        yield Case(
            "hiar",
            placement,
            partial(hiar, placement=placement),
            formulas.hiar_forwards,
            partial(formulas.hiar_makespan, placement=placement),
        )


def checked_walk(case: Case, layout: Layout) -> Walk:
    """Go through a list; leave if it and its formulas disagree."""
    found, makespan = walk(case.forwards(layout)), case.makespan(layout)
    count = {role: number for role, number in case.count_forwards(layout).items() if number}
    if found.forwards != count or not math.isclose(found.makespan, makespan):
        raise SystemExit(
            f"{case.schedule}, {case.placement}, {layout.num_latents} latents: the list has {found.forwards} and takes "
            f"{found.makespan}, the formulas say {count} and {makespan}"
        )
    return found


def row_of(case: Case, layout: Layout) -> dict[str, Scalar]:
    """Set one list beside its formulas."""
    found = checked_walk(case, layout)
    renderers = found.workers[: layout.num_stages]
    row: dict[str, Scalar] = {
        "latents": layout.num_latents,
        "schedule": case.schedule,
        "placement": case.placement.value,
        "chunks": layout.num_chunks,
        "blocks": layout.num_blocks if Role.PLANNER in found.forwards else 0,
        **{role.value: found.forwards.get(role, 0) for role in Role},
        "forwards": found.num_forwards,
        "forwards_formula": sum(case.count_forwards(layout).values()),
        "makespan": found.makespan,
        "makespan_formula": case.makespan(layout),
        "first_chunk": found.first_delivery,
        "workers": len(found.workers),
        "wait": statistics.fmean(worker.wait for worker in renderers),
        "busy_share": statistics.fmean(worker.busy for worker in renderers) / found.makespan,
        "peak_kv": found.peak_kv,
        "peak_kv_worker": max(worker.peak_kv for worker in found.workers),
    }
    if (case.schedule, case.placement) == ("flashforward", Placement.WORKER_PER_STAGE):
        row |= break_evens(layout)
    return row


def break_evens(layout: Layout) -> dict[str, Scalar]:
    """Give both break-evens, from the lists and by formula; None where HiAR is not beaten at any speed-up."""
    figures = {
        "break_even_hiar": walked_break_even_hiar(layout),
        "break_even_hiar_formula": formulas.break_even_hiar(layout),
        "break_even_self_forcing": walked_break_even_self_forcing(layout),
        "break_even_self_forcing_formula": formulas.break_even_self_forcing(layout),
    }
    return {name: figure if math.isfinite(figure) else None for name, figure in figures.items()}


def executed(method: Method, layout: Layout) -> int:
    """Make a video with the bundled model and count how often its first layer runs."""
    preset = tiny_long()
    model = load_long(preset, method=method)
    spec = LongVideoSpec(
        method=method,
        layout=layout,
        seed=0,
        width=SIDE,
        height=SIDE,
        guidance_scale=preset.guidance_scale,
        sigmas=preset.sigmas,
    )
    denoiser = new_denoiser(model, spec, *embed(model, "a red circle moves left over a blue background", ""))
    runs: list[str] = []
    handle = model.wan.transformer.patch_embedding.register_forward_hook(lambda *_: runs.append(method))
    latents = sum(
        len(done.positions) for done in render(list(list_forwards(method, layout, Placement.ONE_WORKER)), denoiser)
    )
    handle.remove()
    if latents != layout.num_latents:
        raise SystemExit(f"{method} delivered {latents} latents of {layout.num_latents}")
    return len(runs)


def longest_list_s(num_chunks: int) -> float:
    """Give the seconds that the slowest of all lists of so many chunks takes to make and go through."""
    layout = Layout(num_latents=num_chunks * CHUNK_LATENTS)
    seconds = []
    for case in cases():
        begin = time.perf_counter()
        walk(case.forwards(layout))
        seconds.append(time.perf_counter() - begin)
    return max(seconds)


def main() -> None:
    """Run the benchmark."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--latents", type=int, nargs="+", default=list(LATENTS), help="lengths to list in the rows")
    parser.add_argument("--many-chunks", type=int, default=MANY_CHUNKS, help="chunks of the lists that are timed")
    options = parser.parse_args()
    rows = [row_of(case, Layout(num_latents=num_latents)) for num_latents in options.latents for case in cases()]
    summary: dict[str, Scalar] = {
        case.schedule: checked_walk(case, Layout(num_latents=SUMMARY_LATENTS)).num_forwards for case in cases()
    }
    for method in Method:
        summary[f"executed_{method}"] = executed(method, Layout(num_latents=SUMMARY_LATENTS))
        if summary[f"executed_{method}"] != summary[method]:
            raise SystemExit(f"{method}: the list has {summary[method]}, run were {summary[f'executed_{method}']}")
    for num_latents in BREAK_EVEN_LATENTS:
        found = walked_break_even_hiar(Layout(num_latents=num_latents))
        summary[f"breakeven_hiar_{num_latents}"] = round(found, 2)
    for num_latents in BREAK_EVEN_LATENTS:
        found = walked_break_even_self_forcing(Layout(num_latents=num_latents))
        summary[f"breakeven_self_forcing_{num_latents}"] = round(found, 2)
    summary["list_s"] = longest_list_s(options.many_chunks)
    publish(
        Report(
            name="flashforward_counts",
            parameters={
                "latents": ", ".join(map(str, options.latents)),
                "stages": Layout(num_latents=SUMMARY_LATENTS).num_stages,
                "many_chunks": options.many_chunks,
            },
            rows=rows,
            summary=summary,
            notes=["makespans count forwards, each one unit of time; the executed forwards are those of one worker"],
        ),
        options,
    )


if __name__ == "__main__":
    main()
