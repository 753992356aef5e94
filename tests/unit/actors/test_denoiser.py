"""The denoiser replica with the bundled model: events, stored latents, sources that are no good, and stopping."""

import asyncio
import contextlib
import dataclasses
import threading
from collections.abc import AsyncGenerator, Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from actors.denoiser import DenoiserConfig, DenoiserReplica
from actors.messages import ClipDone, ClipRequest, DenoiseEvent, DenoiseRequest, StepDone, TrajectoryStored
from cache_store.contracts import LatentKey, LatentRecord
from cache_store.errors import StoreUnavailableError
from cache_store.latents.memory import MemoryLatentStore
from cache_store.latents.tensors import from_tensor, to_tensor
from reprise.chorus.mask_codec import pack_mask
from reprise.chorus.plan import MissReason, RegionReason, ReuseMode, ReusePlan, plan_miss
from reprise.chorus.stages import StageBoundaries, few_step_map
from reprise.wan.presets import tiny

TENANT = "default"
STEPS = 4
K1 = 2
CLIP = ClipRequest(
    prompt="a large red circle moves right over a blue background",
    negative_prompt="",
    seed=5,
    num_inference_steps=STEPS,
    guidance_scale=1.0,
    width=64,
    height=64,
    num_frames=5,
    fps=4,
    canvas_width=64,
    canvas_height=64,
)
MISS = plan_miss(MissReason.EMPTY_CACHE)


class FaultyStore(MemoryLatentStore):
    """Raises what it is told to; otherwise a store."""

    def __init__(self) -> None:
        super().__init__()
        self.fault: Exception | None = None

    def put(self, key: LatentKey, record: LatentRecord) -> bool:
        if self.fault is not None:
            raise self.fault
        return super().put(key, record)

    def get(self, key: LatentKey) -> LatentRecord | None:
        if self.fault is not None:
            raise self.fault
        return super().get(key)

    def damage(self, key: LatentKey) -> None:
        """Change one byte of a stored latent."""
        steps = self._sources[key.tenant, key.source_id]
        steps[key.step] = steps[key.step][:-1] + bytes([steps[key.step][-1] ^ 1])


@pytest.fixture(scope="module")
def loaded() -> Iterator[tuple[DenoiserReplica, FaultyStore]]:
    """The bundled model, loaded once, with the stage map of a 4-step model."""
    store = FaultyStore()
    replica = DenoiserReplica(DenoiserConfig(preset=dataclasses.replace(tiny(), stage_map=few_step_map())), store)
    replica.start()
    yield replica, store
    replica.stop()


@pytest.fixture
def replica(loaded: tuple[DenoiserReplica, FaultyStore]) -> DenoiserReplica:
    return loaded[0]


@pytest.fixture
def store(loaded: tuple[DenoiserReplica, FaultyStore]) -> Iterator[FaultyStore]:
    yield loaded[1]
    loaded[1].fault = None
    loaded[1].delete_tenant(TENANT)


def request_of(video_id: str, clip: ClipRequest = CLIP, plan: ReusePlan = MISS) -> DenoiseRequest:
    return DenoiseRequest(tenant=TENANT, video_id=video_id, clip=clip, plan=plan)


def hit_of(source_id: str, *, k1: int = K1) -> ReusePlan:
    return ReusePlan(
        boundaries=StageBoundaries(k1=k1, k2=k1),
        source_id=source_id,
        source_seed=CLIP.seed,
        matching_score=0.97,
        source_steps=(k1,),
    )


PHRASE = "large red circle"
REGION = dataclasses.replace(
    hit_of("a", k1=1),
    boundaries=StageBoundaries(k1=1, k2=2),
    region_phrase=PHRASE,
    source_steps=(1, 2),
)


def square() -> bytes:
    """Pack the mask of a square in the upper left corner, which leaves most tokens out."""
    mask_FHW = np.zeros((CLIP.num_frames, 64, 64), np.bool_)
    mask_FHW[:, 8:16, 8:16] = True
    return pack_mask(mask_FHW)


