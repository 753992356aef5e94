"""A segmentation engine that finds what it is told to, and notes what it was shown."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray


class ScriptedMaskEngine:
    """Marks the red pixels, for a phrase in those key frames that its script names."""

    def __init__(self, found_in: Mapping[str, Sequence[int]]) -> None:
        self._found_in = found_in
        self.shown: list[tuple[NDArray[np.uint8], tuple[str, ...]]] = []

    def segment(self, frames_KHWC: NDArray[np.uint8], phrases: Sequence[str]) -> NDArray[np.bool_]:
        """Mark the pixels whose red is above 127."""
        self.shown.append((frames_KHWC, tuple(phrases)))
        masks_PKHW = np.zeros((len(phrases), *frames_KHWC.shape[:3]), np.bool_)
        for p, phrase in enumerate(phrases):
            for k in self._found_in.get(phrase, ()):
                masks_PKHW[p, k] = frames_KHWC[k, ..., 0] > 127
        return masks_PKHW
