"""What the official client does not show: ranges, HEAD, idempotency, request ids, faults behind the API."""

import asyncio
import dataclasses
import pathlib
from typing import Any

import httpx2
import pytest

from deployments.api.app import create_api
from deployments.api.artifacts import ArtifactStore, Variant
from deployments.api.jobs import JobStore, JobStoreConfig
from deployments.api.services import ApiSettings, Readiness
from tests.unit.api.clips import TENANT
from tests.unit.api.conftest import Forgotten, tiny_limits
from tests.unit.api.played_router import PlayedRouter

UNKNOWN = "video_0123456789012345" + "0123456789abcdef"


def error_of(answer: httpx2.Response) -> dict[str, Any]:
    assert answer.headers["content-type"] == "application/json"
    assert set(answer.json()) == {"error"}
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    return error


@pytest.fixture
async def finished(http: httpx2.AsyncClient, router: PlayedRouter, artifacts: ArtifactStore) -> tuple[str, bytes]:
    """Id of a finished video and the bytes of its file."""
    await http.post("/v1/videos", json={"prompt": "a", "num_frames": 5})
    job = await router.run_next()
    data = bytes(range(256)) * 2000
    artifacts.put_bytes("default", job.id, Variant.VIDEO, data)
    return job.id, data


async def test_whole_file(http: httpx2.AsyncClient, finished: tuple[str, bytes]) -> None:
    video_id, data = finished
    answer = await http.get(f"/v1/videos/{video_id}/content")
    assert (answer.status_code, answer.content) == (200, data)
    assert answer.headers["content-type"] == "video/mp4"
    assert answer.headers["content-length"] == str(len(data))
    assert answer.headers["accept-ranges"] == "bytes"
    head = await http.head(f"/v1/videos/{video_id}/content")
    assert (head.status_code, head.content) == (200, b"")
    same = ("content-type", "content-length", "etag", "accept-ranges")
    assert [head.headers[name] for name in same] == [answer.headers[name] for name in same]


@pytest.mark.parametrize(
    ("wanted", "start", "stop"),
    [
        ("bytes=0-", 0, 512_000),
        ("bytes=0-0", 0, 1),
        ("bytes=100-199", 100, 200),
        ("bytes=511999-", 511_999, 512_000),
        ("bytes=500000-900000", 500_000, 512_000),
        ("bytes=-5", 511_995, 512_000),
        ("bytes=-9999999", 0, 512_000),
        ("bytes=250000-300000", 250_000, 300_001),
    ],
)
async def test_a_range(
    http: httpx2.AsyncClient, finished: tuple[str, bytes], wanted: str, start: int, stop: int
) -> None:
    video_id, data = finished
    answer = await http.get(f"/v1/videos/{video_id}/content", headers={"range": wanted})
    assert (answer.status_code, answer.content) == (206, data[start:stop])
    assert answer.headers["content-range"] == f"bytes {start}-{stop - 1}/{len(data)}"
    assert answer.headers["content-length"] == str(stop - start)


@pytest.mark.parametrize("wanted", ["bytes=512000-", "bytes=600000-700000", "bytes=-0"])
async def test_a_range_outside_the_file(http: httpx2.AsyncClient, finished: tuple[str, bytes], wanted: str) -> None:
    answer = await http.get(f"/v1/videos/{finished[0]}/content", headers={"range": wanted})
    assert (answer.status_code, answer.headers["content-range"]) == (416, "bytes */512000")
    assert error_of(answer)["param"] == "Range"


@pytest.mark.parametrize("wanted", ["bytes=5-2", "bytes=0-1,5-9", "items=0-1", "bytes=a-b", "bytes=-", ""])
async def test_what_is_no_single_range_gets_the_whole_file(
    http: httpx2.AsyncClient, finished: tuple[str, bytes], wanted: str
) -> None:
    answer = await http.get(f"/v1/videos/{finished[0]}/content", headers={"range": wanted})
    assert (answer.status_code, len(answer.content)) == (200, 512_000)


async def test_a_range_of_another_version_gets_the_whole_file(
    http: httpx2.AsyncClient, finished: tuple[str, bytes]
) -> None:
    url = f"/v1/videos/{finished[0]}/content"
    tag = (await http.head(url)).headers["etag"]
    for held, status in ((tag, 206), ('"other"', 200)):
        answer = await http.get(url, headers={"range": "bytes=0-9", "if-range": held})
        assert answer.status_code == status


