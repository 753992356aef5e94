"""API keys and tenants through the real app: who gets in, and that nobody reaches what is another's."""

import asyncio
import hashlib
import random
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest
from openai import AsyncOpenAI, AuthenticationError, BadRequestError, NotFoundError, RateLimitError
from redis.asyncio import Redis

from deployments.api.app import create_api
from deployments.api.artifacts import ArtifactStore
from deployments.api.jobs import JobStore
from deployments.api.services import ApiSettings
from deployments.api.tenants import TenantLimits, TenantStore
from deployments.api.webhook_store import WebhookStore
from reprise.chorus.plan import ReuseMode
from tests.unit.api.conftest import Forgotten, tiny_limits
from tests.unit.api.played_router import PlayedRouter

pytestmark = pytest.mark.filterwarnings("ignore:The Sora API:DeprecationWarning")

ADMIN = {"authorization": "Bearer the operator's own"}


@pytest.fixture
async def tenants(jobs_url: str) -> AsyncIterator[TenantStore]:
    store = TenantStore.connect(jobs_url)
    yield store
    await store.close()


@pytest.fixture
async def http(
    jobs: JobStore, artifacts: ArtifactStore, forgotten: Forgotten, tenants: TenantStore
) -> AsyncIterator[httpx2.AsyncClient]:
    settings = ApiSettings(
        limits=tiny_limits(),
        poll_after_ms=5,
        admin_key_sha256=hashlib.sha256(ADMIN["authorization"].removeprefix("Bearer ").encode()).hexdigest(),
    )
    webhooks = WebhookStore(tenants._redis)
    app = create_api(settings, jobs, artifacts, forget_source=forgotten, tenants=tenants, webhooks=webhooks)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://reprise.test") as client:
        yield client


async def admin(http: httpx2.AsyncClient, method: str, path: str, **options: Any) -> Any:
    answer = await http.request(method, f"/admin/tenants{path}", headers=ADMIN, **options)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def client_of(http: httpx2.AsyncClient, tenant: str) -> AsyncOpenAI:
    key = (await admin(http, "POST", f"/{tenant}/keys", json={"name": "laptop"}))["key"]
    return AsyncOpenAI(api_key=key, base_url="http://reprise.test/v1", http_client=http, max_retries=0)


async def test_a_key_gets_in_until_it_is_revoked(http: httpx2.AsyncClient) -> None:
    client = await client_of(http, "acme")
    video = await client.videos.create(prompt="a red ball")
    assert (await client.videos.retrieve(video.id)).id == video.id
    (key,) = (await admin(http, "GET", "/acme/keys"))["data"]
    assert (key["name"], key["key"]) == ("laptop", None), "its text is shown once"
    assert (await admin(http, "DELETE", f"/acme/keys/{key['id']}"))["data"] == []
    with pytest.raises(AuthenticationError, match="revoked"):
        await client.videos.retrieve(video.id)


@pytest.mark.parametrize(
    "header", [None, "Bearer", "Bearer  ", "Basic abc", "Bearer wrong", "Bearer sk-reprise-", "wrong"], ids=repr
)
@pytest.mark.parametrize("path", ["/v1/videos", "/v1/models", "/v1/videos/video_1/content", "/admin/tenants"])
async def test_without_a_key_nobody_gets_in(http: httpx2.AsyncClient, path: str, header: str | None) -> None:
    answer = await http.get(path, headers={} if header is None else {"authorization": header})
    assert (answer.status_code, answer.json()["error"]["code"]) == (401, "invalid_api_key")
    assert answer.headers["www-authenticate"] == "Bearer"
    assert "wrong" not in answer.text


async def test_a_tenants_key_is_no_admin_key_nor_the_other_way_round(http: httpx2.AsyncClient) -> None:
    client = await client_of(http, "acme")
    answer = await http.get("/admin/tenants", headers={"authorization": f"Bearer {client.api_key}"})
    assert answer.status_code == 401
    assert (await http.get("/v1/videos", headers=ADMIN)).status_code == 401


