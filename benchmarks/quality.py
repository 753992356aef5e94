"""How good a clip of the tiny world is: by the exact scorer, by the bundled CLIP, and by how still its ground stands.

Shared by the benchmarks that compare ways to make clips. Knows nothing about how a clip was made.

Shape letters: F frames, H, W pixels, C colour channels.
"""

import dataclasses
import statistics
from collections.abc import Sequence
from typing import Final

import numpy as np
import open_clip
import torch
from numpy.typing import NDArray

from reprise.tinyworld import AttributeScore, SceneSpec, score_video
from reprise.wan.presets import WEIGHTS
from training.clip import frame_mosaic

NUM_ATTRIBUTES: Final = len(dataclasses.fields(AttributeScore))


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ClipQuality:
    """One clip against the prompt it was asked with."""

    attributes: float
    """Share of the target's attributes, of seven, that the exact scorer finds."""
    has_motion: bool
    """The asked motion is there."""
    flicker: float
    """How much the median pixel changes from frame to frame, in levels of 255; 0 for a background that stands still."""
    clip_score: float
    """100 times the cosine of prompt and clip by the bundled CLIP."""
    target_wins: bool | None
    """The clip shows more of the target than of the source; None when nothing was reused, or the scenes are one."""


class Judge:
    """Judges clips; holds the bundled CLIP."""

    def __init__(self) -> None:
        name = f"local-dir:{WEIGHTS / 'tiny_clip'}"
        self._clip = open_clip.create_model(name).eval()
        self._tokenizer = open_clip.get_tokenizer(name)

    def judge(
        self, frames_FHWC: NDArray[np.uint8], prompt: str, scene: SceneSpec, *, source_scene: SceneSpec | None = None
    ) -> ClipQuality:
        """Judge a clip; `source_scene` is that of the source it was started from."""
        score = score_video(frames_FHWC, scene)
        wins = None
        if source_scene is not None and source_scene != scene:
            wins = len(score.found()) > len(score_video(frames_FHWC, source_scene).found())
        return ClipQuality(
            attributes=len(score.found()) / NUM_ATTRIBUTES,
            has_motion=score.motion,
            flicker=flicker(frames_FHWC),
            clip_score=self._clip_score(frames_FHWC, prompt),
            target_wins=wins,
        )

    @torch.inference_mode()
    def _clip_score(self, frames_FHWC: NDArray[np.uint8], prompt: str) -> float:
        picture = frame_mosaic(torch.from_numpy(frames_FHWC))[None]
        image = self._clip.encode_image(picture, normalize=True)
        text = self._clip.encode_text(self._tokenizer([prompt]), normalize=True)
        return 100 * float((image * text).sum())


def flicker(frames_FHWC: NDArray[np.uint8]) -> float:
    """Give the mean over pairs of frames of the median pixel's change, in levels of 255.

    Objects cover less than half of the picture, so the median pixel is of the background.
    """
    change_FHW = np.abs(np.diff(frames_FHWC.astype(np.float32).mean(3), axis=0))
    return float(np.median(change_FHW.reshape(len(change_FHW), -1), axis=1).mean()) if len(change_FHW) else 0.0


def summarise(qualities: Sequence[ClipQuality]) -> dict[str, float | None]:
    """Average: attributes in points of 100, the share with the asked motion, flicker, CLIP-score, and target wins."""
    wins = [quality.target_wins for quality in qualities if quality.target_wins is not None]
    return {
        "score": 100 * statistics.fmean(quality.attributes for quality in qualities),
        "motion": statistics.fmean(quality.has_motion for quality in qualities),
        "flicker": statistics.fmean(quality.flicker for quality in qualities),
        "clip_score": statistics.fmean(quality.clip_score for quality in qualities),
        "target_wins": statistics.fmean(wins) if wins else None,
    }