async def test_content_errors(http: httpx2.AsyncClient, router: PlayedRouter, artifacts: ArtifactStore) -> None:
    video_id = (await http.post("/v1/videos", json={"prompt": "a", "num_frames": 5})).json()["id"]
    url = f"/v1/videos/{video_id}/content"
    for variant in ("video", "thumbnail", "spritesheet"):
        answer = await http.get(url, params={"variant": variant})
        assert (answer.status_code, error_of(answer)["code"]) == (409, "video_not_ready")
    answer = await http.get(url, params={"variant": "gif"})
    assert (answer.status_code, error_of(answer)["param"]) == (400, "variant")
    assert (await http.head(url)).status_code == 409
    await router.run_next()
    artifacts.delete("default", video_id)
    answer = await http.get(url)
    assert (answer.status_code, error_of(answer)["code"]) == (404, "content_gone")


@pytest.mark.parametrize("video_id", [UNKNOWN, "video_1", "..%2f..%2fetc", "%00", "x" * 3000, "video_" + "\u0663" * 32])
async def test_unknown_ids_are_404(http: httpx2.AsyncClient, video_id: str) -> None:
    answers = [
        await http.get(f"/v1/videos/{video_id}"),
        await http.get(f"/v1/videos/{video_id}/content"),
        await http.delete(f"/v1/videos/{video_id}"),
        await http.post(f"/v1/videos/{video_id}/remix", json={"prompt": "a"}),
    ]
    for answer in answers:
        assert answer.status_code == 404
        assert error_of(answer)["type"] == "invalid_request_error"


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [("GET", "/v1", 404), ("GET", "/v2/videos", 404), ("PUT", "/v1/videos", 405), ("PATCH", "/v1/videos/x", 405)],
)
async def test_paths_and_methods_that_are_not_there(
    http: httpx2.AsyncClient, method: str, path: str, status: int
) -> None:
    answer = await http.request(method, path)
    assert answer.status_code == status
    error_of(answer)


async def test_one_key_and_body_make_one_job(http: httpx2.AsyncClient) -> None:
    async def create(key: str, **fields: object) -> httpx2.Response:
        body = {"prompt": "a", **fields}
        return await http.post("/v1/videos", json=body, headers={"idempotency-key": key})

    first = await create("k")
    assert (await create("k")).json()["id"] == first.json()["id"]
    assert (await create("k", seconds=None)).json()["id"] == first.json()["id"], "null is the same as left out"
    assert (await create("other")).json()["id"] != first.json()["id"]
    conflict = await create("k", seconds=2)
    assert conflict.status_code == 409
    assert error_of(conflict)["param"] == "Idempotency-Key"
    assert error_of(conflict)["code"] == "idempotency_conflict"
    assert conflict.headers["x-should-retry"] == "false"
    await http.delete(f"/v1/videos/{first.json()['id']}")
    assert (await create("k", seconds=2)).status_code == 200, "the key goes with its job"
    assert (await create("k" * 256)).status_code == 400
    assert (await create("")).status_code == 400


async def test_many_requests_at_once_with_one_key_make_one_job(http: httpx2.AsyncClient, jobs: JobStore) -> None:
    answers = await asyncio.gather(
        *(http.post("/v1/videos", json={"prompt": "a"}, headers={"idempotency-key": "k"}) for _ in range(20))
    )
    assert len({answer.json()["id"] for answer in answers}) == 1
    claimed = await jobs.claim("played", count=20, block_s=0.01)
    assert len(claimed) == 1


async def test_remix_is_idempotent_too(http: httpx2.AsyncClient, finished: tuple[str, bytes]) -> None:
    url = f"/v1/videos/{finished[0]}/remix"
    key = {"idempotency-key": "k"}
    one = await http.post(url, json={"prompt": "b"}, headers=key)
    assert (await http.post(url, json={"prompt": "b"}, headers=key)).json()["id"] == one.json()["id"]
    assert (await http.post(url, json={"prompt": "c"}, headers=key)).status_code == 409
    assert (await http.post("/v1/videos", json={"prompt": "b"}, headers=key)).status_code == 409


async def test_a_video_of_another_model_is_not_remixed(
    jobs: JobStore, artifacts: ArtifactStore, finished: tuple[str, bytes]
) -> None:
    limits = dataclasses.replace(tiny_limits(), model="wan2.1-t2v-1.3b")
    app = create_api(ApiSettings(limits=limits), jobs, artifacts, forget_source=Forgotten())
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://x") as http:
        answer = await http.post(f"/v1/videos/{finished[0]}/remix", json={"prompt": "b"})
    assert (answer.status_code, error_of(answer)["code"]) == (400, "model_mismatch")


async def test_a_full_queue_is_said_at_once(jobs_url: str, artifacts: ArtifactStore) -> None:
    jobs = JobStore.connect(jobs_url, JobStoreConfig(max_unfinished_jobs=2))
    app = create_api(ApiSettings(limits=tiny_limits()), jobs, artifacts, forget_source=Forgotten())
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://x") as http:
        made = [await http.post("/v1/videos", json={"prompt": "a"}) for _ in range(3)]
        assert [answer.status_code for answer in made] == [200, 200, 503]
        assert error_of(made[2])["code"] == "queue_full"
        assert made[2].headers["retry-after"] == "5"
        await http.delete(f"/v1/videos/{made[0].json()['id']}")
        assert (await http.post("/v1/videos", json={"prompt": "a"})).status_code == 200
    await jobs.close()


