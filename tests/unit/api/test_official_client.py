"""The official client, strict validation on, must work unchanged on everything the resource offers."""

import asyncio
import io
import pathlib
from collections.abc import Awaitable, Callable
from typing import Any, Literal, get_args

import av
import httpx2
import openai
import pytest
from openai import AsyncOpenAI
from openai.types.video_size import VideoSize
from PIL import Image

from deployments.api.artifacts import ArtifactStore
from deployments.api.facts import FailureCode
from deployments.api.jobs import JobStore
from tests.unit.api.conftest import SIZES, Forgotten
from tests.unit.api.played_router import PlayedRouter

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")

JSON = {"Content-Type": "application/json"}


def facts_of(video: object) -> dict[str, Any]:
    """Give our own key of a video object of the official client."""
    facts: dict[str, Any] = getattr(video, "reuse")  # noqa: B009 - an extra field, unknown to the client's types
    return facts


def test_our_sizes_are_those_of_the_strict_client() -> None:
    assert set(get_args(VideoSize)) == set(SIZES)


@pytest.mark.parametrize("headers", [{}, JSON], ids=["multipart", "json"])
async def test_a_clip_from_create_to_download(
    client: AsyncOpenAI, router: PlayedRouter, headers: dict[str, str]
) -> None:
    queued = await client.videos.create(
        prompt="a red ball rises",
        seconds="4",
        size="1280x720",
        model="reprise-tiny",
        extra_body={"seed": 7, "num_inference_steps": 20, "guidance_scale": 3.5, "fps": 4, "reuse": "off"},
        extra_headers=headers,
    )
    assert (queued.object, queued.status, queued.progress) == ("video", "queued", 0)
    assert (queued.seconds, queued.size, queued.model) == ("4", "1280x720", "reprise-tiny")
    assert (queued.prompt, queued.completed_at, queued.expires_at) == ("a red ball rises", None, None)
    assert facts_of(queued)["hit"] is None
    assert facts_of(queued)["effective"] == {
        "num_inference_steps": 20,
        "guidance_scale": 3.5,
        "width": 64,
        "height": 64,
        "num_frames": 17,
        "fps": 4,
        "seed": 7,
        "max_sequence_length": 48,
    }
    claimed = await router.claim()
    assert claimed.job.request.reuse == "off"
    assert (await client.videos.retrieve(queued.id)).status == "queued", "claimed is not started"
    await router.jobs.mark_started(claimed.lease)
    started = await client.videos.retrieve(queued.id)
    assert (started.status, started.progress) == ("in_progress", 0)
    await router.run(claimed)
    done = await client.videos.retrieve(queued.id)
    assert (done.status, done.progress, done.error) == ("completed", 100, None)
    assert done.completed_at is not None
    assert done.expires_at == pytest.approx(done.completed_at + 24 * 3600, abs=1)
    assert facts_of(done)["hit"] is True
    assert facts_of(done)["warnings"] == [
        {"code": "prompt_truncated", "encoder": "umt5", "used": 48, "dropped": 3},
    ]
    content = await client.videos.download_content(queued.id)
    with av.open(io.BytesIO(content.read())) as container:
        assert sum(1 for _ in container.decode(video=0)) == 17


async def test_json_and_multipart_give_the_same_job(client: AsyncOpenAI) -> None:
    body = {"seed": 3, "num_frames": 9, "negative_prompt": "blur"}
    one = await client.videos.create(prompt="a", extra_body=body)
    two = await client.videos.create(prompt="a", extra_body=body, extra_headers=JSON)
    three = await client.videos.create(prompt="a", extra_body={**body, "seconds": 2}, extra_headers=JSON)
    varying = {"id", "created_at"}
    assert one.model_dump(exclude=varying) == two.model_dump(exclude=varying) == three.model_dump(exclude=varying)
    assert one.seconds == "2"


@pytest.mark.parametrize(
    ("variant", "media_type", "picture_format"),
    [("thumbnail", "image/webp", "WEBP"), ("spritesheet", "image/jpeg", "JPEG")],
)
async def test_pictures_of_a_clip(
    client: AsyncOpenAI,
    router: PlayedRouter,
    variant: Literal["thumbnail", "spritesheet"],
    media_type: str,
    picture_format: str,
) -> None:
    await client.videos.create(prompt="a")
    job = await router.run_next()
    content = await client.videos.download_content(job.id, variant=variant)
    assert content.response.headers["content-type"] == media_type
    with Image.open(io.BytesIO(content.read())) as picture:
        assert picture.format == picture_format


async def test_create_and_poll_follows_the_poll_header(client: AsyncOpenAI, router: PlayedRouter) -> None:
    async def work() -> None:
        await router.run_next()

    worker = asyncio.create_task(work())
    video = await client.videos.create_and_poll(prompt="a green star moves left", seconds="4")
    await worker
    assert video.status == "completed"
    raw = await client.videos.with_raw_response.retrieve(video.id)
    assert "openai-poll-after-ms" not in raw.headers
    raw = await client.videos.with_raw_response.create(prompt="a")
    assert raw.headers["openai-poll-after-ms"] == "5"


