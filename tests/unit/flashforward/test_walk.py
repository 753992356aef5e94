"""Times, waits and KV found by going through lists, and that they are the closed forms of the paper."""

import math
from collections.abc import Callable, Iterator, Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.flashforward import formulas
from reprise.flashforward.break_even import (
    walked_break_even_hiar,
    walked_break_even_self_forcing,
    with_planner_speedup,
)
from reprise.flashforward.layout import Layout
from reprise.flashforward.schedule import LEAD_BLOCKS, Forward, Placement, Role, flash_forward, hiar, self_forcing
from reprise.flashforward.walk import UNIT_COSTS, OutOfOrder, walk
from tests.unit.flashforward.lists import LISTS

layouts = st.builds(Layout, num_latents=st.integers(1, 400), num_stages=st.integers(1, 9))
costs = st.fixed_dictionaries({role: st.floats(0.1, 10) for role in Role})
of_each_list = pytest.mark.parametrize("make", LISTS.values(), ids=LISTS)
BOUNDED = {name: make for name, make in LISTS.items() if name != f"flashforward, {Placement.PLANNER_FIRST}"}
of_each_placement = pytest.mark.parametrize("placement", Placement)

Make = Callable[[Layout], Iterator[Forward]]


def present(counts: Mapping[Role, int]) -> dict[Role, int]:
    return {role: number for role, number in counts.items() if number}


def test_the_counts_of_the_paper_at_81_latents() -> None:
    layout = Layout(num_latents=81)
    assert walk(flash_forward(layout, Placement.WORKER_PER_STAGE)).num_forwards == 123
    assert walk(self_forcing(layout)).num_forwards == 134
    assert walk(hiar(layout, Placement.WORKER_PER_STAGE)).num_forwards == 212


@pytest.mark.parametrize(("num_latents", "hiar_rate", "self_forcing_rate"), [(21, 0.83, 2.27), (261, 0.52, 3.21)])
def test_the_break_evens_of_the_paper(num_latents: int, hiar_rate: float, self_forcing_rate: float) -> None:
    layout = Layout(num_latents=num_latents)
    assert round(walked_break_even_hiar(layout), 2) == round(formulas.break_even_hiar(layout), 2) == hiar_rate
    assert round(walked_break_even_self_forcing(layout), 2) == self_forcing_rate
    assert round(formulas.break_even_self_forcing(layout), 2) == self_forcing_rate


@of_each_placement
@given(layout=layouts, planner_speedup=st.floats(0.5, 8))
def test_flash_forward_is_its_formula(placement: Placement, layout: Layout, planner_speedup: float) -> None:
    dedicated = placement is Placement.DEDICATED_PLANNER
    if dedicated:  # the formula is for a planner that keeps ahead
        layout = Layout(num_latents=layout.num_latents, num_stages=min(layout.num_stages, 4))
        planner_speedup = max(planner_speedup, 1.0)
    found = walk(flash_forward(layout, placement), with_planner_speedup(UNIT_COSTS, planner_speedup))
    assert found.forwards == present(formulas.flash_forward_forwards(layout))
    expected = formulas.flash_forward_makespan(layout, placement, planner_speedup=planner_speedup)
    assert found.makespan == pytest.approx(expected)


@given(layout=layouts, speedup=st.floats(0.5, 8))
def test_self_forcing_is_its_formula(layout: Layout, speedup: float) -> None:
    found = walk(self_forcing(layout), dict.fromkeys(Role, 1 / speedup))
    assert found.forwards == present(formulas.self_forcing_forwards(layout))
    assert found.makespan == pytest.approx(formulas.self_forcing_makespan(layout, speedup=speedup))


@pytest.mark.parametrize("placement", [Placement.ONE_WORKER, Placement.WORKER_PER_STAGE])
@given(layout=layouts)
def test_hiar_is_its_formula(placement: Placement, layout: Layout) -> None:
    found = walk(hiar(layout, placement))
    assert found.forwards == present(formulas.hiar_forwards(layout))
    assert found.makespan == formulas.hiar_makespan(layout, placement)


@given(layout=layouts)
def test_break_evens_are_their_formulas_and_turn_the_order(layout: Layout) -> None:
    rate = walked_break_even_hiar(layout)
    assert rate == pytest.approx(formulas.break_even_hiar(layout))
    assert walked_break_even_self_forcing(layout) == pytest.approx(formulas.break_even_self_forcing(layout))
    theirs = walk(hiar(layout, Placement.WORKER_PER_STAGE)).makespan
    if math.isinf(rate):
        assert layout.num_chunks == 1
        return
    for factor, is_faster in ((0.99, False), (1.01, True)):
        ours = walk(flash_forward(layout, Placement.WORKER_PER_STAGE), with_planner_speedup(UNIT_COSTS, rate * factor))
        assert (ours.makespan < theirs) == is_faster