async def test_a_cache_that_fails_does_not_keep_a_video_from_being_deleted(
    jobs: JobStore, artifacts: ArtifactStore, finished: tuple[str, bytes], caplog: pytest.LogCaptureFixture
) -> None:
    async def fail(_tenant: str, _video_id: str | None) -> None:
        raise TimeoutError

    app = create_api(ApiSettings(limits=tiny_limits()), jobs, artifacts, forget_source=fail)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://x") as http:
        assert (await http.delete(f"/v1/videos/{finished[0]}")).status_code == 200
        assert (await http.get(f"/v1/videos/{finished[0]}")).status_code == 404
    assert f"{finished[0]} is deleted" in caplog.text
    assert await jobs.leftovers.to_purge(limit=9) == [(TENANT, finished[0])], "the sweep tries again"


async def test_health_tells_alive_from_ready(jobs: JobStore, artifacts: ArtifactStore) -> None:
    state = Readiness(ready=False, reason="the denoiser is loading")

    async def check() -> Readiness:
        return state

    app = create_api(
        ApiSettings(limits=tiny_limits()),
        jobs,
        artifacts,
        forget_source=Forgotten(),
        check_readiness=check,
    )
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://x") as http:
        answer = await http.get("/health")
        assert answer.status_code == 503
        assert answer.json() == {"alive": True, "ready": False, "reason": "the denoiser is loading"}
        state = Readiness(ready=True)
        assert (await http.get("/health")).json() == {"alive": True, "ready": True, "reason": None}
        assert (await http.head("/health")).status_code == 200


async def test_a_store_that_is_gone_is_503(tmp_path: pathlib.Path, artifacts: ArtifactStore) -> None:
    jobs = JobStore.connect(f"unix://{tmp_path}/nothing.sock")
    app = create_api(ApiSettings(limits=tiny_limits()), jobs, artifacts, forget_source=Forgotten())
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app=app), base_url="http://x") as http:
        answers = [
            await http.post("/v1/videos", json={"prompt": "a"}),
            await http.get("/v1/videos"),
            await http.get(f"/v1/videos/{UNKNOWN}"),
        ]
        for answer in answers:
            assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
            assert error_of(answer)["code"] == "store_unavailable"
        health = await http.get("/health")
        assert (health.status_code, health.json()["alive"], health.json()["ready"]) == (503, True, False)


async def test_a_bug_shows_nothing_of_itself(
    http: httpx2.AsyncClient, jobs: JobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def broken(*_: object) -> None:
        raise RuntimeError("secret detail")

    monkeypatch.setattr(jobs, "get", broken)
    answer = await http.get(f"/v1/videos/{UNKNOWN}")
    assert answer.status_code == 500
    assert error_of(answer)["type"] == "server_error"
    assert "secret" not in answer.text
    assert answer.headers["x-request-id"] in error_of(answer)["message"]


async def test_every_answer_has_its_own_request_id(http: httpx2.AsyncClient) -> None:
    ids = {(await http.get(path)).headers["x-request-id"] for path in ("/health", "/v1/models", "/v1/videos", "/no")}
    assert len(ids) == 4


async def test_the_api_describes_its_bodies(http: httpx2.AsyncClient) -> None:
    paths = (await http.get("/openapi.json")).json()["paths"]
    content = paths["/v1/videos"]["post"]["requestBody"]["content"]
    assert set(content) == {"application/json", "multipart/form-data"}
    assert "negative_prompt" in content["application/json"]["schema"]["properties"]


async def test_the_lifespan_starts_and_ends_cleanly(jobs_url: str, artifacts: ArtifactStore) -> None:
    jobs = JobStore.connect(jobs_url)
    app = create_api(ApiSettings(limits=tiny_limits()), jobs, artifacts, forget_source=Forgotten())
    async with app.router.lifespan_context(app):
        assert await jobs.claim("played", count=1, block_s=0.01) == []


@pytest.mark.parametrize(
    ("header", "kept"),
    [
        ("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", True),
        ("00-0af7651916cd43dd8448eb211c80319c", False),
        ("nonsense\u00e9", False),
    ],
)
async def test_the_callers_trace_is_kept_and_nonsense_is_no_fault(
    http: httpx2.AsyncClient, jobs: JobStore, header: str, kept: bool
) -> None:
    answer = await http.post("/v1/videos", json={"prompt": "a"}, headers=[(b"traceparent", header.encode())])
    assert answer.status_code == 200
    job = await jobs.get(TENANT, answer.json()["id"])
    assert job is not None
    assert job.traceparent == (header if kept else None)
