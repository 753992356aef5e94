"""Record and files go together, late files of deleted jobs too, and nothing else goes."""

import asyncio
import pathlib
from collections.abc import AsyncIterator

import pytest
from redis.asyncio import Redis

from deployments.api.artifacts import ArtifactStore, Variant
from deployments.api.jobs import JobStore, JobStoreConfig
from deployments.api.retention import keep_sweeping, sweep_expired
from deployments.api.video_job import VideoJob
from tests.unit.api.clips import FACTS, TENANT, add_job


@pytest.fixture
async def brief(jobs_url: str) -> AsyncIterator[JobStore]:
    """A store that keeps things for a moment only."""
    store = JobStore.connect(jobs_url, JobStoreConfig(retention_s=0.3, tombstone_s=0.2))
    await store.start()
    yield store
    await store.close()


async def finish_one(store: JobStore, artifacts: ArtifactStore) -> VideoJob:
    job = await add_job(store, key="k")
    (claimed,) = await store.claim("router", count=1, block_s=0.01)
    await store.mark_started(claimed.lease)
    artifacts.put_bytes(TENANT, job.id, Variant.VIDEO, b"film")
    await store.finish(claimed.lease, FACTS)
    return job


async def test_record_and_files_expire_together(brief: JobStore, artifacts: ArtifactStore, jobs_url: str) -> None:
    job = await finish_one(brief, artifacts)
    assert await sweep_expired(brief, artifacts) == 0
    assert artifacts.size(TENANT, job.id, Variant.VIDEO) == 4
    await asyncio.sleep(0.35)
    assert await brief.get(TENANT, job.id) is None
    assert (await brief.page(TENANT, after=None, limit=9, order="asc")).jobs == ()
    assert (await add_job(brief, key="k")).id != job.id, "an expired job does not answer for its key"
    assert await sweep_expired(brief, artifacts) == 1
    assert artifacts.size(TENANT, job.id, Variant.VIDEO) is None
    assert await sweep_expired(brief, artifacts) == 0
    redis = Redis.from_url(jobs_url, decode_responses=True)
    assert [key async for key in redis.scan_iter("*") if job.id in key] == []
    await redis.aclose()


async def test_a_file_written_after_the_delete_goes_too(brief: JobStore, artifacts: ArtifactStore) -> None:
    job = await finish_one(brief, artifacts)
    await brief.delete(TENANT, job.id)
    artifacts.delete(TENANT, job.id)
    artifacts.put_bytes(TENANT, job.id, Variant.VIDEO, b"late")
    assert await sweep_expired(brief, artifacts) == 0, "a late writer may still be at work"
    await asyncio.sleep(0.25)
    assert await sweep_expired(brief, artifacts) == 1
    assert artifacts.size(TENANT, job.id, Variant.VIDEO) is None


async def test_the_sweep_goes_on_after_a_fault(
    brief: JobStore, artifacts: ArtifactStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = await finish_one(brief, artifacts)
    await asyncio.sleep(0.35)
    faults = [OSError("disk is away")]
    whole = ArtifactStore.delete

    def delete(self: ArtifactStore, tenant: str, video_id: str) -> None:
        if faults:
            raise faults.pop()
        whole(self, tenant, video_id)

    monkeypatch.setattr(ArtifactStore, "delete", delete)
    sweep = asyncio.create_task(keep_sweeping(brief, artifacts, period_s=0.01))
    while artifacts.size(TENANT, job.id, Variant.VIDEO) is not None:
        await asyncio.sleep(0.01)
    sweep.cancel()
    assert "disk is away" in caplog.text


def test_stores_of_two_folders_are_apart(tmp_path: pathlib.Path) -> None:
    one, two = ArtifactStore(str(tmp_path / "one")), ArtifactStore(f"file://{tmp_path}/two")
    video_id = "video_" + "0" * 32
    one.put_bytes(TENANT, video_id, Variant.VIDEO, b"1")
    assert two.size(TENANT, video_id, Variant.VIDEO) is None
