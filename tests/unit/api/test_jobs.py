"""The job store on a real Valkey: what survives, what is atomic, who may write."""

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest
from redis.asyncio import Redis
from redis.exceptions import TimeoutError as RedisTimeoutError

from deployments.api.errors import IdempotencyConflict
from deployments.api.facts import FailureCode, PromptWarning, StageSeconds
from deployments.api.jobs import JobStore, JobStoreConfig
from deployments.api.video_job import TRANSITIONS, JobEvent, JobLease, VideoStatus, WriteOutcome
from tests.unit.api.clips import CLIP, FACTS, TENANT, add_job

APPLIED, STALE = WriteOutcome.APPLIED, WriteOutcome.STALE


@pytest.fixture
async def redis(jobs_url: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(jobs_url, decode_responses=True)
    yield client
    await client.aclose()


@pytest.fixture
async def hasty(jobs_url: str) -> AsyncIterator[JobStore]:
    """A store in which a lease is lost as soon as another router looks."""
    store = JobStore.connect(jobs_url, JobStoreConfig(lease_timeout_s=0.0, max_attempts=2))
    yield store
    await store.close()


async def claim_one(store: JobStore, consumer: str = "router") -> JobLease:
    (claimed,) = await store.claim(consumer, count=1, block_s=0.01)
    return claimed.lease


async def test_everything_stored_is_read_back(jobs: JobStore) -> None:
    job = await add_job(jobs)
    assert job == await jobs.get(TENANT, job.id)
    assert (job.status, job.progress, job.attempts, job.error) == (VideoStatus.QUEUED, 0, 0, None)
    assert (job.request, job.reuse, job.model) == (CLIP, FACTS, "reprise-tiny")
    assert (job.seconds, job.size) == ("4", "720x1280")
    assert job.created_at == pytest.approx(time.time(), abs=5)
    lease = await claim_one(jobs)
    await jobs.mark_started(lease)
    facts = dataclasses.replace(
        FACTS,
        hit=False,
        reason="no similar request",
        seconds=StageSeconds(embed=0.1),
        warnings=(PromptWarning(code="prompt_truncated", encoder="clip", used=77, dropped=2),),
    )
    await jobs.finish(lease, facts)
    done = await jobs.get(TENANT, job.id)
    assert done is not None
    assert (done.reuse, done.status, done.progress, done.attempts) == (facts, VideoStatus.COMPLETED, 100, 1)
    assert done.started_at is not None
    assert done.completed_at is not None


async def test_progress_never_falls_and_100_means_completed(jobs: JobStore) -> None:
    job = await add_job(jobs)
    lease = await claim_one(jobs)
    await jobs.mark_started(lease)
    seen = []
    for progress in (10, 5, 60, 0, 100):
        assert await jobs.set_progress(lease, progress) is APPLIED
        read = await jobs.get(TENANT, job.id)
        assert read is not None
        seen.append(read.progress)
    assert seen == [10, 10, 60, 60, 99]


def writes(jobs: JobStore) -> dict[JobEvent, Callable[[JobLease], Awaitable[WriteOutcome]]]:
    return {
        JobEvent.START: jobs.mark_started,
        JobEvent.PROGRESS: lambda lease: jobs.set_progress(lease, 50),
        JobEvent.FINISH: lambda lease: jobs.finish(lease, FACTS),
        JobEvent.FAIL: lambda lease: jobs.fail(lease, FailureCode.INTERNAL_ERROR, "took too long"),
    }


PATHS: dict[VideoStatus, list[JobEvent]] = {
    VideoStatus.QUEUED: [],
    VideoStatus.IN_PROGRESS: [JobEvent.START],
    VideoStatus.COMPLETED: [JobEvent.START, JobEvent.FINISH],
    VideoStatus.FAILED: [JobEvent.FAIL],
}


@pytest.mark.parametrize("event", JobEvent)
@pytest.mark.parametrize("status", VideoStatus)
async def test_the_table_of_transitions_holds(jobs: JobStore, status: VideoStatus, event: JobEvent) -> None:
    job = await add_job(jobs)
    lease = await claim_one(jobs)
    for step in PATHS[status]:
        assert await writes(jobs)[step](lease) is APPLIED
    before = await jobs.get(TENANT, job.id)
    outcome = await writes(jobs)[event](lease)
    after = await jobs.get(TENANT, job.id)
    assert before is not None
    assert after is not None
    sources, target = TRANSITIONS[event]
    if status in sources:
        assert (outcome, after.status) == (APPLIED, target)
    else:
        assert (outcome, after) == (WriteOutcome.ILLEGAL, before)


async def test_of_many_finishes_one_counts(jobs: JobStore, jobs_url: str) -> None:
    await add_job(jobs)
    lease = await claim_one(jobs)
    await jobs.mark_started(lease)
    others = [JobStore.connect(jobs_url) for _ in range(4)]
    outcomes = await asyncio.gather(*(store.finish(lease, FACTS) for store in [jobs, *others] * 4))
    assert sorted(outcomes) == [APPLIED, *[WriteOutcome.ILLEGAL] * 19]
    for store in others:
        await store.close()


async def test_a_deleted_job_never_comes_back(jobs: JobStore, redis: Redis) -> None:
    job = await add_job(jobs, key="k")
    lease = await claim_one(jobs)
    await jobs.mark_started(lease)
    assert await jobs.is_cancelled(TENANT, [job.id, "video_unknown"]) == {"video_unknown"}
    assert await jobs.delete(TENANT, job.id)
    assert not await jobs.delete(TENANT, job.id)
    assert await jobs.is_cancelled(TENANT, [job.id]) == {job.id}
    assert await jobs.renew([lease]) == {job.id}
    for write in writes(jobs).values():
        assert await write(lease) is WriteOutcome.DELETED
    assert await jobs.get(TENANT, job.id) is None
    assert (await jobs.page(TENANT, after=None, limit=10, order="desc")).jobs == ()
    left = {key async for key in redis.scan_iter("reprise:*") if job.id in key or "idempotency" in key}
    assert left == {f"reprise:{{jobs}}:tombstone:{TENANT}:{job.id}"}
    assert await redis.ttl(left.pop()) > 0
    assert await redis.xlen("reprise:{jobs}:clips:queue:default") == 0
    assert await jobs.claim("router", count=9, block_s=0.01) == []


async def test_a_job_deleted_in_the_queue_is_never_run(jobs: JobStore) -> None:
    first, second = await add_job(jobs), await add_job(jobs)
    await jobs.delete(TENANT, first.id)
    assert (await claim_one(jobs)).video_id == second.id


async def test_a_dead_routers_job_goes_to_another_which_alone_may_write(hasty: JobStore) -> None:
    job = await add_job(hasty)
    dead = await claim_one(hasty, "dead")
    await hasty.mark_started(dead)
    await hasty.set_progress(dead, 70)
    heir = await claim_one(hasty, "heir")
    assert (heir.video_id, heir.attempt) == (job.id, 2)
    for write in writes(hasty).values():
        assert await write(dead) is STALE
    assert await hasty.renew([dead, heir]) == {job.id}
    await hasty.mark_started(heir)
    await hasty.set_progress(heir, 10)
    again = await hasty.get(TENANT, job.id)
    assert again is not None
    assert (again.status, again.progress) == (VideoStatus.IN_PROGRESS, 70)
    assert await hasty.finish(heir, FACTS) is APPLIED


async def test_a_job_whose_every_run_dies_fails_as_interrupted(hasty: JobStore) -> None:
    job = await add_job(hasty)
    for attempt in (1, 2):
        assert (await claim_one(hasty)).attempt == attempt
    assert await hasty.claim("router", count=1, block_s=0.01) == []
    failed = await hasty.get(TENANT, job.id)
    assert failed is not None
    assert failed.status is VideoStatus.FAILED
    assert failed.error is not None
    assert failed.error.code is FailureCode.INTERRUPTED
    assert await hasty.claim("router", count=1, block_s=0.01) == []


async def test_renewing_a_lease_sets_its_idle_time_back(jobs: JobStore, redis: Redis) -> None:
    async def idle_ms() -> int:
        (pending,) = await redis.xpending_range(
            "reprise:{jobs}:clips:queue:default", "routers", min="-", max="+", count=9
        )
        assert (pending["consumer"], pending["times_delivered"]) == ("busy", 1)
        return int(pending["time_since_delivered"])

    await add_job(jobs)
    lease = await claim_one(jobs, "busy")
    await asyncio.sleep(0.3)
    before = await idle_ms()
    assert before >= 300
    assert await jobs.renew([lease]) == frozenset()
    assert await idle_ms() < before
    assert await jobs.claim("other", count=1, block_s=0.001) == []


async def test_a_restart_keeps_everything(jobs: JobStore, jobs_url: str) -> None:
    made = [(await add_job(jobs)).id for _ in range(3)]
    done, running = await claim_one(jobs), await claim_one(jobs)
    await jobs.mark_started(done)
    await jobs.mark_started(running)
    await jobs.finish(done, FACTS)
    kept = [await jobs.get(TENANT, video_id) for video_id in made]
    await jobs.close()
    # One router for which the old lease has run out by now, then one for which nothing has.
    routers = [JobStore.connect(jobs_url, JobStoreConfig(lease_timeout_s=seconds)) for seconds in (0.0, 60.0)]
    assert [await routers[0].get(TENANT, video_id) for video_id in made] == kept
    taken = [await claim_one(router) for router in routers]
    assert [lease.video_id for lease in taken] == made[1:], "the run that was cut off, then the one that waited"
    assert [lease.attempt for lease in taken] == [2, 1]
    assert await routers[1].claim("router", count=9, block_s=0.001) == [], "each once"
    for router in routers:
        await router.close()


async def test_several_routers_share_the_queue_without_overlap(jobs: JobStore, jobs_url: str) -> None:
    made = [(await add_job(jobs)).id for _ in range(30)]
    routers = [JobStore.connect(jobs_url) for _ in range(3)]
    claims = await asyncio.gather(
        *(store.claim(f"router-{index % 3}", count=3, block_s=0.01) for index, store in enumerate(routers * 4))
    )
    taken = [claimed.job.id for batch in claims for claimed in batch]
    assert sorted(taken) == made
    for store in routers:
        await store.close()


async def test_tenants_do_not_see_each_other(jobs: JobStore) -> None:
    job = await add_job(jobs, tenant="a", key="k")
    other = await add_job(jobs, tenant="b", key="k", fingerprint="another")
    assert await jobs.get("b", job.id) is None
    assert not await jobs.delete("b", job.id)
    assert [found.id for found in (await jobs.page("b", after=None, limit=9, order="asc")).jobs] == [other.id]


async def test_an_idempotency_key_is_atomic_over_replicas(jobs: JobStore, jobs_url: str) -> None:
    replicas = [JobStore.connect(jobs_url) for _ in range(4)]
    made = await asyncio.gather(*(add_job(store, key="k") for store in replicas * 8))
    assert len({job.id for job in made}) == 1
    with pytest.raises(IdempotencyConflict):
        await add_job(jobs, key="k", fingerprint="another")
    assert len((await jobs.page(TENANT, after=None, limit=9, order="asc")).jobs) == 1
    for store in replicas:
        await store.close()


async def test_pages_stay_stable_under_inserts_and_deletes(jobs: JobStore) -> None:
    made = [(await add_job(jobs)).id for _ in range(9)]
    first = await jobs.page(TENANT, after=None, limit=3, order="desc")
    cursor = first.jobs[-1].id
    await add_job(jobs)
    await jobs.delete(TENANT, cursor)
    await jobs.delete(TENANT, made[4])
    rest, after = [], cursor
    while True:
        page = await jobs.page(TENANT, after=after, limit=2, order="desc")
        rest += [job.id for job in page.jobs]
        if not page.has_more:
            break
        after = page.jobs[-1].id
    assert [job.id for job in first.jobs] + rest == [video_id for video_id in made[::-1] if video_id != made[4]]


async def test_creation_order_is_strict_over_replicas(jobs: JobStore, jobs_url: str) -> None:
    replicas = [JobStore.connect(jobs_url) for _ in range(4)]
    made = await asyncio.gather(*(add_job(store) for store in replicas * 10))
    listed = [job.id for job in (await jobs.page(TENANT, after=None, limit=50, order="asc")).jobs]
    assert listed == sorted(job.id for job in made)
    assert len({video_id[:22] for video_id in listed}) == len(listed), "no two share a stamp"
    for store in replicas:
        await store.close()


async def test_a_server_that_lost_its_data_is_served_again(jobs: JobStore, redis: Redis) -> None:
    await redis.flushdb()
    assert await jobs.claim("router", count=1, block_s=0.01) == []
    job = await add_job(jobs)
    assert (await claim_one(jobs)).video_id == job.id


async def test_a_paused_server_is_given_up_on(jobs: JobStore, jobs_url: str, redis: Redis) -> None:
    job = await add_job(jobs)
    hurried = JobStore.connect(jobs_url, timeout_s=0.5)
    await hurried.ping()
    await redis.client_pause(60_000, all=False)
    try:
        with pytest.raises(RedisTimeoutError):
            await hurried.delete(TENANT, job.id)
    finally:
        await redis.client_unpause()
    assert await hurried.delete(TENANT, job.id), "and it goes on without a restart"
    await hurried.close()


async def test_a_failure_needs_a_reason(jobs: JobStore) -> None:
    await add_job(jobs)
    with pytest.raises(ValueError, match="needs a message"):
        await jobs.fail(await claim_one(jobs), FailureCode.INTERNAL_ERROR, " ")
