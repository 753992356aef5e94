"""How well a stream holds together: `python -m benchmarks.stream_quality [--json]` (Speculative Sampling, section 3.3).

Streams of a minute under one prompt, and streams whose prompt changes, continued by the boundary image and by the
retained KV of the causal model. A seam is the step from one chunk's last frame to the next one's first, measured beside
the steps inside chunks. Sharpness and brightness are those of each second against the second one, as a viewer would
see a stream decay.

Shape letters: F frames, H, W pixels, C colour channels.
"""

import dataclasses
import itertools
import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.quality import NUM_ATTRIBUTES
from benchmarks.report import Report, Scalar, argument_parser, publish
from reprise.flashforward.model import load_long
from reprise.flashforward.schedule import Method
from reprise.speculative.continuation import ChunkRequest, decode_groups, sample_chunk
from reprise.speculative.retained_prefix import RetainedPrefix
from reprise.tinyworld import SceneSpec, change_one, is_held_out, sample_scene, score_video, write_prompt
from reprise.wan.live_presets import LivePreset, tiny_live
from reprise.wan.long_presets import tiny_long
from reprise.wan.model import encode_prompt, load

Frames = NDArray[np.uint8]
Chunks = Callable[[Sequence[str], int], Iterator[Frames]]
"""Give the frames of each chunk, for one prompt each and a seed."""

WINDOW: Final = 17
SIDE: Final = 64
STREAM_S: Final = 60.0
BOUNDARY_CHUNKS: Final = (2, 4, 8)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Arm:
    """A way to continue."""

    name: str
    chunk: int
    make: Chunks
    latent_s: float
    fps: int

    def num_chunks(self, seconds: float) -> int:
        """Give how many chunks so many seconds take."""
        return round(seconds / (self.chunk * self.latent_s))


def boundary_image(chunk_latents: int) -> Arm:
    """Continue from the last frame."""
    preset: LivePreset = dataclasses.replace(tiny_live(), chunk_latents=chunk_latents)
    model = load(preset.model)

    def make(prompts: Sequence[str], seed: int) -> Iterator[Frames]:
        boundary = None
        for job, prompt in enumerate(prompts):
            request = ChunkRequest(seed=seed, job=job, width=SIDE, height=SIDE, boundary_HWC=boundary)
            latent = sample_chunk(model, preset, request, encode_prompt(model, prompt))
            frames_FHWC = np.concatenate(list(decode_groups(model, latent)))
            boundary = frames_FHWC[-1]
            yield frames_FHWC

    return Arm(name="boundary image", chunk=chunk_latents, make=make, latent_s=preset.group_s, fps=preset.fps)


def retained_kv() -> Arm:
    """Continue from the KV of what was made."""
    model = load_long(tiny_long(), method=Method.SELF_FORCING)
    live = tiny_live()

    def make(prompts: Sequence[str], seed: int) -> Iterator[Frames]:
        stream = RetainedPrefix(model, seed=seed, width=SIDE, height=SIDE)
        for job, prompt in enumerate(prompts):
            yield np.concatenate(list(stream.sample(encode_prompt(model.wan, prompt), job=job, branch=stream.end)))

    chunk = model.preset.chunk_latents
    return Arm(name="retained KV", chunk=chunk, make=make, latent_s=live.group_s, fps=live.fps)


def attributes(frames_FHWC: Frames, scene: SceneSpec) -> float:
    """Give the share of the scene's attributes that are seen, over windows of 17 frames."""
    starts = range(0, len(frames_FHWC) - WINDOW + 1, WINDOW - 1)
    return statistics.fmean(
        len(score_video(frames_FHWC[start : start + WINDOW], scene).found()) / NUM_ATTRIBUTES for start in starts
    )


def steps_of(chunks: Sequence[Frames]) -> tuple[float, float]:
    """Give the mean change from frame to frame across seams and inside chunks, in levels of 255."""
    seams = [_change(before[-1:], after[:1]) for before, after in itertools.pairwise(chunks)]
    inside = [_change(chunk[:-1], chunk[1:]) for chunk in chunks if len(chunk) > 1]
    return statistics.fmean(seams), statistics.fmean(inside)


def _change(before_FHWC: Frames, after_FHWC: Frames) -> float:
    return float(np.abs(before_FHWC.astype(np.float32) - after_FHWC).mean())


