"""Videos longer than a clip at the HTTP edge: what is asked, what is refused, and the stream."""

import dataclasses
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from deployments.api.app import create_api
from deployments.api.artifacts import ArtifactStore
from deployments.api.errors import InvalidRequest
from deployments.api.jobs import JobStore
from deployments.api.limits import LongLimits
from deployments.api.schema import VideoCreate, to_clip_request
from deployments.api.services import ApiSettings
from deployments.api.video_job import Lane
from deployments.long_job import LongJobRunner
from reprise.chorus.plan import ReuseMode
from tests.fakes.long_parts import FakeLongRenderer
from tests.unit.api.conftest import Forgotten, tiny_limits

LIMITS = dataclasses.replace(
    tiny_limits(), long=LongLimits(max_num_frames=1281, num_inference_steps=4, guidance_scale=1.0)
)


@pytest.fixture
async def long_http(
    jobs: JobStore, artifacts: ArtifactStore, forgotten: Forgotten
) -> AsyncIterator[httpx2.AsyncClient]:
    app = create_api(ApiSettings(limits=LIMITS, poll_after_ms=5), jobs, artifacts, forget_source=forgotten)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://reprise.test") as client:
        yield client


@pytest.mark.parametrize(
    ("body", "frames", "is_long"),
    [
        ({"num_frames": 17}, 17, False),
        ({"num_frames": 21}, 21, True),
        ({"seconds": 80}, 321, True),
        ({"num_frames": 1281, "num_inference_steps": 4, "guidance_scale": 1.0}, 1281, True),
    ],
)
def test_more_frames_than_a_clip_make_a_long_video(body: dict[str, Any], frames: int, is_long: bool) -> None:
    clip = to_clip_request(VideoCreate(prompt="a", **body), LIMITS)
    expected = (4, 1.0) if is_long else (50, 4.0)
    assert (clip.num_frames, clip.is_long) == (frames, is_long)
    assert (clip.num_inference_steps, clip.guidance_scale) == expected


@pytest.mark.parametrize(
    ("body", "param", "text"),
    [
        ({"num_frames": 22}, "num_frames", "nearest valid: 21 or 25"),
        ({"num_frames": 1285}, "num_frames", "nearest valid: 1281"),
        ({"seconds": 321}, "seconds", "from 1 to 320 in steps of 1"),
        ({"num_frames": 81, "num_inference_steps": 50}, "num_inference_steps", "must be 4"),
        ({"num_frames": 81, "guidance_scale": 4.0}, "guidance_scale", "must be 1"),
        ({"num_frames": 81, "reuse": {"mode": ReuseMode.CHORUS, "tau": 0.9}}, "reuse", "long video"),
    ],
)
def test_what_a_long_video_cannot_be_is_refused_by_name(body: dict[str, Any], param: str, text: str) -> None:
    with pytest.raises(InvalidRequest, match=text) as refused:
        to_clip_request(VideoCreate(prompt="a", **body), LIMITS)
    assert refused.value.param == param


async def make_long(http: httpx2.AsyncClient, jobs: JobStore, artifacts: ArtifactStore) -> str:
    video_id: str = (await http.post("/v1/videos", json={"prompt": "a", "num_frames": 33})).json()["id"]
    (claimed,) = await jobs.claim("r", count=1, block_s=1.0, lane=Lane.LONG)
    await LongJobRunner(jobs=jobs, artifacts=artifacts, renderer=FakeLongRenderer()).run(claimed)
    return video_id


async def test_a_long_video_is_streamed_and_tells_its_schedule(
    long_http: httpx2.AsyncClient, jobs: JobStore, artifacts: ArtifactStore
) -> None:
    video_id = await make_long(long_http, jobs, artifacts)
    stream = await long_http.get(f"/v1/videos/{video_id}/stream")
    assert (stream.status_code, stream.headers["content-type"]) == (200, "video/mp4")
    assert stream.content == b"piece 0;piece 1;piece 2;"
    video = (await long_http.get(f"/v1/videos/{video_id}")).json()
    assert video["reuse"]["schedule"]["forwards"] == {"planner": 4, "extraction": 1, "renderer": 12}
    assert video["reuse"]["effective"]["num_inference_steps"] == 4


async def test_a_clip_has_no_stream_and_a_long_video_no_latents_to_go_on_from(
    long_http: httpx2.AsyncClient, jobs: JobStore, artifacts: ArtifactStore
) -> None:
    clip = (await long_http.post("/v1/videos", json={"prompt": "a"})).json()["id"]
    refused = await long_http.get(f"/v1/videos/{clip}/stream")
    assert (refused.status_code, refused.json()["error"]["code"]) == (400, "not_streamed")
    video_id = await make_long(long_http, jobs, artifacts)
    remix = await long_http.post(f"/v1/videos/{video_id}/remix", json={"prompt": "b"})
    assert (remix.status_code, remix.json()["error"]["param"]) == (400, "video_id")
    body = {"prompt": "b", "reuse": {"source": video_id}}
    source = await long_http.post("/v1/videos", json=body)
    assert (source.status_code, source.json()["error"]["param"]) == (400, "reuse.source")


async def test_an_unknown_stream_is_not_found(long_http: httpx2.AsyncClient) -> None:
    unknown = "video_0123456789012345" + "0123456789abcdef"
    assert (await long_http.get(f"/v1/videos/{unknown}/stream")).status_code == 404