async def test_health_and_the_page_need_no_key(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/health")).status_code == 200
    assert (await http.get("/")).status_code == 200


async def test_keys_are_stored_as_hashes_alone(http: httpx2.AsyncClient, jobs_url: str) -> None:
    client = await client_of(http, "acme")
    redis = Redis.from_url(jobs_url, decode_responses=True)
    stored = await redis.hgetall("reprise:{jobs}:keys")
    await redis.aclose()
    assert list(stored) == [hashlib.sha256(client.api_key.encode()).hexdigest()]
    assert client.api_key not in str(stored)


async def test_a_cookie_reads_and_does_nothing_else(http: httpx2.AsyncClient) -> None:
    client = await client_of(http, "acme")
    video = await client.videos.create(prompt="a red ball")
    cookie = {"cookie": f"reprise_api_key={client.api_key}"}
    assert (await http.get(f"/v1/videos/{video.id}", headers=cookie)).status_code == 200
    assert (await http.post("/v1/videos", headers=cookie, json={"prompt": "b"})).status_code == 401
    assert (await http.delete(f"/v1/videos/{video.id}", headers=cookie)).status_code == 401


async def test_nobody_reaches_anothers_video(
    http: httpx2.AsyncClient, jobs: JobStore, artifacts: ArtifactStore
) -> None:
    owner, stranger = await client_of(http, "acme"), await client_of(http, "other")
    video = await owner.videos.create(prompt="a red ball")
    await PlayedRouter(jobs, artifacts).run_next()
    for attempt in (
        stranger.videos.retrieve(video.id),
        stranger.videos.download_content(video.id),
        stranger.videos.delete(video.id),
        stranger.videos.remix(video.id, prompt="a blue ball"),
    ):
        with pytest.raises(NotFoundError):
            await attempt
    with pytest.raises(BadRequestError, match="must be a completed video"):
        await stranger.videos.create(prompt="a", extra_body={"reuse": {"source": video.id}})
    assert (await stranger.videos.list()).data == []
    assert (await owner.videos.download_content(video.id)).read()


async def test_canaries_of_many_tenants_are_never_seen_by_another(
    http: httpx2.AsyncClient, jobs: JobStore, artifacts: ArtifactStore
) -> None:
    draw = random.Random(0)
    router = PlayedRouter(jobs, artifacts)
    clients = {name: await client_of(http, name) for name in ("a", "b", "c")}
    made: list[str] = []
    for number in range(300):
        tenant = draw.choice(sorted(clients))
        match draw.randrange(4):
            case 0:
                video = await clients[tenant].videos.create(prompt=f"canary-of-{tenant} number {number}")
                made.append(video.id)
            case 1:
                seen = (await clients[tenant].videos.list(limit=100)).data
                assert all(f"canary-of-{tenant} " in str(video.prompt) for video in seen)
            case 2 if made:
                try:
                    video = await clients[tenant].videos.retrieve(draw.choice(made))
                except NotFoundError:
                    continue
                assert f"canary-of-{tenant} " in str(video.prompt)
            case 3:
                for claimed in await jobs.claim("played", count=1, block_s=0.001):
                    await router.run(claimed)


async def test_limits_hold_from_the_next_request_on(http: httpx2.AsyncClient) -> None:
    client = await client_of(http, "acme")
    await admin(http, "PUT", "/acme/limits", json={"max_unfinished_jobs": 1})
    await client.videos.create(prompt="a")
    with pytest.raises(RateLimitError) as caught:
        await client.videos.create(prompt="a")
    assert caught.value.response.headers["retry-after"] == "5"
    await admin(http, "PUT", "/acme/limits", json={})
    await client.videos.create(prompt="a")


async def test_reuse_is_held_to_what_the_tenant_may(http: httpx2.AsyncClient, jobs: JobStore) -> None:
    client = await client_of(http, "acme")
    await admin(http, "PUT", "/acme/limits", json={"reuse_modes": ["exact", "off"], "weight": 2})
    with pytest.raises(BadRequestError, match="must be one of exact, off for you, got chorus"):
        await client.videos.create(prompt="a", extra_body={"reuse": "chorus"})
    await client.videos.create(prompt="a")
    await admin(http, "PUT", "/acme/limits", json={"min_tau": 0.9})
    await client.videos.create(prompt="a")
    await client.videos.create(prompt="a", extra_body={"reuse": {"mode": "chorus", "tau": 0.95}})
    taken = [claimed.job.request for claimed in await jobs.claim("router", count=9, block_s=0.01)]
    assert [(clip.reuse, clip.tau) for clip in taken] == [
        (ReuseMode.EXACT, None),
        (ReuseMode.CHORUS, 0.9),
        (ReuseMode.CHORUS, 0.95),
    ]


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"weight": 0}, "weight"),
        ({"weight": "much"}, "weight"),
        ({"max_unfinished_jobs": -1}, "max_unfinished_jobs"),
        ({"reuse_modes": []}, "reuse_modes"),
        ({"reuse_modes": ["all"]}, "0"),
        ({"min_tau": 0.1}, "min_tau"),
        ({"min_tau": 2}, "min_tau"),
        ({"unknown": 1}, "unknown"),
    ],
    ids=str,
)
async def test_wrong_limits_are_refused(http: httpx2.AsyncClient, body: dict[str, Any], param: str) -> None:
    answer = await http.put("/admin/tenants/acme/limits", headers=ADMIN, json=body)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)