def decay(frames_FHWC: Frames, fps: int) -> tuple[float, float]:
    """Give how far sharpness and brightness of any second lie from those of the second one, as shares of it."""
    grey_FHW = frames_FHWC.astype(np.float32).mean(3)
    sharp_F = np.abs(np.diff(grey_FHW, axis=2)).mean((1, 2))
    bright_F = grey_FHW.mean((1, 2))
    worst = []
    for values_F in (sharp_F, bright_F):
        seconds = [values_F[start : start + fps].mean() for start in range(0, len(values_F) - fps + 1, fps)]
        worst.append(max(abs(second / seconds[1] - 1) for second in seconds[2:]))
    return float(worst[0]), float(worst[1])


def draw_scenes(count: int, *, seed: int) -> list[tuple[SceneSpec, str]]:
    """Draw held-out scenes of one object, worded."""
    rng = np.random.default_rng((seed, 41))
    drawn: list[tuple[SceneSpec, str]] = []
    while len(drawn) < count:
        scene = sample_scene(rng, num_objects=1)
        if is_held_out(scene):
            drawn.append((scene, write_prompt(scene, rng)))
    return drawn


def hold(arm: Arm, count: int, *, seed: int) -> dict[str, Scalar]:
    """Play streams of a minute under one prompt."""
    rows = []
    for place, (scene, prompt) in enumerate(draw_scenes(count, seed=seed)):
        chunks = list(arm.make([prompt] * arm.num_chunks(STREAM_S), seed + place))
        frames_FHWC = np.concatenate(chunks)
        seam, inside = steps_of(chunks)
        third = len(frames_FHWC) // 3
        sharpness, brightness = decay(frames_FHWC, arm.fps)
        rows.append(
            (
                attributes(frames_FHWC[:third], scene),
                attributes(frames_FHWC[-third:], scene),
                seam,
                inside,
                sharpness,
                brightness,
            )
        )
    first, last, seam, inside, sharpness, brightness = (statistics.fmean(column) for column in zip(*rows, strict=True))
    return {
        "arm": arm.name,
        "chunk": arm.chunk,
        "streams": count,
        "score_first_third": 100 * first,
        "score_last_third": 100 * last,
        "seam_over_inside": seam / inside,
        "sharpness_off": sharpness,
        "brightness_off": brightness,
    }


def change(arm: Arm, count: int, *, seed: int) -> dict[str, Scalar]:
    """Change one attribute after a while; the new prompt's attributes in the first and second four seconds after."""
    rng = np.random.default_rng((seed, 42))
    found: list[tuple[float, float]] = []
    turned: list[float] = []
    for place, (scene, prompt) in enumerate(draw_scenes(count, seed=seed + 1)):
        target = change_one(scene, rng)
        before, after = arm.num_chunks(4.0), arm.num_chunks(8.0)
        chunks = list(arm.make([prompt] * before + [write_prompt(target, rng)] * after, seed + place))
        frames_FHWC = np.concatenate(chunks[before:])
        half = len(frames_FHWC) // 2
        found.append((attributes(frames_FHWC[:half], target), attributes(frames_FHWC[half:], target)))
        turned.append(float(score_wins(frames_FHWC[half:], target, scene)))
    return {
        "arm": arm.name,
        "chunk": arm.chunk,
        "changed_score_soon": 100 * statistics.fmean(one for one, _ in found),
        "changed_score_later": 100 * statistics.fmean(one for _, one in found),
        "changes_seen": statistics.fmean(turned),
    }


def score_wins(frames_FHWC: Frames, target: SceneSpec, source: SceneSpec) -> bool:
    """Tell whether the frames show more of the new scene than of the one before."""
    return attributes(frames_FHWC, target) > attributes(frames_FHWC, source)


def main() -> None:
    """Run the benchmark."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--streams", type=int, default=4, help="of a minute, under one prompt")
    parser.add_argument("--changes", type=int, default=16, help="streams whose prompt changes")
    options = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Scalar]] = []
    for arm in (*map(boundary_image, BOUNDARY_CHUNKS), retained_kv()):
        rows.append(hold(arm, options.streams, seed=options.seed) | change(arm, options.changes, seed=options.seed))
    long = rows[len(BOUNDARY_CHUNKS) - 1]
    publish(
        Report(
            name="stream_quality",
            parameters={"streams": options.streams, "changes": options.changes, "stream_s": STREAM_S, "threads": 1},
            rows=rows,
            summary={
                name: long[name]
                for name in ("score_first_third", "score_last_third", "seam_over_inside", "changes_seen")
            },
            notes=[
                "scores are shares of seven attributes that the exact scorer finds in windows of 17 frames, of 100",
                "the summary is of the boundary image with the longest chunk",
                "an object that crosses the picture changes its sharpness too: off is of the worst second",
            ],
        ),
        options,
    )


if __name__ == "__main__":
    main()