async def events_of(replica: DenoiserReplica, request: DenoiseRequest) -> list[DenoiseEvent]:
    return [event async for event in replica.generate(request)]


async def make(replica: DenoiserReplica, request: DenoiseRequest) -> ClipDone:
    """Run one request and give its clip."""
    (done,) = [event for event in await events_of(replica, request) if isinstance(event, ClipDone)]
    return done


@contextlib.contextmanager
def before_each_forward(replica: DenoiserReplica, call: Callable[[], None]) -> Iterator[None]:
    """Call something before every forward of the transformer; one a step, since the clip is not guided."""
    hook = replica.model.transformer.register_forward_pre_hook(lambda *_: call())
    try:
        yield
    finally:
        hook.remove()


async def test_a_miss_tells_each_step_then_the_clip_then_what_was_stored(
    replica: DenoiserReplica, store: FaultyStore
) -> None:
    *steps, done, stored = await events_of(replica, request_of("a"))
    assert steps == [StepDone(step=step, num_steps=STEPS) for step in range(STEPS + 1)]
    assert isinstance(done, ClipDone)
    assert (done.plan, done.work.num_steps_computed, done.num_tokens_dropped) == (MISS, STEPS, 0)
    assert set(done.files) == {"video", "thumbnail", "spritesheet"}
    sizes = store.sizes(TENANT, "a")
    assert isinstance(stored, TrajectoryStored)
    assert (stored.steps, set(sizes)) == ((1, 2, STEPS), {1, 2, STEPS})
    assert stored.frames_FHWC.shape == (CLIP.num_frames, 64, 64, 3)


async def test_a_hit_goes_on_from_the_stored_latent_and_stores_nothing(
    replica: DenoiserReplica, store: FaultyStore
) -> None:
    await make(replica, request_of("a"))
    clip = dataclasses.replace(CLIP, prompt=CLIP.prompt.replace("red", "orange"), seed=6)
    *steps, done = await events_of(replica, request_of("b", clip, hit_of("a")))
    assert steps == [StepDone(step=step, num_steps=STEPS) for step in range(K1, STEPS + 1)]
    assert isinstance(done, ClipDone)
    assert (done.plan, done.work.num_steps_computed) == (hit_of("a"), STEPS - K1)
    assert store.sizes(TENANT, "b") == {}
    assert done.files["video"] != (await make(replica, request_of("c", clip))).files["video"]


@pytest.mark.usefixtures("store")
async def test_the_same_request_again_gives_the_same_files(replica: DenoiserReplica) -> None:
    source = await make(replica, request_of("a"))
    again = await make(replica, request_of("b", CLIP, hit_of("a", k1=STEPS)))
    assert (again.work.num_steps_computed, again.files) == (0, source.files)


async def test_stage_2_runs_inside_the_mask_and_leaves_the_rest_to_the_source(
    replica: DenoiserReplica, store: FaultyStore
) -> None:
    await make(replica, request_of("a"))
    assert store.put_mask(TENANT, "a", PHRASE, square())
    clip = dataclasses.replace(CLIP, prompt=CLIP.prompt.replace("red", "orange"), seed=6)
    done = await make(replica, request_of("b", clip, REGION))
    assert (done.plan, done.work.num_region_steps, done.work.num_dense_steps) == (REGION, 1, 2)
    # One cell of 8 x 8, dilated by 1 and by 2 and cut at the border.
    assert (done.work.edit_share, done.work.see_share) == (9 / 64, 16 / 64)
    assert done.work.token_share == (0.25 + 2) / STEPS


def no_mask(store: FaultyStore) -> None:
    pass


def damaged_mask(store: FaultyStore) -> None:
    store.put_mask(TENANT, "a", PHRASE, b"RPM1 is no mask")


def everywhere(store: FaultyStore) -> None:
    store.put_mask(TENANT, "a", PHRASE, pack_mask(np.ones((CLIP.num_frames, 64, 64), np.bool_)))


def nowhere(store: FaultyStore) -> None:
    store.put_mask(TENANT, "a", PHRASE, pack_mask(np.zeros((CLIP.num_frames, 64, 64), np.bool_)))