@pytest.mark.parametrize("name", ["a:b", "a b", "ä", "x" * 65, "%2e%2e"])
async def test_a_tenants_name_reaches_into_no_path_or_key(http: httpx2.AsyncClient, name: str) -> None:
    answer = await http.post(f"/admin/tenants/{name}/keys", headers=ADMIN, json={})
    assert answer.status_code in (400, 404)


async def test_a_purge_leaves_nothing_of_a_tenant_and_all_of_the_others(
    http: httpx2.AsyncClient, jobs: JobStore, artifacts: ArtifactStore, forgotten: Forgotten
) -> None:
    clients = {name: await client_of(http, name) for name in ("acme", "other")}
    router = PlayedRouter(jobs, artifacts)
    made = {name: [(await client.videos.create(prompt="a")).id for _ in range(3)] for name, client in clients.items()}
    for _ in range(4):
        await router.run_next()
    assert await admin(http, "DELETE", "/acme/data") == {"tenant": "acme", "videos": 3}
    assert (await clients["acme"].videos.list()).data == []
    assert forgotten.videos == [("acme", None)]
    kept = [video.id for video in (await clients["other"].videos.list(order="asc")).data]
    assert kept == made["other"]
    assert [claimed.job.tenant for claimed in await jobs.claim("played", count=9, block_s=0.01)] == ["other"]


async def test_limits_are_read_back_as_they_were_set(tenants: TenantStore) -> None:
    limits = TenantLimits(weight=2.5, max_unfinished_jobs=0, reuse_modes=(ReuseMode.OFF,), min_tau=0.75, max_streams=3)
    assert await tenants.limits("acme") == TenantLimits()
    await tenants.set_limits("acme", limits)
    assert await tenants.limits("acme") == limits
    await tenants.set_limits("acme", TenantLimits())
    assert await tenants.limits("acme") == TenantLimits()


async def test_many_callers_are_told_apart_at_once(http: httpx2.AsyncClient) -> None:
    clients = [await client_of(http, f"t{number}") for number in range(5)]
    made = await asyncio.gather(*(client.videos.create(prompt=f"of {client.api_key[-4:]}") for client in clients * 4))
    for number, client in enumerate(clients):
        seen = (await client.videos.list()).data
        assert {video.id for video in seen} == {video.id for video in made[number::5]}


async def test_a_webhook_shows_its_secret_once(http: httpx2.AsyncClient) -> None:
    body = {"url": "https://example.com/hook"}
    made = await admin(http, "PUT", "/acme/webhook", json=body)
    again = await admin(http, "PUT", "/acme/webhook", json=body)
    assert made["secret"].startswith("whsec_")
    assert made["secret"] != again["secret"]
    assert await admin(http, "GET", "/acme/webhook") == {"url": "https://example.com/hook", "secret": None}
    await admin(http, "DELETE", "/acme/webhook")
    for method in ("GET", "DELETE"):
        assert (await http.request(method, "/admin/tenants/acme/webhook", headers=ADMIN)).status_code == 404
    answer = await http.put("/admin/tenants/acme/webhook", headers=ADMIN, json={"url": "file:///etc/passwd"})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "url")
