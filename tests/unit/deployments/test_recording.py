"""A stream that is kept becomes a video like any other: record, files and all."""

import dataclasses
import io
import pathlib

import av
import numpy as np
import pytest

from actors.engines.fragments import FragmentWriter
from actors.live_messages import LiveFacts, Recording, StreamSpec
from deployments.api.artifacts import ArtifactStore, Variant
from deployments.api.jobs import JobStore
from deployments.api.video_job import VideoStatus
from deployments.recording import keep_recording

FACTS = LiveFacts(
    model="reprise-tiny-live",
    width=32,
    height=32,
    fps=8,
    group_frames=4,
    chunk_groups=2,
    num_inference_steps=4,
    guidance_scale=1.0,
    first_s=0.1,
    whole_s=0.2,
)


def recording(groups: int = 3) -> Recording:
    writer = FragmentWriter(fps=8, canvas_width=32, canvas_height=32)
    frames = np.full((4, 32, 32, 3), 120, np.uint8)
    return Recording(
        stream_id="stream_1",
        spec=StreamSpec(prompt="a red circle", seed=9),
        facts=FACTS,
        num_frames=4 * groups,
        mp4=b"".join(writer.write(frames) for _ in range(groups)),
    )


async def test_what_was_shown_is_a_finished_video_with_every_file(jobs: JobStore, tmp_path: pathlib.Path) -> None:
    artifacts = ArtifactStore(str(tmp_path))
    video_id = await keep_recording(recording(), jobs, artifacts, size="720x1280", max_sequence_length=48)
    job = await jobs.get("default", video_id)
    assert job is not None
    assert (job.status, job.progress, job.model, job.size) == (
        VideoStatus.COMPLETED,
        100,
        "reprise-tiny-live",
        "720x1280",
    )
    assert (job.request.prompt, job.request.seed, job.request.num_frames) == ("a red circle", 9, 12)
    assert job.completed_at is not None
    assert job.expires_at > job.completed_at
    page = await jobs.page("default", after=None, limit=10, order="desc")
    assert [other.id for other in page.jobs] == [video_id]
    assert await jobs.claim("router", count=1, block_s=0.01) == [], "nobody is to make it again"
    for variant in (Variant.VIDEO, Variant.THUMBNAIL, Variant.SPRITESHEET):
        file = artifacts.open("default", video_id, variant)
        assert file is not None
        data = file.read()
        if variant is Variant.VIDEO:
            with av.open(io.BytesIO(data)) as container:
                assert sum(1 for _ in container.decode(video=0)) == 12
    assert await jobs.delete("default", video_id)
    assert await jobs.get("default", video_id) is None


async def test_a_recording_whose_files_cannot_be_stored_leaves_no_record(jobs: JobStore) -> None:
    class Full(ArtifactStore):
        def put_bytes(self, *_: object) -> None:
            raise OSError("no space left")

    with pytest.raises(OSError, match="no space"):
        await keep_recording(recording(), jobs, Full("/nowhere"), size="720x1280", max_sequence_length=48)
    assert (await jobs.page("default", after=None, limit=10, order="desc")).jobs == ()


async def test_a_recording_cut_short_is_refused(jobs: JobStore, tmp_path: pathlib.Path) -> None:
    broken = dataclasses.replace(recording(), num_frames=99)
    with pytest.raises(ValueError, match="expected 99 frames"):
        await keep_recording(broken, jobs, ArtifactStore(str(tmp_path)), size="720x1280", max_sequence_length=48)