def of_another_clip(store: FaultyStore) -> None:
    store.put_mask(TENANT, "a", PHRASE, pack_mask(np.ones((3, 5, 7), np.bool_)))


def without_a_latent(store: FaultyStore) -> None:
    store.put_mask(TENANT, "a", PHRASE, square())
    store.damage(LatentKey(tenant=TENANT, source_id="a", step=2))


@pytest.mark.parametrize(
    ("spoil", "reason"),
    [
        (no_mask, RegionReason.NO_MASK),
        (damaged_mask, RegionReason.NO_MASK),
        (nowhere, RegionReason.NO_MASK),
        (of_another_clip, RegionReason.NO_MASK),
        (everywhere, RegionReason.TOO_LARGE),
        (without_a_latent, RegionReason.NO_LATENTS),
    ],
)
async def test_without_a_region_stage_2_is_computed_in_full(
    replica: DenoiserReplica, store: FaultyStore, spoil: Callable[[FaultyStore], None], reason: RegionReason
) -> None:
    await make(replica, request_of("a"))
    spoil(store)
    clip = dataclasses.replace(CLIP, seed=6)
    done = await make(replica, request_of("b", clip, REGION))
    assert (done.plan.region_reason, done.plan.boundaries) == (reason, StageBoundaries(k1=1, k2=1))
    assert (done.work.num_dense_steps, done.work.num_region_steps, done.work.see_share) == (STEPS - 1, 0, None)
    plain = await make(replica, request_of("c", clip, hit_of("a", k1=1)))
    assert done.files == plain.files


def damaged(store: FaultyStore, key: LatentKey) -> None:
    store.damage(key)


def missing(store: FaultyStore, key: LatentKey) -> None:
    store.delete(key.tenant, key.source_id)


def unreachable(store: FaultyStore, key: LatentKey) -> None:
    store.fault = StoreUnavailableError(f"{key} cannot be read")


def replaced(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[FaultyStore, LatentKey], None]:
    def replace(store: FaultyStore, key: LatentKey) -> None:
        record = store.get(key)
        assert record is not None
        store.put(key, from_tensor(change(to_tensor(record))))

    return replace


@pytest.mark.parametrize(
    "spoil",
    [
        damaged,
        missing,
        unreachable,
        replaced(lambda packed: packed[..., :-1]),
        replaced(lambda packed: packed[0]),
        replaced(lambda packed: packed.flatten()[0]),
        replaced(lambda packed: packed.index_fill(-1, torch.tensor([0]), torch.nan)),
        replaced(lambda packed: packed / 0),
    ],
    ids=["damaged", "missing", "unreachable", "narrower", "unpacked", "a number", "nan", "infinite"],
)
async def test_a_source_that_is_no_good_is_a_miss_and_the_clip_is_made(
    replica: DenoiserReplica, store: FaultyStore, spoil: Callable[[FaultyStore, LatentKey], None]
) -> None:
    whole = await make(replica, request_of("a"))
    spoil(store, LatentKey(tenant=TENANT, source_id="a", step=K1))
    done = await make(replica, request_of("b", CLIP, hit_of("a")))
    assert done.plan == plan_miss(MissReason.SOURCE_MISSING, matching_score=0.97)
    assert (done.work.num_steps_computed, done.files) == (STEPS, whole.files)


async def test_what_the_store_refuses_is_not_offered(replica: DenoiserReplica, store: FaultyStore) -> None:
    store.fault = StoreUnavailableError("no answer")
    events = await events_of(replica, request_of("a"))
    assert isinstance(events[-1], TrajectoryStored)
    assert (events[-1].steps, events[-1].num_bytes) == ((), 0)


async def test_reuse_off_stores_nothing(replica: DenoiserReplica, store: FaultyStore) -> None:
    clip = dataclasses.replace(CLIP, reuse=ReuseMode.OFF)
    events = await events_of(replica, request_of("a", clip))
    assert isinstance(events[-1], ClipDone)
    assert store.sizes(TENANT, "a") == {}