@of_each_list
@given(layout=layouts)
def test_at_unit_costs_time_is_rounds(make: Make, layout: Layout) -> None:
    found = walk(make(layout))
    assert found.rounds == found.makespan
    assert found.latents == layout.num_latents


@of_each_list
@given(layout=layouts, costs=costs)
def test_workers_are_busy_for_as_long_as_forwards_take(make: Make, layout: Layout, costs: Mapping[Role, float]) -> None:
    found = walk(make(layout), costs)
    work = sum(costs[role] * number for role, number in found.forwards.items())
    assert sum(worker.busy for worker in found.workers) == pytest.approx(work)
    assert max(worker.busy + worker.wait for worker in found.workers) == pytest.approx(found.makespan)
    assert all(worker.wait >= -1e-6 for worker in found.workers)
    if len(found.workers) == 1:
        assert found.makespan == pytest.approx(work)


@given(num_latents=st.integers(1, 400))
def test_renderers_wait_for_one_block_of_a_dedicated_planner_and_for_the_wavefront(num_latents: int) -> None:
    found = walk(flash_forward(Layout(num_latents=num_latents), Placement.DEDICATED_PLANNER))
    *stages, planner = found.workers
    assert [worker.wait for worker in stages] == [5, 6, 7, 8]
    assert planner.peak_kv <= 6
    assert found.first_delivery == 5 + 4


def test_planning_in_between_takes_as_long_as_planning_first_and_delivers_sooner() -> None:
    layout = Layout(num_latents=81)
    between, first = (
        walk(flash_forward(layout, placement)) for placement in (Placement.WORKER_PER_STAGE, Placement.PLANNER_FIRST)
    )
    assert (between.makespan, first.makespan) == (45, 45)
    assert (between.first_delivery, first.first_delivery) == (5 + 4, 15 + 4)


@pytest.mark.parametrize("make", BOUNDED.values(), ids=BOUNDED)
@given(layout=layouts, costs=costs)
def test_kv_is_bounded_whatever_the_length(make: Make, layout: Layout, costs: Mapping[Role, float]) -> None:
    found = walk(make(layout), costs)
    chunks = layout.history_chunks * layout.num_stages
    blocks = layout.history_blocks + LEAD_BLOCKS + 2  # two: a window reaches into a second, a wavefront into a third
    anchors = layout.window_anchors + layout.block_anchors * blocks
    assert found.peak_kv <= chunks + anchors * len(found.workers)
    if len(found.workers) > 1:
        assert all(worker.peak_kv <= layout.history_chunks + anchors for worker in found.workers)


def test_peak_kv_is_flat_except_when_everything_is_planned_first() -> None:
    def peaks(make: Make) -> list[int]:
        return [walk(make(Layout(num_latents=num_latents))).peak_kv for num_latents in (321, 641, 1281)]

    for name, make in LISTS.items():
        shortest, *_, longest = peaks(make)
        if name == f"flashforward, {Placement.PLANNER_FIRST}":
            # Every anchor lies with every renderer until its window is past: one for each ten latents.
            assert longest - shortest == 4 * (1281 - 321) // 10
        else:
            assert shortest == longest


def test_an_entry_of_kv_lives_from_its_publication_to_its_last_reader() -> None:
    # One stage, four chunks, each read by the next two.
    layout = Layout(num_latents=12, num_stages=1, history_chunks=2)
    found = walk(self_forcing(layout))
    assert found.peak_kv == 2
    assert walk(self_forcing(Layout(num_latents=3))).peak_kv == 0


@pytest.mark.parametrize(
    ("role", "stage", "message"),
    [
        (Role.EXTRACTION, 4, "reads KV of anchor 0 before it is published"),
        (Role.PLANNER, 1, "goes on from stage 2, its latent stands at 1"),
        (Role.RENDERER, 2, "goes on from stage 3, its latent stands at 2"),
    ],
)
def test_a_list_with_a_hole_is_refused(role: Role, stage: int, message: str) -> None:
    forwards = [
        forward
        for forward in flash_forward(Layout(num_latents=21), Placement.ONE_WORKER)
        if (forward.role, forward.unit, forward.stage) != (role, 0, stage)
    ]
    with pytest.raises(OutOfOrder, match=message):
        walk(forwards)


def test_a_planner_that_waits_for_a_chunk_after_it_is_refused() -> None:
    forwards = list(flash_forward(Layout(num_latents=81), Placement.DEDICATED_PLANNER))
    forwards.sort(key=lambda forward: forward.role is Role.RENDERER)
    with pytest.raises(OutOfOrder, match="waits for a chunk that has not begun"):
        walk(forwards)


def test_an_empty_list_takes_no_time() -> None:
    found = walk([])
    assert (found.num_forwards, found.rounds, found.makespan, found.workers, found.peak_kv) == (0, 0, 0, (), 0)
