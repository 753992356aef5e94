"""What a list of forwards must be, whatever its length, stages and workers; and the three schedules at tiny size."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reprise.flashforward.layout import Layout
from reprise.flashforward.schedule import Forward, KvSpan, Placement, Role, Source, flash_forward, hiar, self_forcing
from tests.unit.flashforward.lists import FLASH_FORWARD, LISTS

layouts = st.builds(Layout, num_latents=st.integers(1, 400), num_stages=st.integers(1, 9))
"""With more stages than the paper's four, a dedicated planner falls behind the renderers."""
odd_layouts = st.builds(
    Layout,
    num_latents=st.integers(1, 200),
    num_stages=st.integers(1, 5),
    chunk_latents=st.integers(1, 5),
    anchor_stride=st.integers(5, 12),
    block_anchors=st.integers(1, 4),
    window_anchors=st.integers(2, 9),
    history_chunks=st.integers(0, 6),
    history_blocks=st.integers(0, 3),
)
any_layout = layouts | odd_layouts
of_each_list = pytest.mark.parametrize("make", LISTS.values(), ids=LISTS)
of_each_wavefront = pytest.mark.parametrize("make", FLASH_FORWARD.values(), ids=FLASH_FORWARD)

Make = Callable[[Layout], Iterator[Forward]]


def renderers(forwards: Iterator[Forward]) -> dict[int, list[Forward]]:
    found = defaultdict(list)
    for forward in forwards:
        if forward.role is Role.RENDERER:
            found[forward.unit].append(forward)
    return found


@of_each_list
@given(layout=any_layout)
def test_every_chunk_passes_every_stage_in_order(make: Make, layout: Layout) -> None:
    by_chunk = renderers(make(layout))
    assert list(by_chunk) == list(range(layout.num_chunks))
    for forwards in by_chunk.values():
        assert [forward.stage for forward in forwards] == list(range(layout.num_stages))
        assert [forward.round for forward in forwards] == sorted({forward.round for forward in forwards})


@of_each_list
@given(layout=any_layout)
def test_a_forward_needs_only_what_an_earlier_one_in_an_earlier_round_made(make: Make, layout: Layout) -> None:
    published: dict[tuple[Source, int, int], int] = {}
    latents: dict[tuple[Source, int], tuple[int, int]] = {}
    entered: list[int] = []
    for forward in make(layout):
        for source, stage, indices in forward.reads:
            assert indices
            assert all(published[source, stage, index] < forward.round for index in indices)
        if forward.stage > 0:
            stage, made = latents[forward.source, forward.unit]
            assert stage == forward.stage
            assert made < forward.round
        if forward.after_chunk is not None:
            assert entered[forward.after_chunk] < forward.round
        if forward.advances:
            latents[forward.source, forward.unit] = (forward.stage + 1, forward.round)
        if forward.role is Role.RENDERER and forward.stage == 0:
            entered.append(forward.round)
        if forward.publishes is not None:
            source, stage, indices = forward.publishes
            for index in indices:
                assert (source, stage, index) not in published
                published[source, stage, index] = forward.round


@of_each_list
@given(layout=any_layout)
def test_a_worker_runs_one_forward_a_round_in_the_order_of_the_list(make: Make, layout: Layout) -> None:
    rounds = defaultdict(list)
    for forward in make(layout):
        rounds[forward.worker].append(forward.round)
    for of_worker in rounds.values():
        assert all(earlier < later for earlier, later in itertools.pairwise(of_worker))


@of_each_list
@given(layout=any_layout)
def test_the_video_is_what_renderers_deliver_and_anchors_are_no_part_of_it(make: Make, layout: Layout) -> None:
    delivering = [forward for forward in make(layout) if forward.delivers is not None]
    assert {forward.role for forward in delivering} == {Role.RENDERER}
    assert {forward.source for forward in delivering} == {Source.CHUNK}
    positions = [position for forward in delivering for position in forward.delivers or ()]
    assert positions == list(range(layout.num_latents))


@of_each_wavefront
@given(layout=any_layout)
def test_flash_forward_never_encodes_again_and_reads_its_own_stage_and_clean_anchors(
    make: Make, layout: Layout
) -> None:
    for forward in make(layout):
        assert forward.role is not Role.RE_ENCODE
        if forward.role is Role.RENDERER:
            assert forward.publishes == (Source.CHUNK, forward.stage, range(forward.unit, forward.unit + 1))
            *history, window = forward.reads
            assert window == (Source.ANCHOR, layout.num_stages, layout.window_of(forward.unit))
            chunks = layout.history_chunks_of(forward.unit)
            assert history == ([(Source.CHUNK, forward.stage, chunks)] if chunks else [])
        else:
            assert all(span.source is Source.ANCHOR and span.stage == layout.num_stages for span in forward.reads)
            assert (forward.publishes is not None) == (forward.role is Role.EXTRACTION)