async def test_a_failed_job_is_an_answer_with_a_reason(
    client: AsyncOpenAI, router: PlayedRouter, jobs: JobStore
) -> None:
    video = await client.videos.create(prompt="a")
    claimed = await router.claim()
    await jobs.fail(claimed.lease, FailureCode.OUT_OF_MEMORY, "the device ran out of memory; ask for fewer frames")
    failed = await client.videos.poll(video.id)
    assert failed.status == "failed"
    assert failed.error is not None
    assert failed.error.code == "out_of_memory"
    assert "fewer frames" in failed.error.message
    with pytest.raises(openai.ConflictError) as raised:
        await client.videos.download_content(video.id)
    assert raised.value.code == "video_failed"


async def test_remix_forces_its_source(client: AsyncOpenAI, router: PlayedRouter) -> None:
    source = await client.videos.create(prompt="a red ball", size="1024x1792", extra_body={"seed": 11, "reuse": "off"})
    with pytest.raises(openai.ConflictError) as raised:
        await client.videos.remix(source.id, prompt="a blue ball")
    assert raised.value.code == "video_not_ready"
    await router.run_next()
    remix = await client.videos.remix(source.id, prompt="a blue ball")
    assert (remix.remixed_from_video_id, remix.prompt, remix.size) == (source.id, "a blue ball", "1024x1792")
    request = (await router.claim()).job.request
    assert (request.remix_of, request.reuse) == (source.id, "chorus")
    assert facts_of(remix)["effective"]["seed"] == request.seed != 11, "a remix draws a seed of its own"


async def test_list_pages_through_everything_once(client: AsyncOpenAI) -> None:
    made = [(await client.videos.create(prompt=f"clip {index}")).id for index in range(7)]
    newest_first = [video.id async for video in client.videos.list(limit=3)]
    assert newest_first == made[::-1]
    assert [video.id async for video in client.videos.list(limit=2, order="asc")] == made
    page = await client.videos.list(limit=7)
    assert (page.has_more, page.last_id) == (False, made[0])
    page = await client.videos.list(after=made[0])
    assert (page.data, page.has_more, page.last_id) == ([], False, None)


async def test_delete_removes_everything(
    client: AsyncOpenAI, router: PlayedRouter, artifacts: ArtifactStore, forgotten: Forgotten
) -> None:
    await client.videos.create(prompt="a")
    job = await router.run_next()
    deleted = await client.videos.delete(job.id)
    assert (deleted.id, deleted.deleted, deleted.object) == (job.id, True, "video.deleted")
    assert forgotten.videos == [("default", job.id)], "what was made must not be reused either"
    assert [video async for video in client.videos.list()] == []
    gone: list[Callable[[], Awaitable[object]]] = [
        lambda: client.videos.retrieve(job.id),
        lambda: client.videos.download_content(job.id),
        lambda: client.videos.delete(job.id),
        lambda: client.videos.remix(job.id, prompt="b"),
    ]
    for call in gone:
        with pytest.raises(openai.NotFoundError):
            await call()
    assert not [path for path in pathlib.Path(artifacts.url).rglob("*") if path.is_file()]


async def test_content_before_completion_is_a_conflict_told_once(app: Any) -> None:
    sent: list[str] = []

    async def count(request: httpx2.Request) -> None:
        sent.append(f"{request.method} {request.url.path}")

    http = httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), event_hooks={"request": [count]})
    client = AsyncOpenAI(api_key="unused", base_url="http://reprise.test/v1", http_client=http)
    video = await client.videos.create(prompt="a")
    with pytest.raises(openai.ConflictError) as conflict:
        await client.videos.download_content(video.id)
    assert (conflict.value.code, conflict.value.param) == ("video_not_ready", "video_id")
    with pytest.raises(openai.InternalServerError) as unbuilt:
        await client.videos.edit(prompt="b", video=b"123")
    assert (unbuilt.value.status_code, unbuilt.value.code) == (501, "not_implemented")
    assert len(sent) == 3, "the client must not repeat what cannot help"
    await client.close()


async def test_extensions_and_characters_say_that_they_are_not_built(client: AsyncOpenAI) -> None:
    for call in (
        client.videos.extend(prompt="b", seconds="4", video=b"123"),
        client.videos.create_character(name="x", video=b"123"),
        client.videos.get_character("x"),
    ):
        with pytest.raises(openai.InternalServerError, match="not implemented"):
            await call


async def test_models(client: AsyncOpenAI) -> None:
    assert [model.id async for model in client.models.list()] == ["reprise-tiny"]


async def test_input_reference_is_refused_by_name(client: AsyncOpenAI) -> None:
    # The client itself refuses a mapping for `input_reference`; in `extra_body` it becomes a bracket key.
    as_file = client.videos.create(prompt="a", input_reference=("x.png", b"\x89PNG\xff", "image/png"))
    as_key = client.videos.create(prompt="a", extra_body={"input_reference": {"image_url": "http://127.0.0.1/x.png"}})
    for call in (as_file, as_key):
        with pytest.raises(openai.BadRequestError, match="not supported") as raised:
            await call
        assert raised.value.param == "input_reference"
        assert raised.value.type == "invalid_request_error"


async def test_parts_of_reuse_reach_the_job_in_json_and_in_forms(client: AsyncOpenAI, router: PlayedRouter) -> None:
    for headers in ({}, {"content-type": "multipart/form-data"}):
        await client.videos.create(
            prompt="a red ball rises",
            extra_body={"reuse": {"mode": "nirvana", "tau": 0.8}},
            extra_headers=headers,
        )
        request = (await router.claim()).job.request
        assert (request.reuse, request.tau) == ("nirvana", 0.8)
