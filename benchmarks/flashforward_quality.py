"""How well long videos hold: `python -m benchmarks.flashforward_quality [--json]` (FlashForward, sections 4.1, 4.2).

The three methods, with the adapters that were trained for them on one backbone and with the same budget, and
FlashForward without anchors and without history, make the same held-out prompts at three lengths: the latents of the
paper's 20, 35 and 65 seconds. The exact scorer reads every window of 17 frames; drift is how far the ground's colour
moves from the first window to the last.

Shape letters: F frames, H, W pixels, C colour channels.
"""

import dataclasses
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.quality import NUM_ATTRIBUTES, flicker
from benchmarks.report import Report, Scalar, argument_parser, publish
from reprise.flashforward.denoiser import LongVideoSpec
from reprise.flashforward.model import LongModel, embed, load_long, new_denoiser
from reprise.flashforward.schedule import Forward, Method, Placement, Role, Source, list_forwards
from reprise.flashforward.worker import render
from reprise.tinyworld import SceneSpec, is_held_out, sample_scene, score_video, write_prompt
from reprise.wan.long_presets import tiny_long
from reprise.wan.presets import TEMPORAL_STRIDE
from reprise.wan.vae_stream import VideoDecoder

LATENTS: Final = (81, 141, 261)
"""16 frames a second for 20, 35 and 65 seconds, four frames a latent."""
WINDOW: Final = 17
SIDE: Final = 64


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """A way to make videos."""

    name: str
    method: Method
    drop: Callable[[Iterator[Forward]], list[Forward]] = list


def without(source: Source) -> Callable[[Iterator[Forward]], list[Forward]]:
    """Let chunks see no KV of a kind; without anchors nothing is planned either."""

    def drop(forwards: Iterator[Forward]) -> list[Forward]:
        kept = []
        for forward in forwards:
            if forward.role is Role.RENDERER:
                forward = forward._replace(reads=tuple(span for span in forward.reads if span.source is not source))
            elif source is Source.ANCHOR:
                continue
            kept.append(forward)
        return kept

    return drop


ARMS: Final = (
    Arm(name="flashforward", method=Method.FLASH_FORWARD),
    Arm(name="self_forcing", method=Method.SELF_FORCING),
    Arm(name="hiar", method=Method.HIAR),
    Arm(name="no anchors", method=Method.FLASH_FORWARD, drop=without(Source.ANCHOR)),
    Arm(name="no history", method=Method.FLASH_FORWARD, drop=without(Source.CHUNK)),
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LongQuality:
    """One video against its prompt."""

    score: float
    """Share of the seven attributes, over all windows."""
    worst: float
    """Of the window that shows least."""
    flicker: float
    """Of the ground, in levels of 255 a frame."""
    drift: float
    """In levels of 255."""


def judge(frames_FHWC: NDArray[np.uint8], scene: SceneSpec) -> LongQuality:
    """Read a video window by window."""
    starts = range(0, len(frames_FHWC) - WINDOW + 1, WINDOW - 1)
    windows = [frames_FHWC[start : start + WINDOW] for start in starts]
    scores = [len(score_video(window, scene).found()) / NUM_ATTRIBUTES for window in windows]
    first_C, last_C = (np.median(window.astype(np.float32), (0, 1, 2)) for window in (windows[0], windows[-1]))
    return LongQuality(
        score=statistics.fmean(scores),
        worst=min(scores),
        flicker=flicker(frames_FHWC),
        drift=float(np.abs(last_C - first_C).mean()),
    )


def make_video(model: LongModel, arm: Arm, prompt: str, *, seed: int, num_latents: int) -> NDArray[np.uint8]:
    """Generate one video and decode it as it grows."""
    preset = model.preset
    layout = preset.layout((num_latents - 1) * TEMPORAL_STRIDE + 1)
    spec = LongVideoSpec(
        method=arm.method,
        layout=layout,
        seed=seed,
        width=SIDE,
        height=SIDE,
        guidance_scale=preset.guidance_scale,
        sigmas=preset.sigmas,
    )
    forwards = arm.drop(list_forwards(arm.method, layout, Placement.ONE_WORKER))
    decoder = VideoDecoder(model.wan)
    denoiser = new_denoiser(model, spec, *embed(model, prompt, ""))
    return np.concatenate([decoder.decode(done.latent_BCTHW) for done in render(forwards, denoiser)])


def draw_prompts(count: int, *, seed: int) -> list[tuple[SceneSpec, str]]:
    """Draw held-out scenes and word them."""
    rng = np.random.default_rng((seed, 30))
    drawn: list[tuple[SceneSpec, str]] = []
    while len(drawn) < count:
        scene = sample_scene(rng)
        if is_held_out(scene):
            drawn.append((scene, write_prompt(scene, rng)))
    return drawn


def row_of(arm: str, num_latents: int, judged: Sequence[LongQuality]) -> dict[str, Scalar]:
    """Average over videos, in points of 100."""
    scores = [100 * one.score for one in judged]
    return {
        "method": arm,
        "latents": num_latents,
        "videos": len(judged),
        "score": statistics.fmean(scores),
        "score_se": statistics.stdev(scores) / len(scores) ** 0.5 if len(scores) > 1 else None,
        "worst_window": 100 * statistics.fmean(one.worst for one in judged),
        "flicker": statistics.fmean(one.flicker for one in judged),
        "drift": statistics.fmean(one.drift for one in judged),
    }


def summary_of(rows: Sequence[dict[str, Scalar]], *, shortest: int, longest: int) -> dict[str, float]:
    """Give the figures with a bar."""
    scores = {(row["method"], row["latents"]): float(str(row["score"])) for row in rows}
    return {
        "score_short": scores["flashforward", shortest],
        "score_long": scores["flashforward", longest],
        "hiar_long": scores["hiar", longest],
        "self_forcing_long": scores["self_forcing", longest],
    }


def main() -> None:
    """Run the benchmark."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--videos", type=int, default=12, help="prompts, each made by every method at every length")
    parser.add_argument("--latents", type=int, nargs="+", default=list(LATENTS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    prompts = draw_prompts(options.videos, seed=options.seed)
    models = {method: load_long(tiny_long(), method=method) for method in Method}
    rows = []
    for num_latents in options.latents:
        for arm in ARMS:
            judged = [
                judge(
                    make_video(models[arm.method], arm, prompt, seed=options.seed + place, num_latents=num_latents),
                    scene,
                )
                for place, (scene, prompt) in enumerate(prompts)
            ]
            rows.append(row_of(arm.name, num_latents, judged))
    publish(
        Report(
            name="flashforward_quality",
            parameters={"videos": options.videos, "threads": 1},
            rows=rows,
            summary=summary_of(rows, shortest=min(options.latents), longest=max(options.latents)),
            notes=[
                "score is the share of seven attributes that the exact scorer finds in windows of 17 frames, of 100",
                "no anchors and no history leave KV out that the model was trained with",
                "the same prompts and seeds at all lengths and for all methods",
            ],
        ),
        options,
    )


if __name__ == "__main__":
    main()