@given(layout=any_layout)
def test_where_forwards_run_changes_nothing_that_they_read(layout: Layout) -> None:
    def content(placement: Placement) -> list[tuple[Role, int, int, tuple[KvSpan, ...]]]:
        return [(f.role, f.unit, f.stage, f.reads) for f in flash_forward(layout, placement)]

    alone = content(Placement.ONE_WORKER)
    assert content(Placement.WORKER_PER_STAGE) == alone
    assert content(Placement.DEDICATED_PLANNER) == alone
    # Here all blocks come first; otherwise nothing moves.
    planned_first = sorted(alone, key=lambda item: item[0] is Role.RENDERER)
    assert content(Placement.PLANNER_FIRST) == planned_first


def test_two_chunks_and_two_stages_as_a_wavefront() -> None:
    layout = Layout(num_latents=5, num_stages=2)
    found = [(f.role, f.unit, f.stage, f.worker, f.round) for f in flash_forward(layout, Placement.DEDICATED_PLANNER)]
    assert found == [
        (Role.PLANNER, 0, 0, 2, 0),
        (Role.PLANNER, 0, 1, 2, 1),
        (Role.EXTRACTION, 0, 2, 2, 2),
        (Role.RENDERER, 0, 0, 0, 3),
        (Role.RENDERER, 0, 1, 1, 4),
        (Role.RENDERER, 1, 0, 0, 4),
        (Role.RENDERER, 1, 1, 1, 5),
    ]


def test_a_dedicated_planner_starts_a_block_when_the_first_chunk_of_the_last_but_one_has_begun() -> None:
    starts = {
        forward.unit: (forward.round, forward.after_chunk)
        for forward in flash_forward(Layout(num_latents=161), Placement.DEDICATED_PLANNER)
        if forward.role is Role.PLANNER and forward.stage == 0
    }
    # Chunk c begins in round 5 + c; blocks 1, 2 and 3 are first read by chunks 7, 14 and 27.
    assert starts == {0: (0, None), 1: (5, None), 2: (10, 0), 3: (15, 7), 4: (20, 14), 5: (33, 27)}


def test_self_forcing_encodes_each_finished_chunk_clean_except_the_last() -> None:
    layout = Layout(num_latents=6, num_stages=2)
    clean = ((Source.CHUNK, 2, range(1)),)
    assert [(f.role, f.unit, f.stage, f.reads, f.publishes) for f in self_forcing(layout)] == [
        (Role.RENDERER, 0, 0, (), None),
        (Role.RENDERER, 0, 1, (), None),
        (Role.RE_ENCODE, 0, 2, (), (Source.CHUNK, 2, range(1))),
        (Role.RENDERER, 1, 0, clean, None),
        (Role.RENDERER, 1, 1, clean, None),
    ]


def test_hiar_encodes_each_chunk_after_every_stage_less_noisy() -> None:
    layout = Layout(num_latents=6, num_stages=2)
    found = [
        (f.role, f.unit, f.stage, [span.stage for span in f.reads], f.worker, f.round)
        for f in hiar(layout, Placement.WORKER_PER_STAGE)
    ]
    assert found == [
        (Role.RENDERER, 0, 0, [], 0, 0),
        (Role.RE_ENCODE, 0, 1, [], 0, 1),
        (Role.RENDERER, 0, 1, [], 1, 1),
        (Role.RE_ENCODE, 0, 2, [], 1, 2),
        (Role.RENDERER, 1, 0, [1], 0, 2),
        (Role.RENDERER, 1, 1, [2], 1, 3),
    ]


@pytest.mark.parametrize("placement", [Placement.PLANNER_FIRST, Placement.DEDICATED_PLANNER])
def test_hiar_has_no_planner_to_place(placement: Placement) -> None:
    with pytest.raises(ValueError, match=f"HiAR has no planner, got {placement}"):
        next(hiar(Layout(num_latents=6), placement))


@pytest.mark.parametrize("placement", Placement)
def test_the_number_of_workers_is_that_of_the_list(placement: Placement) -> None:
    workers = {forward.worker for forward in flash_forward(Layout(num_latents=21), placement)}
    assert workers == set(range(placement.num_workers(4)))
