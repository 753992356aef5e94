"""Webhooks to a real HTTP server, checked by the official client: who is told, again when, and never twice at once."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator

import pytest
import uvicorn
from fastapi import FastAPI, Request, Response
from openai import InvalidWebhookSignatureError, OpenAI

from deployments.api.jobs import JobStore
from deployments.api.webhook_store import LEASE_S, Webhook, WebhookStore
from deployments.serve import free_port
from deployments.webhooks import BACKOFF_S, WebhookReporter, WebhookSender, event_of, sign
from tests.unit.api.clips import TENANT
from tests.unit.deployments.test_guard import Clock, Notes
from tests.unit.deployments.test_herald import end


class Receiver:
    """A tenant's server: keeps what comes and answers as it is told."""

    def __init__(self) -> None:
        self.url = ""
        self.answers: list[int] = []
        self.heard: list[tuple[bytes, dict[str, str]]] = []

    async def hear(self, request: Request) -> Response:
        self.heard.append((await request.body(), dict(request.headers)))
        return Response(status_code=self.answers.pop(0) if self.answers else 200, headers={"location": "/elsewhere"})


@pytest.fixture
async def receiver() -> AsyncIterator[Receiver]:
    receiver, app, port = Receiver(), FastAPI(), free_port()
    app.post("/hook")(receiver.hear)
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    receiver.url = f"http://127.0.0.1:{port}/hook"
    yield receiver
    server.should_exit = True
    await task


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.now = 1_800_000_000.0
    return clock


@pytest.fixture
async def hooks(jobs_url: str) -> AsyncIterator[WebhookStore]:
    store = WebhookStore.connect(jobs_url)
    yield store
    await store.close()


@pytest.fixture
def notes() -> Notes:
    return Notes()


@pytest.fixture
async def sender(hooks: WebhookStore, jobs: JobStore, notes: Notes, clock: Clock) -> AsyncIterator[WebhookSender]:
    sender = WebhookSender(hooks, jobs, notes, clock=clock)
    yield sender
    await sender.close()


def is_genuine(body: bytes, headers: dict[str, str], hook: Webhook) -> bool:
    client = OpenAI(api_key="unused", webhook_secret=hook.secret)
    try:
        client.webhooks.verify_signature(body, headers, tolerance=10**9)
    except InvalidWebhookSignatureError:
        return False
    return True


async def test_the_official_client_takes_what_is_sent(
    jobs: JobStore, hooks: WebhookStore, sender: WebhookSender, receiver: Receiver, clock: Clock, notes: Notes
) -> None:
    hook = await hooks.set(TENANT, receiver.url)
    done, failed = await end(jobs), await end(jobs, "failed")
    for job in (done, failed):
        await WebhookReporter(hooks, clock).report(job)
    assert await sender.send_due() == 2
    assert await sender.send_due() == 0
    told = {}
    for body, headers in receiver.heard:
        assert is_genuine(body, headers, hook)
        assert not is_genuine(body + b" ", headers, hook)
        event = json.loads(body)
        told[event["data"]["id"]] = event["type"]
        assert headers["webhook-id"] == event["id"]
    assert told == {done.id: "video.completed", failed.id: "video.failed"}
    assert notes.of("reprise_webhooks_total") == [(("delivered",), 1)] * 2


async def test_a_tenant_without_a_webhook_is_told_nothing(
    jobs: JobStore, hooks: WebhookStore, sender: WebhookSender, receiver: Receiver, clock: Clock
) -> None:
    await hooks.set("other", receiver.url)
    await WebhookReporter(hooks, clock).report(await end(jobs))
    assert await sender.send_due() == 0
    assert receiver.heard == []


@pytest.mark.parametrize("status", [500, 404, 302])
async def test_what_is_not_taken_is_repeated_later_and_later(
    jobs: JobStore,
    hooks: WebhookStore,
    sender: WebhookSender,
    receiver: Receiver,
    clock: Clock,
    notes: Notes,
    status: int,
) -> None:
    await hooks.set(TENANT, receiver.url)
    await WebhookReporter(hooks, clock).report(await end(jobs))
    receiver.answers = [status] * 99
    for wait in BACKOFF_S:
        assert await sender.send_due() == 1
        clock.now += wait - 1
        assert await sender.send_due() == 0
        clock.now += 1
    assert await sender.send_due() == 1
    clock.now += 1e9
    assert await sender.send_due() == 0, "given up"
    assert len({headers["webhook-id"] for _, headers in receiver.heard}) == 1
    assert [tags for tags, _ in notes.of("reprise_webhooks_total")] == [("retried",)] * len(BACKOFF_S) + [("given_up",)]


async def test_a_server_that_is_away_is_tried_again(
    jobs: JobStore, hooks: WebhookStore, sender: WebhookSender, receiver: Receiver, clock: Clock
) -> None:
    await hooks.set(TENANT, f"http://127.0.0.1:{free_port()}/hook")
    await WebhookReporter(hooks, clock).report(await end(jobs))
    assert await sender.send_due() == 1
    await hooks.set(TENANT, receiver.url)
    clock.now += BACKOFF_S[0]
    assert await sender.send_due() == 1
    assert len(receiver.heard) == 1


async def test_gone_means_no_more(
    jobs: JobStore, hooks: WebhookStore, sender: WebhookSender, receiver: Receiver, clock: Clock
) -> None:
    await hooks.set(TENANT, receiver.url)
    await WebhookReporter(hooks, clock).report(await end(jobs))
    receiver.answers = [410]
    await sender.send_due()
    clock.now += 1e9
    assert await sender.send_due() == 0


async def test_two_senders_share_and_a_dead_one_is_stood_in_for(
    jobs: JobStore, hooks: WebhookStore, jobs_url: str, clock: Clock
) -> None:
    await hooks.set(TENANT, "http://unused")
    made = [await end(jobs) for _ in range(6)]
    for job in made:
        await WebhookReporter(hooks, clock).report(job)
    other = WebhookStore.connect(jobs_url)
    senders = ((hooks, clock.now), (other, clock.now + 5), (hooks, clock.now + 9))
    begun = await asyncio.gather(*(store.begin_due(now) for store, now in senders))
    assert sorted(video_id for some in begun for _, video_id, _ in some) == sorted(job.id for job in made)
    assert await other.begin_due(clock.now + LEASE_S - 1) == []
    assert len(await other.begin_due(clock.now + LEASE_S)) == 6, "nobody dropped them"
    await other.close()


async def test_the_loop_sends_by_itself(jobs: JobStore, hooks: WebhookStore, receiver: Receiver) -> None:
    await hooks.set(TENANT, receiver.url)
    sender = WebhookSender(hooks, jobs, Notes())
    running = asyncio.create_task(sender.run(period_s=0.01))
    await WebhookReporter(hooks).report(await end(jobs))
    while not receiver.heard:
        await asyncio.sleep(0.01)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    await sender.close()


async def test_a_signature_depends_on_all_it_covers(jobs: JobStore) -> None:
    job = await end(jobs)
    secret, other = "whsec_c2VjcmV0", "whsec_b3RoZXI="
    signed = {
        sign(*arguments)["webhook-signature"]
        for arguments in (
            (secret, "evt_1", 1, event_of(job)),
            (other, "evt_1", 1, event_of(job)),
            (secret, "evt_2", 1, event_of(job)),
            (secret, "evt_1", 2, event_of(job)),
            (secret, "evt_1", 1, event_of(job) + b" "),
        )
    }
    assert len(signed) == 5
