"""What key frames lose: every fourth true mask, spread, against all of them: `python -m benchmarks.key_frames`.

Chorus section 3.3.1, measured where it counts: on the latent grid, after max-pooling. A real clip (`car-shadow` of the
collection in `REPRISE_DATA`; left out with a note where it is missing) and clips of the tiny world, there also with
the bundled segmenter's masks in place of the true ones.

Shape letters: F video frames, H, W pixels, T latent frames, C colour channels.
"""

import dataclasses
import pathlib
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image

from actors.engines.tiny_segmenter import TinySegmenter
from benchmarks.report import Report, Scalar, argument_parser, publish
from load_tests.traces import DATA
from reprise.chorus.key_frames import fill_gaps, plan_key_frames, propagate
from reprise.chorus.masks import Grid, coverage, dilate, to_latent_grid
from reprise.chorus.objects import object_phrases
from reprise.tinyworld import is_held_out, render_scene, sample_scene, write_prompt
from reprise.wan.presets import WEIGHTS

STRIDES: Final = (4, 8, 12)
"""Frames a key frame; four make a latent frame."""
FRAMES_PER_LATENT: Final = 4
PIXELS_PER_CELL: Final = 8
REAL_SIZE: Final = (480, 832)
"""Height and width that the real clip is cropped to: what the video model makes."""
REAL_RADIUS: Final = 8
"""Cells by which the paper's edit mask grows."""
TINY_RADIUS: Final = 1
"""The same share of the tiny picture's side."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Overlap:
    """How well spread key frames stand for all frames, in cells of the latent grid."""

    iou: float
    recall: float
    """Share of the true cells that are marked."""
    recall_edit: float
    """Share of the true cells that are within the edit mask: what is outside keeps the old object."""
    coverage_edit: float


def latent_grid(mask_FHW: NDArray[np.bool_]) -> Grid:
    """Give the latent grid of a video's mask."""
    F, H, W = mask_FHW.shape
    return 1 + (F - 1) // FRAMES_PER_LATENT, H // PIXELS_PER_CELL, W // PIXELS_PER_CELL


def spread(mask_FHW: NDArray[np.bool_], *, stride: int) -> NDArray[np.bool_]:
    """Keep the key frames of a mask and spread them, as the mask generator does."""
    plan = plan_key_frames(len(mask_FHW), stride=stride)
    return propagate(fill_gaps(mask_FHW[list(plan.frames)]), plan)


def compare(true_FHW: NDArray[np.bool_], marked_FHW: NDArray[np.bool_], *, radius: int) -> Overlap:
    """Compare two pixel masks of one video on its latent grid; the true one must mark something."""
    grid = latent_grid(true_FHW)
    true_THW, marked_THW = (to_latent_grid(torch.from_numpy(mask), grid) for mask in (true_FHW, marked_FHW))
    edit_THW = dilate(marked_THW, radius)
    return Overlap(
        iou=float((true_THW & marked_THW).sum() / (true_THW | marked_THW).sum()),
        recall=float((true_THW & marked_THW).sum() / true_THW.sum()),
        recall_edit=float((true_THW & edit_THW).sum() / true_THW.sum()),
        coverage_edit=coverage(edit_THW),
    )


def read_real_mask(folder: pathlib.Path) -> NDArray[np.bool_]:
    """Read the frames' masks of `car-shadow` (F, H, W), cropped around the centre; F is 1 + 4k."""
    paths = sorted(folder.glob("*.png"))
    paths = paths[: 1 + (len(paths) - 1) // FRAMES_PER_LATENT * FRAMES_PER_LATENT]
    masks_FHW = np.stack([np.asarray(Image.open(path).convert("L")) > 127 for path in paths])
    top, left = ((size - wanted) // 2 for size, wanted in zip(masks_FHW.shape[1:], REAL_SIZE, strict=True))
    return masks_FHW[:, top : top + REAL_SIZE[0], left : left + REAL_SIZE[1]]


def tiny_clips(count: int, *, seed: int) -> list[tuple[NDArray[np.uint8], str, NDArray[np.bool_]]]:
    """Draw held-out clips with one object: frames, the phrase that their prompt names, the object's pixels."""
    rng = np.random.default_rng(seed)
    clips: list[tuple[NDArray[np.uint8], str, NDArray[np.bool_]]] = []
    while len(clips) < count:
        scene = sample_scene(rng, num_objects=1)
        if is_held_out(scene):
            rendering = render_scene(scene, 17, rng)
            (phrase,) = object_phrases(write_prompt(scene, rng))
            clips.append((rendering.frames_THWC, phrase, rendering.masks_KTHW[0]))
    return clips


def row(video: str, masks: str, stride: int, overlaps: list[Overlap]) -> dict[str, Scalar]:
    """Give the mean over clips as one row."""
    means = {
        field.name: float(np.mean([getattr(overlap, field.name) for overlap in overlaps]))
        for field in dataclasses.fields(Overlap)
    }
    return {"video": video, "masks": masks, "stride": stride, "clips": len(overlaps), **means}


def main() -> None:
    """Run the benchmark."""
    parser = argument_parser(__doc__ or "")
    parser.add_argument("--clips", type=int, default=100, help="clips of the tiny world")
    options = parser.parse_args()
    rows: list[dict[str, Scalar]] = []
    summary: dict[str, float] = {}
    notes = []
    folder = DATA / "masks" / "car-shadow"
    if folder.is_dir():
        real_FHW = read_real_mask(folder)
        for stride in STRIDES:
            overlap = compare(real_FHW, spread(real_FHW, stride=stride), radius=REAL_RADIUS)
            rows.append(row("car-shadow", "true", stride, [overlap]))
            if stride == FRAMES_PER_LATENT:
                summary |= {"real_iou": overlap.iou, "real_recall_edit": overlap.recall_edit}
    else:
        notes.append(f"{folder} is missing: set REPRISE_DATA to the folder that holds masks/car-shadow")
    clips = tiny_clips(options.clips, seed=options.seed)
    segmenter = TinySegmenter(str(WEIGHTS / "tiny_segmenter"))
    found = [segmenter.segment(frames_FHWC, [phrase])[0] for frames_FHWC, phrase, _ in clips]
    for stride in STRIDES:
        for name, masks in (("true", [true_FHW for _, _, true_FHW in clips]), ("segmenter", found)):
            overlaps = [
                compare(true_FHW, spread(mask_FHW, stride=stride), radius=TINY_RADIUS)
                for (_, _, true_FHW), mask_FHW in zip(clips, masks, strict=True)
            ]
            rows.append(row("tiny world", name, stride, overlaps))
            if stride == FRAMES_PER_LATENT:
                summary[f"tiny_{name}_iou"] = float(np.mean([overlap.iou for overlap in overlaps]))
                summary[f"tiny_{name}_recall_edit"] = float(np.mean([overlap.recall_edit for overlap in overlaps]))
    parameters = {"real_radius": REAL_RADIUS, "tiny_radius": TINY_RADIUS, "clips": options.clips}
    publish(Report(name="key_frames", parameters=parameters, rows=rows, summary=summary, notes=notes), options)


if __name__ == "__main__":
    main()
