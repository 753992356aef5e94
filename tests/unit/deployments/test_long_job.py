"""One long job from its first piece to its finished files: what its caller and a viewer see, whatever happens."""

import asyncio
import concurrent.futures
import dataclasses

import pytest

from deployments.api.artifacts import ArtifactStore, Variant
from deployments.api.facts import FailureCode, ScheduleFacts
from deployments.api.jobs import JobStore
from deployments.api.stream import StreamBroken, stream_fragments
from deployments.api.video_job import ClaimedJob, Lane, VideoStatus
from deployments.long_job import LongJobRunner
from deployments.parts import WorkerLost, WorkFailed
from tests.fakes.long_parts import CHUNKS, FakeLongRenderer
from tests.unit.deployments.conftest import CLIP, TENANT, Shop

LONG = dataclasses.replace(CLIP, num_frames=33, is_long=True)
WHOLE = b"piece 0;piece 1;piece 2;"


async def claim(shop: Shop) -> ClaimedJob:
    await shop.add(LONG)
    assert await shop.jobs.claim("router-1", count=1, block_s=0.01) == [], "a long video waits in a queue of its own"
    (claimed,) = await shop.jobs.claim("router-1", count=1, block_s=0.01, lane=Lane.LONG)
    return claimed


def runner_of(shop: Shop, renderer: FakeLongRenderer) -> LongJobRunner:
    return LongJobRunner(jobs=shop.jobs, artifacts=shop.artifacts, renderer=renderer)


async def watch(shop: Shop, video_id: str) -> bytes:
    pieces = stream_fragments(shop.jobs, shop.artifacts, tenant=TENANT, video_id=video_id)
    return b"".join([piece async for piece in pieces])


async def test_a_finished_video_tells_how_it_was_made_and_can_be_watched(shop: Shop) -> None:
    claimed = await claim(shop)
    await runner_of(shop, FakeLongRenderer()).run(claimed)
    job = await shop.read(claimed.job.id)
    assert (job.status, job.progress, job.num_fragments) == (VideoStatus.COMPLETED, 100, CHUNKS)
    assert job.reuse.schedule == ScheduleFacts(
        method="flashforward",
        placement="one worker",
        workers=1,
        rounds=17,
        forwards={"planner": 4, "extraction": 1, "renderer": 12},
        wait_s={},
        peak_kv_bytes=1000,
        first_latents_s=1.0,
        render_s=3.0,
    )
    assert (job.reuse.hit, job.reuse.reason) == (False, "long_video")
    assert [warning.dropped for warning in job.reuse.warnings] == [2]
    assert job.reuse.seconds.first_frame == 1.5
    assert await watch(shop, job.id) == WHOLE
    video = shop.artifacts.open(TENANT, job.id, Variant.VIDEO)
    assert video is not None
    with video:
        assert video.read() == b"video"


async def test_a_viewer_who_comes_early_sees_the_video_grow(shop: Shop) -> None:
    claimed = await claim(shop)
    viewer = asyncio.create_task(watch(shop, claimed.job.id))
    await runner_of(shop, FakeLongRenderer()).run(claimed)
    assert await viewer == WHOLE


async def test_a_lost_worker_leaves_the_job_to_a_run_that_goes_on_with_the_pieces(shop: Shop, hasty: JobStore) -> None:
    claimed = await claim(shop)
    await runner_of(shop, FakeLongRenderer(fault=WorkerLost("gone"), num_before=2)).run(claimed)
    job = await shop.read(claimed.job.id)
    assert (job.status, job.num_fragments) == (VideoStatus.IN_PROGRESS, 2)
    viewer = asyncio.create_task(watch(shop, job.id))
    (again,) = await hasty.claim("router-2", count=1, block_s=0.01, lane=Lane.LONG)
    await runner_of(shop, FakeLongRenderer()).run(again)
    assert await viewer == WHOLE
    assert (await shop.read(job.id)).attempts == 2


async def test_a_failed_video_cuts_its_viewers_off(shop: Shop) -> None:
    claimed = await claim(shop)
    viewer = asyncio.create_task(watch(shop, claimed.job.id))
    failure = WorkFailed(FailureCode.WORKER_LOST, "the worker of stage 2 has ended")
    await runner_of(shop, FakeLongRenderer(fault=failure, num_before=1)).run(claimed)
    job = await shop.read(claimed.job.id)
    assert job.error is not None
    assert (job.status, job.error.code) == (VideoStatus.FAILED, FailureCode.WORKER_LOST)
    with pytest.raises(StreamBroken, match="failed"):
        await viewer


async def test_a_deleted_video_stops_and_leaves_nothing(shop: Shop) -> None:
    claimed = await claim(shop)
    renderer = FakeLongRenderer()
    put = ArtifactStore.put_fragment

    def put_and_delete(store: ArtifactStore, tenant: str, video_id: str, number: int, data: bytes) -> None:
        put(store, tenant, video_id, number, data)
        deletions.append(asyncio.run_coroutine_threadsafe(shop.jobs.delete(tenant, video_id), loop))
        deletions[-1].result()

    deletions: list[concurrent.futures.Future[bool]] = []
    loop = asyncio.get_running_loop()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ArtifactStore, "put_fragment", put_and_delete)
        await runner_of(shop, renderer).run(claimed)
    assert (len(deletions), renderer.num_closed) == (1, 1)
    assert shop.files() == []
    with pytest.raises(StreamBroken, match="deleted"):
        await watch(shop, claimed.job.id)


async def test_a_full_disk_fails_the_job_with_its_reason(shop: Shop, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError("no space left")

    monkeypatch.setattr(ArtifactStore, "put_fragment", full)
    claimed = await claim(shop)
    await runner_of(shop, FakeLongRenderer()).run(claimed)
    job = await shop.read(claimed.job.id)
    assert job.error is not None
    assert job.error.code is FailureCode.STORAGE_FAILED
