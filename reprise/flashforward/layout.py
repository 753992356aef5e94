"""Where chunks, anchors, planner blocks and windows of a long video lie (FlashForward, section 3 and A.1).

All positions are latent frames, counted from 0. Standard library only; knows nothing about the order of forwards,
workers or tensors.
"""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Layout:
    """Cut of a video of `num_latents` latents; the defaults are the paper's.

    At 81 latents: 27 chunks, anchors 0, 10 ... 80, 3 blocks. The last chunk and the last block hold what is left, so a
    video of any length from one latent on has a layout.
    """

    num_latents: int
    num_stages: int = 4
    """S, denoising forwards of one chunk or block."""
    chunk_latents: int = 3
    anchor_stride: int = 10
    block_anchors: int = 3
    window_anchors: int = 3
    """Anchors that a chunk sees; neighbouring windows share one, the last of the earlier."""
    history_chunks: int = 5
    """Preceding chunks whose KV a chunk sees."""
    history_blocks: int = 2
    """Preceding blocks whose clean KV a block sees: as many as the paper's training clips of three blocks show."""

    def __post_init__(self) -> None:
        for field in dataclasses.fields(self):
            least = {"window_anchors": 2, "history_chunks": 0, "history_blocks": 0}.get(field.name, 1)
            if getattr(self, field.name) < least:
                raise ValueError(f"{field.name} must be at least {least}, got {getattr(self, field.name)}")
        if self.chunk_latents > self.anchor_stride:  # else anchors inside a chunk may lie beyond its window
            raise ValueError(
                f"chunk_latents must not be above anchor_stride, got {self.chunk_latents} and {self.anchor_stride}"
            )

    @property
    def num_chunks(self) -> int:
        """B."""
        return -(-self.num_latents // self.chunk_latents)

    @property
    def num_anchors(self) -> int:
        """Count the anchors inside the video."""
        return -(-self.num_latents // self.anchor_stride)

    @property
    def num_blocks(self) -> int:
        """P."""
        return -(-self.num_anchors // self.block_anchors)

    def chunk_positions(self, chunk: int) -> range:
        """Give the latents of a chunk."""
        return _part(chunk, self.chunk_latents, self.num_latents)

    def anchor_position(self, anchor: int) -> int:
        """Give the latent at which an anchor sits."""
        return anchor * self.anchor_stride

    def block_anchors_of(self, block: int) -> range:
        """Give the anchors that a planner block makes."""
        return _part(block, self.block_anchors, self.num_anchors)

    def history_chunks_of(self, chunk: int) -> range:
        """Give the preceding chunks that a chunk sees."""
        return range(max(0, chunk - self.history_chunks), chunk)

    def history_anchors_of(self, block: int) -> range:
        """Give the anchors of the preceding blocks that a block sees."""
        return range(max(0, block - self.history_blocks) * self.block_anchors, block * self.block_anchors)

    def window_of(self, chunk: int) -> range:
        """Give the anchors that a chunk sees: at latents 0-10-20, 20-30-40 and so on, at the end those that exist.

        The window is that of the chunk's first latent. A chunk of three that straddles a shared anchor thus has one
        latent beyond its window; the later window would leave one before it and need a block that may not exist yet.
        """
        step = self.window_anchors - 1
        first = chunk * self.chunk_latents // (self.anchor_stride * step) * step
        return range(first, min(first + self.window_anchors, self.num_anchors))

    def blocks_needed(self, chunk: int) -> int:
        """Count the blocks, from the first, that must be planned before a chunk can be rendered."""
        return (self.window_of(chunk).stop - 1) // self.block_anchors + 1


def _part(index: int, size: int, total: int) -> range:
    return range(index * size, min((index + 1) * size, total))
