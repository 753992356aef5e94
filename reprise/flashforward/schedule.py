"""The three schedules of a long video as lists of forwards: FlashForward, Self-Forcing and HiAR (sections 3.1, A.1).

A list is in an order that one worker can run, chunk after chunk; where forwards run beside each other, `worker` and
`round` say so. Only the placement differs between a sequential run and a wavefront, never what a forward reads.
Standard library only; knows nothing about tensors, times, or who runs the list.
"""

import enum
from collections.abc import Iterator
from typing import NamedTuple

from reprise.flashforward.layout import Layout

LEAD_BLOCKS = 2
"""Blocks that a dedicated planner may be ahead of the renderer: bounds the clean KV that waits to be read."""


class Role(enum.StrEnum):
    """What a forward is for; the first and third advance a latent, the others only make KV."""

    PLANNER = "planner"
    EXTRACTION = "extraction"
    """Clean KV of a finished planner block."""
    RENDERER = "renderer"
    RE_ENCODE = "re_encode"
    """KV of a chunk's latent as it stands after a stage; FlashForward has none."""


class Source(enum.StrEnum):
    """Whose latents, or whose KV."""

    CHUNK = "chunk"
    ANCHOR = "anchor"


class KvSpan(NamedTuple):
    """The KV of some neighbouring chunks or anchors, one entry each."""

    source: Source
    stage: int
    """Stage at whose noise level the latents were; `num_stages` is clean."""
    indices: range
    """Chunks or anchors, by number."""


class Forward(NamedTuple):
    """One pass through the backbone."""

    role: Role
    unit: int
    """Planner block or chunk, by number."""
    stage: int
    """Stage at whose noise level its latents enter; `num_stages` is clean."""
    reads: tuple[KvSpan, ...]
    """KV of other forwards; each attends to its own as well."""
    publishes: KvSpan | None
    delivers: range | None
    """Latents of the video that are finished by it."""
    worker: int
    round: int
    """Synchronised round in which it runs; a worker runs at most one forward a round."""
    after_chunk: int | None = None
    """Chunk that must have left the first stage before this may start: holds a dedicated planner back."""

    @property
    def source(self) -> Source:
        """Tell whose latents enter."""
        return Source.ANCHOR if self.role in (Role.PLANNER, Role.EXTRACTION) else Source.CHUNK

    @property
    def advances(self) -> bool:
        """Tell whether it denoises."""
        return self.role in (Role.PLANNER, Role.RENDERER)


class Placement(enum.StrEnum):
    """Which worker runs what. Workers of stages have the stage's number."""

    ONE_WORKER = "one worker"
    """A block is planned when the first chunk that reads it is due."""
    WORKER_PER_STAGE = "worker per stage"
    """The first stage's worker also plans, as above; the wavefront pauses meanwhile."""
    PLANNER_FIRST = "planner first"
    """A worker per stage; the first plans the whole video before any chunk is begun, so anchors' KV grows with it."""
    DEDICATED_PLANNER = "dedicated planner"
    """A worker per stage and, numbered after them, one that plans ahead of the wavefront."""

    def num_workers(self, num_stages: int) -> int:
        """Count the workers."""
        if self is Placement.ONE_WORKER:
            return 1
        return num_stages + (self is Placement.DEDICATED_PLANNER)


class Method(enum.StrEnum):
    """How chunks learn of those before them."""

    FLASH_FORWARD = "flashforward"
    SELF_FORCING = "self_forcing"
    HIAR = "hiar"


def list_forwards(method: Method, layout: Layout, placement: Placement) -> Iterator[Forward]:
    """List a method's forwards; raise ValueError for a placement that it has no use for."""
    if method is Method.FLASH_FORWARD:
        return flash_forward(layout, placement)
    if method is Method.HIAR:
        return hiar(layout, placement)
    if placement is not Placement.ONE_WORKER:
        raise ValueError(f"placement must be one worker, as {method} has nothing to do for a second, got {placement}")
    return self_forcing(layout)


