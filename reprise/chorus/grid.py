"""Which latents of a run are stored, and which of them a plan needs: a grid of steps (Chorus, section 3.1, eq. 6).

A source's latent is read at K1 and, for region denoising, after every step of [K1, K2). States between two grid points
are rebuilt, so few are stored. Symbols: K1, K2 stage boundaries, N number of steps. Standard library only; knows
nothing about tensors or stores.
"""

import bisect
import dataclasses
import math
from typing import Final

from reprise.chorus.stages import StageBoundaries, StageMap

MAX_GAP_SHARE: Final = 0.1
"""Neighbouring grid points lie at most this share of N apart; `benchmarks.trajectory` measures what it costs."""


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


def make_grid(stage_map: StageMap, *, num_steps: int, max_gap_share: float = MAX_GAP_SHARE) -> TrajectoryGrid:
    """Choose the grid of a run: the steps F can return for this N, and between them what the gap asks for.

    A plan of F starts from a stored latent, one that the gate lowers from the grid point below, and every step up to
    its K2 lies within the grid. The largest gap is `max_gap_share` of N, rounded down, and one step at least. Empty
    when F reuses nothing at this N.
    """
    if not 0 < max_gap_share <= 1:
        raise ValueError(f"max_gap_share must lie in 0..1, above 0, got {max_gap_share}")
    largest_gap = max(1, math.floor(max_gap_share * num_steps + 1e-9))  # 0.07 * 100 is 7.000000000000001
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
