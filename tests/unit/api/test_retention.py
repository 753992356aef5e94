"""Record and files go together, late files of deleted jobs too, and nothing else goes."""

import asyncio
import pathlib
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from deployments.api.artifacts import ArtifactStore, Variant
from deployments.api.jobs import JobStore
from deployments.api.retention import keep_sweeping, sweep_expired
from deployments.api.video_job import VideoJob
from tests.unit.api.clips import FACTS, TENANT, add_job
from tests.unit.api.conftest import Forgotten

EXPIRY = "reprise:{jobs}:expiry"


@pytest.fixture
async def redis(jobs_url: str) -> AsyncIterator[Redis]:
    client = Redis.from_url(jobs_url, decode_responses=True)
    yield client
    await client.aclose()


async def finish_one(jobs: JobStore, artifacts: ArtifactStore) -> VideoJob:
    job = await add_job(jobs, key="k")
    (claimed,) = await jobs.claim("router", count=1, block_s=0.01)
    await jobs.mark_started(claimed.lease)
    artifacts.put_bytes(TENANT, job.id, Variant.VIDEO, b"film")
    await jobs.finish(claimed.lease, FACTS)
    return job


async def let_time_pass(redis: Redis, job: VideoJob) -> None:
    """Set every time at which something of the job goes to the past."""
    await redis.pexpireat(record_key(job), 1)
    await redis.zadd(EXPIRY, {f"{TENANT}/{job.id}": 1}, xx=True)


def record_key(job: VideoJob) -> str:
    return f"reprise:{{jobs}}:job:{TENANT}:{job.id}"


async def test_record_and_files_go_at_the_same_time(jobs: JobStore, artifacts: ArtifactStore, redis: Redis) -> None:
    job = await finish_one(jobs, artifacts)
    record_ms = await redis.pexpiretime(record_key(job))
    assert record_ms == await redis.zscore(EXPIRY, f"{TENANT}/{job.id}")
    done = await jobs.get(TENANT, job.id)
    assert done is not None
    assert done.completed_at is not None
    assert done.expires_at == record_ms / 1000
    assert done.expires_at - done.completed_at == pytest.approx(86_400, abs=1)


async def test_an_expired_job_leaves_nothing(jobs: JobStore, artifacts: ArtifactStore, redis: Redis) -> None:
    job = await finish_one(jobs, artifacts)
    assert await sweep_expired(jobs, artifacts) == 0
    assert artifacts.size(TENANT, job.id, Variant.VIDEO) == 4
    await let_time_pass(redis, job)
    assert await jobs.get(TENANT, job.id) is None
    assert (await jobs.page(TENANT, after=None, limit=9, order="asc")).jobs == ()
    assert (await add_job(jobs, key="k")).id != job.id, "an expired job does not answer for its key"
    assert await sweep_expired(jobs, artifacts) == 1
    assert artifacts.size(TENANT, job.id, Variant.VIDEO) is None
    assert await sweep_expired(jobs, artifacts) == 0
    assert [key async for key in redis.scan_iter("*") if job.id in key] == []


async def test_a_file_written_after_the_delete_goes_too(jobs: JobStore, artifacts: ArtifactStore, redis: Redis) -> None:
    job = await finish_one(jobs, artifacts)
    await jobs.delete(TENANT, job.id)
    artifacts.delete(TENANT, job.id)
    artifacts.put_bytes(TENANT, job.id, Variant.VIDEO, b"late")
    assert await sweep_expired(jobs, artifacts) == 0, "a late writer may still be at work"
    await let_time_pass(redis, job)
    assert await sweep_expired(jobs, artifacts) == 1
    assert artifacts.size(TENANT, job.id, Variant.VIDEO) is None


async def test_a_job_written_to_meanwhile_is_kept(jobs: JobStore, artifacts: ArtifactStore, redis: Redis) -> None:
    job = await finish_one(jobs, artifacts)
    await jobs.leftovers.forget(TENANT, job.id)
    assert await redis.zscore(EXPIRY, f"{TENANT}/{job.id}") is not None
    assert [found.id for found in (await jobs.page(TENANT, after=None, limit=9, order="asc")).jobs] == [job.id]


async def test_the_sweep_goes_on_after_a_fault(
    jobs: JobStore,
    artifacts: ArtifactStore,
    redis: Redis,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    job = await finish_one(jobs, artifacts)
    await let_time_pass(redis, job)
    faults = [OSError("disk is away")]
    whole = ArtifactStore.delete

    def delete(self: ArtifactStore, tenant: str, video_id: str) -> None:
        if faults:
            raise faults.pop()
        whole(self, tenant, video_id)

    monkeypatch.setattr(ArtifactStore, "delete", delete)
    sweep = asyncio.create_task(keep_sweeping(jobs, artifacts, Forgotten(), period_s=0.01))
    while artifacts.size(TENANT, job.id, Variant.VIDEO) is not None:
        await asyncio.sleep(0.01)
    sweep.cancel()
    assert "disk is away" in caplog.text


async def test_latents_that_could_not_be_forgotten_are_tried_again(
    jobs: JobStore, artifacts: ArtifactStore, caplog: pytest.LogCaptureFixture
) -> None:
    job, kept = await finish_one(jobs, artifacts), await add_job(jobs)
    await jobs.delete(TENANT, job.id)
    forgotten, faults = Forgotten(), [TimeoutError("the cache is away")]

    async def forget(tenant: str, video_id: str | None) -> None:
        if faults:
            raise faults.pop()
        await forgotten(tenant, video_id)

    sweep = asyncio.create_task(keep_sweeping(jobs, artifacts, forget, period_s=0.01))
    while not forgotten.videos:
        await asyncio.sleep(0.01)
    await asyncio.sleep(0.05)
    sweep.cancel()
    assert forgotten.videos == [(TENANT, job.id)], "once, and nothing of what was not deleted"
    assert await jobs.get(TENANT, kept.id) is not None
    assert "could not be removed yet" in caplog.text


def test_stores_of_two_folders_are_apart(tmp_path: pathlib.Path) -> None:
    one, two = ArtifactStore(str(tmp_path / "one")), ArtifactStore(f"file://{tmp_path}/two")
    video_id = "video_" + "0" * 32
    one.put_bytes(TENANT, video_id, Variant.VIDEO, b"1")
    assert two.size(TENANT, video_id, Variant.VIDEO) is None
