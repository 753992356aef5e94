"""Forwards, makespans and break-evens of the three schedules in closed form (FlashForward, A.2.2).

Symbols: B chunks, P planner blocks, S stages; g_plan and g_sf: how many times faster planner forwards, or those of
Self-Forcing, run when several devices share each; every other forward takes one unit of time. Standard library only;
knows nothing about lists of forwards: `walk` finds the same figures without these formulas.
"""

import math
from collections.abc import Mapping

from reprise.flashforward.layout import Layout
from reprise.flashforward.schedule import Placement, Role


def flash_forward_forwards(layout: Layout) -> Mapping[Role, int]:
    """P S + P + B S: 123 at 81 latents."""
    return {
        Role.PLANNER: layout.num_blocks * layout.num_stages,
        Role.EXTRACTION: layout.num_blocks,
        Role.RENDERER: layout.num_chunks * layout.num_stages,
    }


def self_forcing_forwards(layout: Layout) -> Mapping[Role, int]:
    """B S + B - 1: 134 at 81 latents; the paper's summary gives this figure to HiAR."""
    return {Role.RENDERER: layout.num_chunks * layout.num_stages, Role.RE_ENCODE: layout.num_chunks - 1}


def hiar_forwards(layout: Layout) -> Mapping[Role, int]:
    """B S + (B - 1) S: 212 at 81 latents; the paper's summary gives this figure to Self-Forcing."""
    return {
        Role.RENDERER: layout.num_chunks * layout.num_stages,
        Role.RE_ENCODE: (layout.num_chunks - 1) * layout.num_stages,
    }


def flash_forward_makespan(layout: Layout, placement: Placement, *, planner_speedup: float = 1.0) -> float:
    """P (S + 1) / g_plan + B + S - 1 with a worker per stage, whether it plans first or in between.

    With a dedicated planner only the first block counts. That holds while the planner is ahead whenever a chunk is
    due, which it is in the paper's layout as long as a planner forward takes no longer than a renderer's.
    """
    block = (layout.num_stages + 1) / planner_speedup
    if placement is Placement.ONE_WORKER:
        return layout.num_blocks * block + layout.num_chunks * layout.num_stages
    exposed = 1 if placement is Placement.DEDICATED_PLANNER else layout.num_blocks
    return exposed * block + layout.num_chunks + layout.num_stages - 1


def self_forcing_makespan(layout: Layout, *, speedup: float = 1.0) -> float:
    """(B S + B - 1) / g_sf: it is serial."""
    return sum(self_forcing_forwards(layout).values()) / speedup


def hiar_makespan(layout: Layout, placement: Placement) -> float:
    """(B + S - 1) + (B - 1) with a worker per stage."""
    if placement is Placement.ONE_WORKER:
        return sum(hiar_forwards(layout).values())
    return layout.num_chunks + layout.num_stages - 1 + layout.num_chunks - 1


def break_even_hiar(layout: Layout) -> float:
    """P (S + 1) / (B - 1): FlashForward with a worker per stage is faster than HiAR when g_plan is above this.

    Infinite for a video of one chunk, which HiAR never encodes again.
    """
    if layout.num_chunks == 1:
        return math.inf
    return layout.num_blocks * (layout.num_stages + 1) / (layout.num_chunks - 1)


def break_even_self_forcing(layout: Layout) -> float:
    """(B S + B - 1) / (P (S + 1) + B + S - 1): FlashForward is faster while g_sf is below this, at g_plan = 1."""
    return self_forcing_makespan(layout) / flash_forward_makespan(layout, Placement.WORKER_PER_STAGE)
