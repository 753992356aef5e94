"""Trajectories with few stored points: a grid of steps in a small dtype, the states between rebuilt on demand.

Chorus reads a source's latent at K1 (section 3.1) and, for region denoising, after every step of [K1, K2) (eq. 6).
A flow-matching path is x_sigma = (1 - sigma) x0 + sigma eps with an x0 that the model changes slowly, so between two
grid points it is close to a straight line in sigma. `benchmarks.trajectory` measures how close.
Symbols: K1, K2 stage boundaries, N number of steps, sigma noise level.
Knows nothing about stores or models. Shape letters: B batch, C channels, T latent frames, H, W latent grid.
"""

import bisect
import dataclasses
import math
from collections.abc import Mapping, Sequence
from typing import Final

import torch
from torch import Tensor

from reprise.chorus.stages import StageBoundaries, StageMap

DTYPES: Final = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class CompressionConfig:
    """How much of a run is stored."""

    dtype: str = "float16"
    """Of the stored latents; bfloat16 keeps three bits fewer and has range to spare, which latents do not need."""
    max_gap_share: float = 0.1
    """Neighbouring grid points lie at most this share of N apart, rounded down, and one step at least."""

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of {tuple(DTYPES)}, got {self.dtype!r}")
        if not 0 < self.max_gap_share <= 1:
            raise ValueError(f"max_gap_share must lie in 0..1, above 0, got {self.max_gap_share}")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class TrajectoryGrid:
    """Steps whose entering latents are stored, at one number of steps.

    Step 0 is a grid point that is never stored: its latent is the start noise, which the source's seed draws again.
    So every step from 0 to the last stored one lies between two grid points.
    """

    num_steps: int
    steps: tuple[int, ...]
    """Rising, none under 1, none over N."""

    def __post_init__(self) -> None:
        bounded = all(1 <= step <= self.num_steps for step in self.steps)
        if not bounded or list(self.steps) != sorted(set(self.steps)):
            raise ValueError(f"grid steps must rise within 1..num_steps={self.num_steps}, got {self.steps}")

    def bracket(self, step: int) -> tuple[int, ...]:
        """Give the grid points that `step` is rebuilt from: itself, or its two neighbours."""
        points = (0, *self.steps)
        place = bisect.bisect_left(points, step)
        if not 0 <= step <= points[-1]:
            raise ValueError(f"step {step} lies outside the grid 0..{points[-1]}: a grid cannot extrapolate")
        return (step,) if points[place] == step else (points[place - 1], points[place])


def make_grid(stage_map: StageMap, config: CompressionConfig, *, num_steps: int) -> TrajectoryGrid:
    """Choose the grid of a run: the steps F can return for this N, and between them what the largest gap asks for.

    A plan of F therefore starts from a stored latent; one that lowers K1 or K2 further finds its step within the grid.
    Empty when F reuses nothing at this N.
    """
    largest_gap = max(1, math.floor(config.max_gap_share * num_steps + 1e-9))  # 0.07 * 100 is 7.000000000000001
    steps: list[int] = []
    below = 0
    for step in stage_map.reachable_steps(num_steps=num_steps):
        num_parts = math.ceil((step - below) / largest_gap)
        steps += [below + (step - below) * part // num_parts for part in range(1, num_parts + 1)]
        below = step
    return TrajectoryGrid(num_steps=num_steps, steps=tuple(steps))


def states_needed(boundaries: StageBoundaries) -> tuple[int, ...]:
    """Give the steps whose entering source latents a plan reads.

    That is K1 to start from, and the latent *after* each step of [K1, K2), which enters the step that follows.
    """
    start = (boundaries.k1,) if boundaries.k1 > 0 else ()
    return (*start, *range(boundaries.k1 + 1, boundaries.k2 + 1))


def steps_needed(boundaries: StageBoundaries, grid: TrajectoryGrid) -> tuple[int, ...]:
    """Give the grid points to fetch for a plan, rising, and no others; 0 among them is noise to draw, not to fetch.

    >>> grid = TrajectoryGrid(num_steps=50, steps=(5, 10, 15, 20, 25))
    >>> steps_needed(StageBoundaries(k1=10, k2=10), grid)
    (10,)
    >>> steps_needed(StageBoundaries(k1=10, k2=13), grid)
    (10, 15)
    """
    return tuple(sorted({point for step in states_needed(boundaries) for point in grid.bracket(step)}))


def compress(latent_BCTHW: Tensor, config: CompressionConfig) -> Tensor:
    """Give the latent as it is stored; on its device, so that no step waits for a copy."""
    return latent_BCTHW.to(DTYPES[config.dtype])


def rebuild(points: Mapping[int, Tensor], step: int, *, sigmas: Sequence[float]) -> Tensor:
    """Give the latent that enters `step`, in float32, from the fetched points by step.

    A stored step is returned as it was stored; one between two points lies on the straight line in sigma through the
    nearest of them on either side. `sigmas` are the N + 1 noise levels of the source's schedule, on the host. There is
    no solver history: a rebuilt state starts afresh. Raises ValueError when a side is missing.
    """
    if step in points:
        return points[step].to(torch.float32)
    before = max((point for point in points if point < step), default=None)
    after = min((point for point in points if point > step), default=None)
    if before is None or after is None:
        raise ValueError(f"step {step} needs a point on either side, got points at {tuple(sorted(points))}")
    share = (sigmas[before] - sigmas[step]) / (sigmas[before] - sigmas[after])
    # In float32 before the sum: half precision would round the result a second time.
    return torch.lerp(points[before].to(torch.float32), points[after].to(torch.float32), share)


def entry_bytes(grid: TrajectoryGrid, config: CompressionConfig, *, num_elements: int) -> int:
    """Give what the latents of one entry take, without a store's headers; `num_elements` of one latent."""
    return len(grid.steps) * num_elements * DTYPES[config.dtype].itemsize


def exact_bytes(num_steps: int, *, num_elements: int) -> int:
    """Give what every state of a run takes in float32, the start noise left out as the grid leaves it out."""
    return num_steps * num_elements * torch.float32.itemsize