def flash_forward(layout: Layout, placement: Placement) -> Iterator[Forward]:
    """List FlashForward: renderers publish the KV of their own forward, and see clean anchors on both sides.

    In a wavefront chunk c runs stage s in round c + s, counted from the end of planning or, if blocks are planned
    between chunks, with the rounds of planning added.
    """
    one, dedicated = placement is Placement.ONE_WORKER, placement is Placement.DEDICATED_PLANNER
    planner = layout.num_stages if dedicated else 0
    planned = 0
    first_reader: list[int] = []  # of each planned block
    entry: list[int] = []  # round in which each chunk entered its first stage
    planner_free = next_entry = 0
    for chunk in range(layout.num_chunks):
        needed = layout.num_blocks if placement is Placement.PLANNER_FIRST else layout.blocks_needed(chunk)
        for block in range(planned, needed):
            first_reader.append(chunk)
            after = None
            if not dedicated:
                planner_free = max(planner_free, next_entry)
            elif block >= LEAD_BLOCKS and first_reader[block - LEAD_BLOCKS] < chunk:  # a chunk cannot wait for itself
                after = first_reader[block - LEAD_BLOCKS]
                planner_free = max(planner_free, entry[after] + 1)
            yield from _plan(layout, block, worker=planner, first_round=planner_free, after_chunk=after)
            planner_free += layout.num_stages + 1
        planned = needed
        start = max(next_entry, planner_free)
        entry.append(start)
        next_entry = start + (layout.num_stages if one else 1)
        window = KvSpan(Source.ANCHOR, layout.num_stages, layout.window_of(chunk))
        for stage in range(layout.num_stages):
            yield Forward(
                role=Role.RENDERER,
                unit=chunk,
                stage=stage,
                reads=(*_history(layout, chunk, stage), window),
                publishes=KvSpan(Source.CHUNK, stage, range(chunk, chunk + 1)),
                delivers=_delivery(layout, chunk, stage),
                worker=0 if one else stage,
                round=start + stage,
            )


def self_forcing(layout: Layout) -> Iterator[Forward]:
    """List Self-Forcing: a finished chunk is encoded once more, clean, for the next, which waits for that.

    Every forward needs the one before it, so there is one worker: a second would have nothing to do.
    """
    clock = 0
    for chunk in range(layout.num_chunks):
        reads = _history(layout, chunk, layout.num_stages)
        for stage in range(layout.num_stages):
            yield Forward(
                role=Role.RENDERER,
                unit=chunk,
                stage=stage,
                reads=reads,
                publishes=None,
                delivers=_delivery(layout, chunk, stage),
                worker=0,
                round=clock + stage,
            )
        clock += layout.num_stages
        if chunk < layout.num_chunks - 1:
            yield _re_encode(layout, chunk, layout.num_stages, worker=0, round_=clock)
            clock += 1


def hiar(layout: Layout, placement: Placement) -> Iterator[Forward]:
    """List HiAR: after every stage a chunk is encoded once more, one stage less noisy, for the next at that stage.

    With a worker per stage, chunk c runs stage s in round 2 c + s and is encoded in the round after it.
    """
    if placement not in (Placement.ONE_WORKER, Placement.WORKER_PER_STAGE):
        raise ValueError(f"placement must be one worker or worker per stage, as HiAR has no planner, got {placement}")
    one = placement is Placement.ONE_WORKER
    for chunk in range(layout.num_chunks):
        for stage in range(layout.num_stages):
            worker = 0 if one else stage
            round_ = 2 * (chunk * layout.num_stages + stage) if one else 2 * chunk + stage
            if one and chunk == layout.num_chunks - 1:
                round_ -= stage  # the last chunk is not encoded
            yield Forward(
                role=Role.RENDERER,
                unit=chunk,
                stage=stage,
                reads=_history(layout, chunk, stage + 1),
                publishes=None,
                delivers=_delivery(layout, chunk, stage),
                worker=worker,
                round=round_,
            )
            if chunk < layout.num_chunks - 1:
                yield _re_encode(layout, chunk, stage + 1, worker=worker, round_=round_ + 1)


def _plan(layout: Layout, block: int, *, worker: int, first_round: int, after_chunk: int | None) -> Iterator[Forward]:
    history = layout.history_anchors_of(block)
    reads = (KvSpan(Source.ANCHOR, layout.num_stages, history),) if history else ()
    for stage in range(layout.num_stages + 1):
        is_clean = stage == layout.num_stages
        yield Forward(
            role=Role.EXTRACTION if is_clean else Role.PLANNER,
            unit=block,
            stage=stage,
            reads=reads,
            publishes=KvSpan(Source.ANCHOR, stage, layout.block_anchors_of(block)) if is_clean else None,
            delivers=None,
            worker=worker,
            round=first_round + stage,
            after_chunk=after_chunk,
        )


def _re_encode(layout: Layout, chunk: int, stage: int, *, worker: int, round_: int) -> Forward:
    return Forward(
        role=Role.RE_ENCODE,
        unit=chunk,
        stage=stage,
        reads=_history(layout, chunk, stage),
        publishes=KvSpan(Source.CHUNK, stage, range(chunk, chunk + 1)),
        delivers=None,
        worker=worker,
        round=round_,
    )


def _history(layout: Layout, chunk: int, stage: int) -> tuple[KvSpan, ...]:
    chunks = layout.history_chunks_of(chunk)
    return (KvSpan(Source.CHUNK, stage, chunks),) if chunks else ()


def _delivery(layout: Layout, chunk: int, stage: int) -> range | None:
    return layout.chunk_positions(chunk) if stage == layout.num_stages - 1 else None
