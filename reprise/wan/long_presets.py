"""Which causal checkpoint makes videos longer than a clip, and how it cuts them; each preset is a function.

A long video shares text encoder and VAE with the clips of its model; transformer, adapters and noise levels are its
own. Standard library only; knows nothing about tensors and reads no weights.
"""

import dataclasses

from reprise.flashforward.layout import Layout
from reprise.wan.presets import TEMPORAL_STRIDE, WEIGHTS, ModelPreset, tiny_4step


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LongPreset:
    """A causal transformer with its role adapters."""

    model: ModelPreset
    """Where everything is loaded from; its `transformer_path` holds the causal transformer."""
    roles_path: str
    """Folder with one folder for each role's adapter."""
    sigmas: tuple[float, ...]
    """Noise levels (S + 1,) of the stages that it was trained for, from 1 to 0."""
    guidance_scale: float
    max_num_frames: int
    chunk_latents: int = 3
    anchor_stride: int = 10
    block_anchors: int = 3
    window_anchors: int = 3
    history_chunks: int = 5
    history_blocks: int = 2

    def layout(self, num_frames: int) -> Layout:
        """Cut a video; raise ValueError for frames that the VAE cannot group or more than `max_num_frames`."""
        if num_frames % TEMPORAL_STRIDE != 1 or not 1 <= num_frames <= self.max_num_frames:
            raise ValueError(
                f"num_frames must be 1 + {TEMPORAL_STRIDE}k, at most {self.max_num_frames}, got {num_frames}"
            )
        return Layout(
            num_latents=(num_frames - 1) // TEMPORAL_STRIDE + 1,
            num_stages=len(self.sigmas) - 1,
            chunk_latents=self.chunk_latents,
            anchor_stride=self.anchor_stride,
            block_anchors=self.block_anchors,
            window_anchors=self.window_anchors,
            history_chunks=self.history_chunks,
            history_blocks=self.history_blocks,
        )


def tiny_long() -> LongPreset:
    """Give the bundled causal model: up to five minutes, at four frames a second."""
    folder = WEIGHTS / "tiny_long"
    return LongPreset(
        model=dataclasses.replace(tiny_4step(), transformer_path=str(folder)),
        roles_path=str(folder / "roles"),
        sigmas=(1.0, 0.9, 0.75, 0.5, 0.0),
        guidance_scale=1.0,
        max_num_frames=1281,
    )
