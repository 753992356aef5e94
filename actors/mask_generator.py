"""The mask generator: a Ray-facing shell around a segmentation engine.

Chorus section 3.3.1: phrases of a source's prompt become pixel masks of its stored video, by key frames. It runs when
the source is stored, not when a request waits; deadlines are the caller's. Knows nothing about latents or prompts that
differ.

Shape letters: F video frames, K key frames, P phrases, H, W pixels, C colour channels.
"""

import dataclasses
import enum
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from cache_store.contracts import LatentStore
from reprise.chorus.key_frames import fill_gaps, plan_key_frames, propagate
from reprise.chorus.mask_codec import pack_mask


class MaskEngineName(enum.StrEnum):
    """Which engine segments."""

    TINY_SEGMENTER = "tiny_segmenter"
    GROUNDED_SAM = "grounded_sam"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MaskGeneratorConfig:
    """Which models segment, and how many frames."""

    engine: MaskEngineName
    segmenter: str
    """Folder of a PhraseSegmenter; folder or hub id of a SAM 2 checkpoint for `grounded_sam`."""
    detector: str | None = None
    """Folder or hub id of a Grounding DINO checkpoint; for `grounded_sam` only."""
    device: str = "cpu"
    key_frame_stride: int = 4
    """Frames of a temporal group, of which one is segmented; the model's frames a latent, or a multiple of them."""
    max_phrases: int = 8
    """Further phrases of a source get no mask: each costs a pass of the detector over every key frame."""

    def __post_init__(self) -> None:
        if (self.engine is MaskEngineName.GROUNDED_SAM) != (self.detector is not None):
            raise ValueError(
                f"a detector belongs to engine=grounded_sam and to no other, got engine={self.engine.value} "
                f"and detector={self.detector!r}"
            )
        if self.key_frame_stride < 1 or self.max_phrases < 1:
            raise ValueError(
                f"key_frame_stride and max_phrases must be at least 1, got {self.key_frame_stride} and "
                f"{self.max_phrases}"
            )


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class PhraseMask:
    """What a phrase covers in a video."""

    phrase: str
    packed: bytes | None = dataclasses.field(repr=False)
    """Pixel mask (F, H, W) as `unpack_mask` reads it; None when nothing was found."""
    coverage: float
    """Share of all pixels; whether that is too much to gain from reuse is the caller's to decide."""
    key_frames_found: int
    num_key_frames: int
    reason: str | None
    """Why there is no mask."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class MasksMade:
    """Which phrases of a source have a mask in the store, and why the others have none."""

    phrases: tuple[str, ...]
    """With a mask, in the order they were asked for."""
    reasons: Mapping[str, str]
    """By phrase, of those without."""
    milliseconds: float


class MaskEngine(Protocol):
    """What the shell needs of an engine."""

    def segment(self, frames_KHWC: NDArray[np.uint8], phrases: Sequence[str]) -> NDArray[np.bool_]:
        """Give masks (P, K, H, W); all false where a phrase is not in a frame."""
        ...


class MaskGeneratorReplica:
    """Make the masks of a source's phrases."""

    def __init__(self, config: MaskGeneratorConfig, engine: MaskEngine | None = None) -> None:
        self._config = config
        self._engine = engine or _load_engine(config)

    def generate(self, frames_FHWC: NDArray[np.uint8], phrases: Sequence[str]) -> tuple[PhraseMask, ...]:
        """Give one result for each phrase, in their order; a phrase that is not found is no error.

        Raises ValueError when the frames are not RGB of 8 bits.
        """
        if frames_FHWC.dtype != np.uint8 or frames_FHWC.ndim != 4 or frames_FHWC.shape[3] != 3 or not len(frames_FHWC):
            raise ValueError(f"expected uint8 frames (F, H, W, 3), got {frames_FHWC.dtype} of {frames_FHWC.shape}")
        plan = plan_key_frames(len(frames_FHWC), stride=self._config.key_frame_stride)
        chosen, left_out = phrases[: self._config.max_phrases], phrases[self._config.max_phrases :]
        masks_PKHW = self._engine.segment(frames_FHWC[list(plan.frames)], chosen) if chosen else ()
        results = []
        for phrase, masks_KHW in zip(chosen, masks_PKHW, strict=True):
            num_found = int(masks_KHW.any((1, 2)).sum())
            mask_FHW = propagate(fill_gaps(masks_KHW), plan)
            results.append(
                PhraseMask(
                    phrase=phrase,
                    packed=pack_mask(mask_FHW) if num_found else None,
                    coverage=float(mask_FHW.mean()),
                    key_frames_found=num_found,
                    num_key_frames=len(plan.frames),
                    reason=None if num_found else f"not found in any of {len(plan.frames)} key frames",
                )
            )
        reason = f"beyond the first {self._config.max_phrases} phrases of its source"
        for phrase in left_out:
            results.append(
                PhraseMask(
                    phrase=phrase,
                    packed=None,
                    coverage=0.0,
                    key_frames_found=0,
                    num_key_frames=len(plan.frames),
                    reason=reason,
                )
            )
        return tuple(results)

    def make(
        self,
        store: LatentStore,
        *,
        tenant: str,
        source_id: str,
        frames_FHWC: NDArray[np.uint8],
        phrases: Sequence[str],
    ) -> MasksMade:
        """Generate the masks of a stored source and keep them beside its latents.

        Raises ValueError as `generate` does, and StoreUnavailableError.
        """
        begin = time.perf_counter()
        stored: list[str] = []
        reasons: dict[str, str] = {}
        for result in self.generate(frames_FHWC, phrases):
            if result.packed is None:
                reasons[result.phrase] = result.reason or ""
            elif store.put_mask(tenant, source_id, result.phrase, result.packed):
                stored.append(result.phrase)
            else:
                reasons[result.phrase] = "the store did not keep it: the source is gone, or there is no room"
        return MasksMade(phrases=tuple(stored), reasons=reasons, milliseconds=1_000 * (time.perf_counter() - begin))


def _load_engine(config: MaskGeneratorConfig) -> MaskEngine:
    if config.detector is None:
        from actors.engines.tiny_segmenter import TinySegmenter

        return TinySegmenter(config.segmenter, device=config.device)
    from actors.engines.grounded_sam import GroundedSam

    return GroundedSam(detector=config.detector, segmenter=config.segmenter, device=config.device)