@pytest.mark.usefixtures("store")
async def test_a_cut_prompt_is_counted(replica: DenoiserReplica) -> None:
    clip = dataclasses.replace(CLIP, prompt=" ".join([CLIP.prompt] * 6), num_inference_steps=1)
    done = await make(replica, request_of("a", clip))
    assert done.num_tokens == tiny().max_sequence_length
    assert done.num_tokens_dropped > 0


async def test_closing_stops_the_work_before_its_next_step(replica: DenoiserReplica, store: FaultyStore) -> None:
    forwards = 0
    is_at_second, may_go_on = threading.Event(), threading.Event()

    def wait_at_second() -> None:
        nonlocal forwards
        forwards += 1
        if forwards == 2:
            is_at_second.set()
            may_go_on.wait()

    with before_each_forward(replica, wait_at_second):
        events = replica.generate(request_of("a"))
        assert await anext(events) == StepDone(step=0, num_steps=STEPS)
        await asyncio.to_thread(is_at_second.wait)
        await events.aclose()
        may_go_on.set()
        done = await make(replica, request_of("b"))
    assert forwards == 2 + STEPS, "the step under way is the first request's last"
    assert done.work.num_steps_computed == STEPS
    assert store.sizes(TENANT, "a") == {}


async def test_a_request_closed_while_it_waits_its_turn_never_runs(
    replica: DenoiserReplica, store: FaultyStore
) -> None:
    forwards = 0

    def count() -> None:
        nonlocal forwards
        forwards += 1

    with before_each_forward(replica, count):
        running = asyncio.create_task(make(replica, request_of("a")))
        await asyncio.sleep(0)
        waiting = asyncio.create_task(make(replica, request_of("b")))
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        await running
        await make(replica, request_of("c"))
    assert forwards == 2 * STEPS
    assert store.sizes(TENANT, "b") == {}


async def test_closing_after_the_last_step_leaves_no_latents(replica: DenoiserReplica, store: FaultyStore) -> None:
    is_decoding, may_go_on = threading.Event(), threading.Event()

    def wait(*_: Any) -> None:
        is_decoding.set()
        may_go_on.wait()

    hook = replica.model.vae.decode_out.register_forward_pre_hook(wait)
    events: AsyncGenerator[DenoiseEvent, None] = replica.generate(request_of("a"))
    await anext(events)
    await asyncio.to_thread(is_decoding.wait)
    hook.remove()
    await events.aclose()
    may_go_on.set()
    await make(replica, request_of("b"))
    assert store.sizes(TENANT, "a") == {}


async def test_an_error_in_the_work_reaches_its_caller_and_no_other(replica: DenoiserReplica) -> None:
    def fail() -> None:
        raise ArithmeticError("boom")

    with before_each_forward(replica, fail), pytest.raises(ArithmeticError, match="boom"):
        await make(replica, request_of("a"))
    assert (await make(replica, request_of("b"))).work.num_steps_computed == STEPS


async def test_two_requests_at_a_time_are_as_two_in_a_row(replica: DenoiserReplica) -> None:
    other = dataclasses.replace(CLIP, prompt="a small green star rises over a black background", seed=6)
    requests = [request_of("a"), request_of("b", other)]
    in_a_row = [(await make(replica, request)).files for request in requests]
    at_a_time = [done.files for done in await asyncio.gather(*(make(replica, request) for request in requests))]
    assert at_a_time == in_a_row
    assert in_a_row[0] != in_a_row[1]


def test_the_reuse_key_names_the_loaded_weights(replica: DenoiserReplica) -> None:
    partition = replica.partition
    assert partition.model_id == "reprise-tiny"
    assert replica.model.fingerprint in partition.model_revision
    assert partition.tenant == "", "left to the router"


def test_a_replica_that_was_not_started_says_so() -> None:
    with pytest.raises(RuntimeError, match="call start"):
        _ = DenoiserReplica(DenoiserConfig(preset=tiny()), MemoryLatentStore()).partition
