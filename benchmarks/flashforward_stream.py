"""How soon a long video can be watched: `python -m benchmarks.flashforward_stream [--json]` (FlashForward, A.2.3).

With a dedicated planner rendering starts after the first block; planner-first plans the whole video before. Both are
walked on the virtual clock of measured forwards, see flashforward_speed. `exposed_planner` is the planner's work that
the renderers wait for: how much sooner the video would be finished if planning took no time, as a share of the time
that planning takes. Rows named `measured` are of real gangs of actors on this machine, on whatever cores it has.
"""

import functools
import logging
import time
from typing import Final

import ray
import torch

from actors.wavefront import GangConfig, Wavefront
from benchmarks.forward_costs import PROMPT, Measured, measure, spec_of
from benchmarks.report import Report, Scalar, argument_parser, publish
from reprise.flashforward.model import LongModel, embed, load_long
from reprise.flashforward.schedule import Forward, Method, Placement, Role, Source, list_forwards
from reprise.flashforward.walk import walk
from reprise.flashforward.worker import RunFacts
from reprise.wan.long_presets import LongPreset, tiny_long
from reprise.wan.presets import TEMPORAL_STRIDE

LATENTS: Final = (21, 81, 161, 261)
SUMMARY_LATENTS: Final = 81
PLACEMENTS: Final = (Placement.DEDICATED_PLANNER, Placement.PLANNER_FIRST)
GANG_CPUS: Final = 5


def virtual_row(preset: LongPreset, measured: Measured, placement: Placement, num_latents: int) -> dict[str, Scalar]:
    """Walk one video."""
    layout = preset.layout(TEMPORAL_STRIDE * (num_latents - 1) + 1)
    cost = functools.partial(measured.cost, Method.FLASH_FORWARD)

    def without_planning(forward: Forward) -> float:
        return 0.0 if forward.source is Source.ANCHOR else cost(forward)

    forwards = list(list_forwards(Method.FLASH_FORWARD, layout, placement))
    found = walk(forwards, cost)
    planning = sum(cost(forward) for forward in forwards if forward.role in (Role.PLANNER, Role.EXTRACTION))
    return {
        "latents": num_latents,
        "placement": placement.value,
        "clock": "virtual",
        "first_chunk_s": found.first_delivery,
        "total_s": found.makespan,
        "first_frame_share": found.first_delivery / found.makespan,
        "exposed_planner_share": (found.makespan - walk(forwards, without_planning).makespan) / planning,
    }


def measured_row(model: LongModel, placement: Placement, num_latents: int, *, seed: int) -> dict[str, Scalar]:
    """Make one video on a gang, once to warm it up and once for the clock."""
    gang = Wavefront(GangConfig(preset=model.preset, placement=placement))
    spec = spec_of(model, Method.FLASH_FORWARD, num_latents, seed=seed)
    try:
        for _ in range(2):
            first, begin = 0.0, time.perf_counter()
            for done in gang.render(spec, *embed(model, PROMPT, ""), facts=RunFacts(), should_stop=lambda: False):
                first = time.perf_counter() - begin if done.positions.start == 0 else first
            total = time.perf_counter() - begin
    finally:
        gang.close()
    return {
        "latents": num_latents,
        "placement": placement.value,
        "clock": "measured",
        "first_chunk_s": first,
        "total_s": total,
        "first_frame_share": first / total,
        "exposed_planner_share": None,
    }


def main() -> None:
    """Run the benchmark."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--latents", type=int, nargs="+", default=list(LATENTS), help=f"must have {SUMMARY_LATENTS}")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--no-gang", action="store_true", help="leave the measured rows out; starts no Ray")
    options = parser.parse_args()
    torch.set_num_threads(1)
    preset = tiny_long()
    model = load_long(preset)
    measured = measure({Method.FLASH_FORWARD: model}, options.latents, repeats=options.repeats, seed=options.seed)
    rows = [virtual_row(preset, measured, place, count) for count in options.latents for place in PLACEMENTS]
    if not options.no_gang:
        ray.init(
            address="local",
            num_cpus=GANG_CPUS,  # logical: the actors share whatever there is
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.WARNING,
        )
        rows += [measured_row(model, place, SUMMARY_LATENTS, seed=options.seed) for place in PLACEMENTS]
        ray.shutdown()
    by_place = {(row["placement"], row["latents"], row["clock"]): row for row in rows}
    ours, first = (by_place[place.value, SUMMARY_LATENTS, "virtual"] for place in PLACEMENTS)
    publish(
        Report(
            name="flashforward_stream",
            parameters={"repeats": options.repeats, "threads": 1, "gang": not options.no_gang},
            rows=rows,
            summary={
                "first_frame_share": ours["first_frame_share"],
                "exposed_planner_share": ours["exposed_planner_share"],
                "first_frame_share_planner_first": first["first_frame_share"],
                "exposed_planner_share_planner_first": first["exposed_planner_share"],
            },
            notes=["to the first finished chunk; decoding it and encoding its piece come on top"],
        ),
        options,
    )


if __name__ == "__main__":
    main()
