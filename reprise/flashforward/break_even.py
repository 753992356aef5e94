"""Break-evens from lists of forwards that were gone through, beside those of `formulas` (FlashForward, A.2.2).

Standard library only; the times of forwards are given, so measured ones may be.
"""

import math
from collections.abc import Mapping

from reprise.flashforward.layout import Layout
from reprise.flashforward.schedule import Placement, Role, flash_forward, hiar, self_forcing
from reprise.flashforward.walk import UNIT_COSTS, walk


def with_planner_speedup(costs: Mapping[Role, float], planner_speedup: float) -> Mapping[Role, float]:
    """Give the costs when several devices share each planner forward and it is so many times faster."""
    return {**costs, **{role: costs[role] / planner_speedup for role in (Role.PLANNER, Role.EXTRACTION)}}


def walked_break_even_hiar(layout: Layout, costs: Mapping[Role, float] = UNIT_COSTS) -> float:
    """Give the g_plan at which FlashForward and HiAR, both with a worker per stage, take the same time.

    The first stage's worker never waits while it plans, so the time for planning adds to that for rendering. Infinite
    where HiAR is as fast as rendering alone.
    """
    placement = Placement.WORKER_PER_STAGE
    whole = walk(flash_forward(layout, placement), costs).makespan
    rendering = walk(flash_forward(layout, placement), with_planner_speedup(costs, math.inf)).makespan
    spare = walk(hiar(layout, placement), costs).makespan - rendering
    return (whole - rendering) / spare if spare > 0 else math.inf


def walked_break_even_self_forcing(layout: Layout, costs: Mapping[Role, float] = UNIT_COSTS) -> float:
    """Give the g_sf at which Self-Forcing takes as long as FlashForward with a worker per stage."""
    return (
        walk(self_forcing(layout), costs).makespan
        / walk(flash_forward(layout, Placement.WORKER_PER_STAGE), costs).makespan
    )
