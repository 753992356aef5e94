"""What Chorus could save of a long video: `python -m benchmarks.flashforward_reuse [--json]`.

The planner of a video whose prompt differs in one attribute from an earlier one's goes on from that one's anchors as
they stood at a later stage, as stage 1 of Chorus does with clips; the renderer runs in full, since its latents of
other prompts are not kept. Rows say how many of the planner's stages are left out.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Final

import numpy as np
import torch
from torch import Tensor

from benchmarks.flashforward_quality import SIDE, judge
from benchmarks.report import Report, Scalar, argument_parser, publish
from reprise.flashforward.denoiser import LongVideoSpec, StageDenoiser
from reprise.flashforward.layout import Layout
from reprise.flashforward.model import LongModel, embed, load_long, new_denoiser
from reprise.flashforward.routing import route
from reprise.flashforward.schedule import Forward, Method, Placement, Role, Source, list_forwards
from reprise.flashforward.worker import StageWorker, render
from reprise.tinyworld import SceneSpec, change_one, is_held_out, sample_scene, write_prompt
from reprise.wan.long_presets import tiny_long
from reprise.wan.vae_stream import VideoDecoder

Starts = dict[tuple[Source, int], Tensor]
NUM_LATENTS: Final = 81


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Edit:
    """An earlier video and the one that is asked for."""

    source: str
    target: str
    scene: SceneSpec


def draw_edits(count: int, *, seed: int) -> list[Edit]:
    """Draw held-out scenes of one object and an earlier scene that differs in one attribute."""
    rng = np.random.default_rng((seed, 31))
    edits: list[Edit] = []
    while len(edits) < count:
        source = sample_scene(rng, num_objects=1)
        scene = change_one(source, rng)
        if is_held_out(scene):
            edits.append(Edit(source=write_prompt(source, rng), target=write_prompt(scene, rng), scene=scene))
    return edits


def forwards_from(layout: Layout, stage: int) -> list[Forward]:
    """List FlashForward's forwards without the planner's first stages."""
    forwards = list_forwards(Method.FLASH_FORWARD, layout, Placement.ONE_WORKER)
    return [forward for forward in forwards if forward.role is not Role.PLANNER or forward.stage >= stage]


def planned_states(denoiser: StageDenoiser, layout: Layout) -> list[Starts]:
    """Plan a video and give its blocks as they enter each stage."""
    states: list[Starts] = [{} for _ in range(layout.num_stages)]
    forwards = list_forwards(Method.FLASH_FORWARD, layout, Placement.ONE_WORKER)
    worker, latents = StageWorker(0, denoiser), Starts()
    for routed in route([forward for forward in forwards if forward.source is Source.ANCHOR]):
        forward = routed.forward
        place = (forward.source, forward.unit)
        if forward.advances and place in latents:
            states[forward.stage][place] = latents[place]
        result = worker.run(routed, latents.get(place))
        if result.latent_BCTHW is not None:
            latents[place] = result.latent_BCTHW
    return states


def make_spec(model: LongModel, *, seed: int, num_latents: int) -> LongVideoSpec:
    """Describe one video."""
    preset = model.preset
    layout = preset.layout(4 * (num_latents - 1) + 1)
    return LongVideoSpec(
        method=Method.FLASH_FORWARD,
        layout=layout,
        seed=seed,
        width=SIDE,
        height=SIDE,
        guidance_scale=preset.guidance_scale,
        sigmas=preset.sigmas,
    )


def row_of(stage: int, scores: Sequence[float], layout: Layout) -> dict[str, Scalar]:
    """Sum up one number of stages left out."""
    whole, run = (forwards_from(layout, first) for first in (0, stage))
    waits = [1 + next(place for place, forward in enumerate(forwards) if forward.delivers) for forwards in (whole, run)]
    return {
        "planner_stages_left_out": stage,
        "score": 100 * statistics.fmean(scores),
        "forwards": len(run),
        "forwards_saved": 1 - len(run) / len(whole),
        "first_chunk_saved": 1 - waits[1] / waits[0],
    }


def main() -> None:
    """Run the benchmark."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--videos", type=int, default=24)
    options = parser.parse_args()
    torch.set_num_threads(1)
    model = load_long(tiny_long())
    layout = make_spec(model, seed=0, num_latents=NUM_LATENTS).layout
    scores: list[list[float]] = [[] for _ in range(layout.num_stages)]
    for seed, edit in enumerate(draw_edits(options.videos, seed=options.seed), start=options.seed):
        earlier = new_denoiser(
            model, make_spec(model, seed=seed + 1_000, num_latents=NUM_LATENTS), *embed(model, edit.source, "")
        )
        states = planned_states(earlier, layout)
        denoiser = new_denoiser(
            model, make_spec(model, seed=seed, num_latents=NUM_LATENTS), *embed(model, edit.target, "")
        )
        for stage, starts in enumerate(states):
            decoder = VideoDecoder(model.wan)
            forwards = forwards_from(layout, stage)
            pieces = [decoder.decode(done.latent_BCTHW) for done in render(forwards, denoiser, starts=starts)]
            scores[stage].append(judge(np.concatenate(pieces), edit.scene).score)
    rows = [row_of(stage, found, layout) for stage, found in enumerate(scores)]
    publish(
        Report(
            name="flashforward_reuse",
            parameters={"videos": options.videos, "latents": NUM_LATENTS, "threads": 1},
            rows=rows,
            summary={
                f"{name}_{row['planner_stages_left_out']}": row[name]
                for row in rows
                for name in ("score", "forwards_saved", "first_chunk_saved")
            },
            notes=["forwards and the wait for the first chunk are in units of one forward on one worker"],
        ),
        options,
    )


if __name__ == "__main__":
    main()
