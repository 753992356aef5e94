"""The router's loops: how many jobs run at a time, and what ends them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from redis.exceptions import ConnectionError as RedisConnectionError

from deployments.api.facts import FailureCode
from deployments.api.jobs import JobStore
from deployments.api.video_job import Lane, VideoStatus
from deployments.router import Router, RouterConfig
from tests.unit.deployments.conftest import TENANT, Shop, until

CONFIG = RouterConfig(num_slots=2, claim_wait_s=0.02, renew_period_s=0.01, retry_wait_s=0.01)


@pytest.fixture
async def router(shop: Shop) -> AsyncIterator[Router]:
    router = Router(CONFIG, jobs=shop.jobs, runner=shop.runner())
    yield router
    shop.denoiser.release()
    await router.stop()


async def is_final(shop: Shop, video_id: str) -> None:
    """Wait for a job's end."""
    while not (await shop.read(video_id)).status.is_final:
        await asyncio.sleep(0.005)


async def test_no_more_jobs_run_than_there_are_slots(shop: Shop, router: Router) -> None:
    shop.denoiser.hold()
    made = [await shop.add() for _ in range(5)]
    await router.start()
    await until(lambda: len(shop.denoiser.open_runs) == CONFIG.num_slots)
    await asyncio.sleep(3 * CONFIG.claim_wait_s)
    assert router.num_running == CONFIG.num_slots
    assert [(await shop.read(job.id)).attempts for job in made] == [1, 1, 0, 0, 0], "the others wait in the queue"
    shop.denoiser.release()
    for job in made:
        await is_final(shop, job.id)
    assert shop.denoiser.most_at_once == CONFIG.num_slots
    assert {(await shop.read(job.id)).status for job in made} == {VideoStatus.COMPLETED}


async def test_stop_waits_for_running_jobs_and_takes_no_more(shop: Shop, router: Router) -> None:
    shop.denoiser.hold()
    made = [await shop.add() for _ in range(3)]
    await router.start()
    await until(lambda: len(shop.denoiser.open_runs) == 2)
    stopping = asyncio.create_task(router.stop())
    await asyncio.sleep(0.02)
    assert not stopping.done()
    shop.denoiser.release()
    await stopping
    statuses = [(await shop.read(job.id)).status for job in made]
    assert statuses == [VideoStatus.COMPLETED, VideoStatus.COMPLETED, VideoStatus.QUEUED]
    assert router.num_running == 0
    await router.stop()


async def test_a_job_leased_during_the_drain_is_still_run(
    shop: Shop, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would wait for its lease to run out."""
    claim, is_stopping = shop.jobs.claim, asyncio.Event()

    async def claim_late(consumer: str, *, count: int, block_s: float, lane: Lane) -> object:
        await is_stopping.wait()
        return await claim(consumer, count=count, block_s=block_s, lane=lane)

    monkeypatch.setattr(shop.jobs, "claim", claim_late)
    job = await shop.add()
    await router.start()
    await asyncio.sleep(0)
    stopping = asyncio.create_task(router.stop())
    await asyncio.sleep(0)
    is_stopping.set()
    await stopping
    assert (await shop.read(job.id)).status is VideoStatus.COMPLETED


async def test_stop_before_start_is_nothing(router: Router) -> None:
    await router.stop()


async def test_the_loop_survives_a_store_that_does_not_answer(
    shop: Shop, router: Router, monkeypatch: pytest.MonkeyPatch
) -> None:
    claim, faults = shop.jobs.claim, [RedisConnectionError("gone"), OSError("gone")]
    monkeypatch.setattr(shop.jobs, "claim", failing(claim, faults))
    job = await shop.add()
    await router.start()
    await is_final(shop, job.id)
    assert faults == []
    router.check()


async def test_a_job_cut_off_by_the_store_is_not_failed(
    shop: Shop, router: Router, hasty: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    faults: list[Exception] = [RedisConnectionError("gone")]
    monkeypatch.setattr(shop.jobs, "set_progress", failing(shop.jobs.set_progress, faults))
    job = await shop.add()
    await router.start()
    await until(lambda: not faults and router.num_running == 0)
    assert (await shop.read(job.id)).status is VideoStatus.IN_PROGRESS
    (again,) = await hasty.claim("router-2", count=1, block_s=0.01)
    assert again.job.id == job.id


def failing(call: Callable[..., Awaitable[object]], faults: list[Exception]) -> Callable[..., Awaitable[object]]:
    """Raise the faults one after the other, then work."""

    async def run(*arguments: object, **options: object) -> object:
        if faults:
            raise faults.pop()
        return await call(*arguments, **options)

    return run


async def test_an_unexpected_exception_fails_its_job_and_no_other(shop: Shop, router: Router) -> None:
    shop.denoiser.fault = KeyError("secret detail")
    job = await shop.add()
    await router.start()
    await is_final(shop, job.id)
    read = await shop.read(job.id)
    assert read.status is VideoStatus.FAILED
    assert read.error is not None
    assert read.error.code is FailureCode.INTERNAL_ERROR
    assert "KeyError" in read.error.message
    assert "secret" not in read.error.message
    shop.denoiser.fault = None
    following = await shop.add()
    await is_final(shop, following.id)
    assert (await shop.read(following.id)).status is VideoStatus.COMPLETED
    router.check()


async def test_a_lost_lease_cancels_its_run(shop: Shop, router: Router, hasty: JobStore) -> None:
    shop.denoiser.hold()
    await shop.add()
    await router.start()
    await until(lambda: len(shop.denoiser.open_runs) == 1)
    taken = await hasty.claim("router-2", count=1, block_s=0.01)
    assert len(taken) == 1
    await until(lambda: router.num_running == 0)
    assert shop.denoiser.runs[0].is_closed
    assert shop.denoiser.runs[0].steps_begun == 0
    router.check()


async def test_a_deleted_job_is_cancelled_even_before_a_step(shop: Shop, router: Router) -> None:
    shop.denoiser.hold()
    job = await shop.add()
    await router.start()
    await until(lambda: len(shop.denoiser.open_runs) == 1)
    await shop.jobs.delete(TENANT, job.id)
    await until(lambda: router.num_running == 0)
    assert shop.denoiser.runs[0].is_closed


async def test_leases_of_running_jobs_are_kept(shop: Shop, router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    renewed: list[str] = []
    renew = shop.jobs.renew

    async def note(leases: list[object]) -> object:
        lost = await renew(leases)  # type: ignore[arg-type]
        renewed.extend(lease.video_id for lease in leases)  # type: ignore[attr-defined]
        return lost

    monkeypatch.setattr(shop.jobs, "renew", note)
    shop.denoiser.hold()
    job = await shop.add()
    await router.start()
    await until(lambda: renewed.count(job.id) >= 2)
    assert len(shop.denoiser.open_runs) == 1
    shop.denoiser.release()
    await is_final(shop, job.id)


async def test_a_dead_loop_is_told(shop: Shop, router: Router, monkeypatch: pytest.MonkeyPatch) -> None:
    router.check()
    monkeypatch.setattr(shop.jobs, "claim", failing(shop.jobs.claim, [RuntimeError("a bug")]))
    await router.start()
    await asyncio.sleep(0.02)
    with pytest.raises(RuntimeError, match="loop has ended"):
        router.check()
