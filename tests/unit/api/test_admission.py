"""Who is let in and who runs next: turns of tenants, limits, waits and deadlines, on a real Valkey."""

import asyncio
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from deployments.api.errors import DeadlineOutOfReach, Overloaded, QueueFull, TenantFull
from deployments.api.facts import FailureCode
from deployments.api.job_keys import limits_key
from deployments.api.jobs import JobStore, JobStoreConfig
from deployments.api.video_job import JobLease, Lane, VideoStatus, WriteOutcome
from tests.unit.api.clips import FACTS, TENANT, add_job


@pytest.fixture
async def redis(jobs_url: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(jobs_url, decode_responses=True)
    yield client
    await client.aclose()


@pytest.fixture
async def strict(jobs_url: str) -> AsyncIterator[JobStore]:
    """A store with small bounds and two workers."""
    config = JobStoreConfig(
        max_unfinished_jobs=6,
        max_unfinished_jobs_per_tenant=4,
        max_wait_s=10.0,
        workers={Lane.CLIPS: 2, Lane.LONG: 1},
    )
    store = JobStore.connect(jobs_url, config)
    yield store
    await store.close()


async def order_of_runs(jobs: JobStore) -> str:
    taken = await jobs.claim("router", count=99, block_s=0.01)
    return "".join(claimed.job.tenant for claimed in taken)


async def test_a_flood_of_one_tenant_delays_another_by_no_job_that_waits(jobs: JobStore) -> None:
    for _ in range(5):
        await add_job(jobs, tenant="a")
    for _ in range(2):
        await add_job(jobs, tenant="b")
    assert await order_of_runs(jobs) == "ababaaa"


async def test_turns_are_of_work_and_not_of_jobs(jobs: JobStore) -> None:
    for _ in range(2):
        await add_job(jobs, tenant="a", work_s=3.0)
    for _ in range(6):
        await add_job(jobs, tenant="b", work_s=1.0)
    assert await order_of_runs(jobs) == "abbbabbb"


async def test_weights_share_the_work(jobs: JobStore, redis: Redis) -> None:
    await redis.hset(limits_key("b"), "weight", "3")
    for tenant in "ab" * 6:
        await add_job(jobs, tenant=tenant)
    assert (await order_of_runs(jobs))[:8].count("b") == 6


async def test_who_was_away_has_saved_up_no_turns(jobs: JobStore) -> None:
    for _ in range(3):
        await add_job(jobs, tenant="a")
    assert await order_of_runs(jobs) == "aaa"
    for tenant in "aaabbb":
        await add_job(jobs, tenant=tenant)
    assert await order_of_runs(jobs) == "bababa", "a alone has just run, and owes no more than that"


async def test_a_waiting_router_is_woken_by_a_new_job(jobs: JobStore) -> None:
    waiting = asyncio.create_task(jobs.claim("router", count=1, block_s=30.0))
    await asyncio.sleep(0.05)
    job = await add_job(jobs)
    (claimed,) = await asyncio.wait_for(waiting, 2.0)
    assert claimed.job.id == job.id


async def test_a_tenant_has_so_many_unfinished_jobs(strict: JobStore, redis: Redis) -> None:
    await redis.hset(limits_key("a"), "max_unfinished_jobs", "1")
    await add_job(strict, tenant="a")
    with pytest.raises(TenantFull, match="all 1 unfinished") as caught:
        await add_job(strict, tenant="a")
    assert (caught.value.status, caught.value.headers["retry-after"]) == (429, "5")
    for _ in range(4):
        await add_job(strict, tenant="b")
    with pytest.raises(TenantFull, match="all 4 unfinished"):
        await add_job(strict, tenant="b")


async def test_a_lane_has_so_many_unfinished_jobs(strict: JobStore) -> None:
    for tenant in "aaabbb":
        await add_job(strict, tenant=tenant)
    with pytest.raises(QueueFull) as caught:
        await add_job(strict, tenant="c")
    assert caught.value.status == 503
    claimed = (await strict.claim("router", count=1, block_s=0.01))[0]
    await strict.fail(claimed.lease, FailureCode.INTERNAL_ERROR, "made room")
    await add_job(strict, tenant="c")


async def test_a_job_that_would_wait_too_long_is_refused_and_leaves_nothing(strict: JobStore, redis: Redis) -> None:
    for _ in range(2):
        await add_job(strict, work_s=11.0)
    before = {key async for key in redis.scan_iter()}
    with pytest.raises(Overloaded, match="about 11 s") as caught:
        await add_job(strict, work_s=1.0, key="k")
    assert caught.value.headers["retry-after"] == "1", "22 s of work for two workers, of which ten may be waited for"
    assert {key async for key in redis.scan_iter()} == before
    (first,) = await strict.claim("router", count=1, block_s=0.01)
    await strict.mark_started(first.lease)
    await strict.finish(first.lease, FACTS)
    await add_job(strict, work_s=1.0)


async def test_the_wait_counts_of_others_what_fairness_lets_them_have(strict: JobStore) -> None:
    for _ in range(2):
        await add_job(strict, tenant="a", work_s=19.0)
    job = await add_job(strict, tenant="b", work_s=1.0)
    assert job.status is VideoStatus.QUEUED, "a has 38 s of work waiting, but b's turn comes after a second of it"
    with pytest.raises(Overloaded):
        await add_job(strict, tenant="a", work_s=1.0)


async def test_a_deadline_out_of_reach_is_said_at_once(strict: JobStore) -> None:
    await add_job(strict, work_s=12.0)
    with pytest.raises(DeadlineOutOfReach, match="about 9 s, after its deadline_s of 5") as caught:
        await add_job(strict, work_s=3.0, deadline_s=5.0)
    assert (caught.value.status, caught.value.param, caught.value.headers["retry-after"]) == (429, "deadline_s", "4")
    await add_job(strict, work_s=3.0, deadline_s=9.5)


async def test_a_job_that_waits_beyond_its_deadline_fails(jobs: JobStore) -> None:
    job = await add_job(jobs, deadline_s=0.05)
    other = await add_job(jobs, deadline_s=60.0)
    assert await jobs.expire_waiting() == 0
    await asyncio.sleep(0.1)
    assert await jobs.expire_waiting() == 1
    assert await jobs.expire_waiting() == 0
    late = await jobs.get(TENANT, job.id)
    assert late is not None
    assert late.error is not None
    assert (late.status, late.error.code) == (VideoStatus.FAILED, FailureCode.DEADLINE_EXCEEDED)
    assert [claimed.job.id for claimed in await jobs.claim("router", count=9, block_s=0.01)] == [other.id]


async def started(jobs: JobStore, deadline_s: float) -> JobLease:
    await add_job(jobs, deadline_s=deadline_s)
    (claimed,) = await jobs.claim("router", count=1, block_s=0.01)
    assert await jobs.mark_started(claimed.lease) is WriteOutcome.APPLIED
    return claimed.lease


async def test_a_run_beyond_its_deadline_stops_at_its_next_report(jobs: JobStore) -> None:
    lease = await started(jobs, 0.1)
    await asyncio.sleep(0.15)
    assert await jobs.expire_waiting() == 0, "a run is stopped by its own report"
    assert await jobs.set_progress(lease, 50) is WriteOutcome.LATE
    job = await jobs.get(TENANT, lease.video_id)
    assert job is not None
    assert job.error is not None
    assert (job.status, job.error.code) == (VideoStatus.FAILED, FailureCode.DEADLINE_EXCEEDED)
    assert await jobs.set_progress(lease, 60) is WriteOutcome.ILLEGAL


async def test_what_is_finished_is_delivered_though_late(jobs: JobStore) -> None:
    lease = await started(jobs, 0.1)
    await asyncio.sleep(0.15)
    assert await jobs.finish(lease, FACTS) is WriteOutcome.APPLIED
