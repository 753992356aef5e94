"""What a restart and a killed worker leave behind: nothing is lost, nothing is made twice."""

import asyncio
import os
import signal

import psutil
import pytest

from deployments.api.jobs import JobStore
from deployments.api.video_job import VideoJob
from tests.serve.conftest import TENANT, Server, Studio, facts_of
from tests.serve.test_clips import ENDLESS, PROMPT, SIMILAR

pytestmark = [pytest.mark.serve, pytest.mark.timeout(600)]


def read_job(server: Server, video_id: str) -> VideoJob:
    async def read() -> VideoJob | None:
        store = JobStore.connect(server.store_url)
        try:
            return await store.get(TENANT, video_id)
        finally:
            await store.close()

    job = asyncio.run(read())
    assert job is not None
    return job


def denoiser_pids() -> list[int]:
    """Find the denoiser's process among our own descendants: Ray names a worker by what it runs."""
    workers = psutil.Process().children(recursive=True)
    return [worker.pid for worker in workers if "Denoiser" in " ".join(worker.cmdline())]


def test_a_restart_keeps_videos_jobs_and_what_can_be_reused(server: Server, studio: Studio) -> None:
    source = studio.source(PROMPT, seed=1)
    content = studio.client.videos.download_content(source.id).read()
    running, waiting = (studio.create(PROMPT, **ENDLESS | {"num_inference_steps": 30}) for _ in range(2))
    studio.wait(running.id, lambda video: video.progress > 0)
    server.stop()
    server.start()
    assert studio.client.videos.retrieve(running.id).status == "completed"
    assert read_job(server, running.id).attempts == 1, "the stop waited for it"
    assert studio.completed(waiting.id).progress == 100
    assert studio.client.videos.retrieve(source.id) == source
    assert studio.client.videos.download_content(source.id).read() == content
    facts = facts_of(studio.make(SIMILAR, seed=2))
    assert (facts["hit"], facts["source_id"]) == (True, source.id)


def test_a_job_whose_worker_is_killed_is_made_once_by_another(server: Server, studio: Studio) -> None:
    """Takes as long as a lease does to run out."""
    job = studio.create(PROMPT, **ENDLESS)
    studio.wait(job.id, lambda video: video.progress > 0)
    (pid,) = denoiser_pids()
    os.kill(pid, signal.SIGKILL)
    video = studio.completed(job.id)
    assert video.progress == 100
    assert read_job(server, job.id).attempts == 2
    assert server.files(job.id) == ["spritesheet.jpg", "thumbnail.webp", "video.mp4"]
    assert denoiser_pids() != [pid]
    facts = facts_of(studio.make(PROMPT, **ENDLESS | {"num_inference_steps": 8}))
    assert facts["reason"] == "empty_cache", "other steps, another partition"
