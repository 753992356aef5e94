"""Which checkpoint continues a live stream, and in what portions; each preset is a function.

Standard library only; knows nothing about tensors and reads no weights.
"""

import dataclasses

from reprise.wan.presets import TEMPORAL_STRIDE, WEIGHTS, ModelPreset, tiny_4step


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class LivePreset:
    """A model that is shown a first frame clean, as Wan2.2-TI2V is, and continues it."""

    model: ModelPreset
    chunk_latents: int
    """Latents that a sampling call makes after the boundary frame, K."""
    fps: int
    """Frames a second at which the stream is shown."""
    group_latents: int = 1
    """Latents that are delivered together, q."""

    def __post_init__(self) -> None:
        if self.chunk_latents < 1 or self.fps < 1 or self.group_latents < 1:
            raise ValueError(
                "expected chunk_latents >= 1, fps >= 1 and group_latents >= 1, got "
                f"{self.chunk_latents}, {self.fps} and {self.group_latents}"
            )
        if self.chunk_latents % self.group_latents:
            raise ValueError(
                f"chunk_latents={self.chunk_latents} must be a multiple of group_latents={self.group_latents}"
            )

    @property
    def chunk_groups(self) -> int:
        """Give the groups of one call."""
        return self.chunk_latents // self.group_latents

    @property
    def group_frames(self) -> int:
        """Give the frames of one group."""
        return self.group_latents * TEMPORAL_STRIDE

    @property
    def group_s(self) -> float:
        """Give the seconds that one group plays, delta where q is 1."""
        return self.group_frames / self.fps

    @property
    def num_frames(self) -> int:
        """Give the frames of one call's clip, the boundary frame among them."""
        return 1 + TEMPORAL_STRIDE * self.chunk_latents


def tiny_live() -> LivePreset:
    """Give the bundled model: eight latents a call, each half a second long."""
    model = dataclasses.replace(
        tiny_4step(),
        name="reprise-tiny-live",
        transformer_path=str(WEIGHTS / "tiny_live"),
        sizes={"64x64": (64, 64)},
        default_size="64x64",
        max_num_frames=33,
        amplification=None,
    )
    return LivePreset(model=model, chunk_latents=8, fps=8)
