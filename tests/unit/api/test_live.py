"""The WebSocket of live streams over a real socket: what viewers may say, and that nothing they do leaves a stream."""

import asyncio
import contextlib
import dataclasses
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import pytest
import uvicorn
from fastapi import FastAPI
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed

from actors.stream_group import GroupConfig, StreamGroup
from actors.stream_session import SessionConfig
from deployments.api.app import create_api
from deployments.api.artifacts import ArtifactStore
from deployments.api.jobs import JobStore
from deployments.api.services import ApiSettings
from deployments.api.tenants import TenantLimits, TenantStore
from deployments.serve import free_port
from tests.fakes.local_streams import LocalStreams
from tests.fakes.stream_workers import FACTS, FakeWorkers
from tests.unit.api.conftest import Forgotten, tiny_limits

FAST = dataclasses.replace(FACTS, fps=80, first_s=0.02, whole_s=0.03)
"""A group plays 50 ms, a chunk 200 ms."""


@dataclasses.dataclass(frozen=True, slots=True)
class Edge:
    url: str
    group: StreamGroup


@pytest.fixture
async def edge(jobs: JobStore, artifacts: ArtifactStore, forgotten: Forgotten) -> AsyncIterator[Edge]:
    session = SessionConfig(vanished_s=0.5, queued_groups=8)
    group = StreamGroup(GroupConfig(session=session, max_load=1.0, max_streams=4), FakeWorkers(facts=FAST))
    await group.start()
    settings = ApiSettings(limits=tiny_limits())
    app = create_api(settings, jobs, artifacts, forget_source=forgotten, live_streams=LocalStreams(group))
    async with serving(app) as url:
        yield Edge(url, group)
        await group.close()


@contextlib.asynccontextmanager
async def serving(app: FastAPI) -> AsyncIterator[str]:
    """Give the address of the app's streams on a real socket."""
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="off"))
    task = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    yield f"ws://127.0.0.1:{port}/v1/streams"
    server.should_exit = True
    await task


async def say(socket: ClientConnection, **message: Any) -> None:
    await socket.send(json.dumps(message))


async def hear(socket: ClientConnection, kind: str, **values: Any) -> dict[str, Any]:
    """Read on until a message of a kind comes, with these values."""
    async with asyncio.timeout(60):
        while True:
            raw = await socket.recv()
            if isinstance(raw, str):
                message: dict[str, Any] = json.loads(raw)
                if message["type"] == kind and values.items() <= message.items():
                    return message


async def fault(socket: ClientConnection) -> dict[str, Any]:
    return dict((await hear(socket, "error"))["error"])


async def test_a_stream_from_start_to_stop(edge: Edge) -> None:
    async with connect(edge.url) as socket:
        await say(socket, type="start", prompt="a", event_id="first")
        started = await hear(socket, "started")
        assert (started["fps"], started["group_frames"], started["realtime"]) == (80, 4, True)
        assert (await hear(socket, "applied"))["event_id"] == "first"
        commit = await hear(socket, "commit")
        assert isinstance(await socket.recv(), bytes), "the pictures follow their message"
        assert commit["frames"] == 4
        await say(socket, type="prompt", prompt="b", sequence=1)
        assert (await hear(socket, "acknowledged", sequence=1))["frame"] > 0
        applied = await hear(socket, "applied", sequence=1)
        assert applied["latency_ms"] > 0
        await say(socket, type="ping", id="p")
        assert (await hear(socket, "pong"))["id"] == "p"
        await say(socket, type="stop")
        assert (await hear(socket, "done"))["reason"] == "stopped"
        assert [message async for message in socket] == []
        assert socket.close_code == 1000


@pytest.mark.parametrize(
    ("raw", "code", "param"),
    [
        ("not json", "invalid_message", None),
        ("[" * 20_000, "invalid_message", None),
        ("[]", "unknown_message", "type"),
        ('{"type": "explode"}', "unknown_message", "type"),
        ('{"type": ["start"]}', "unknown_message", "type"),
        (b"\x00\xff\x10 junk", "invalid_message", None),
        ('{"type": "prompt", "prompt": "b"}', "invalid_message", "sequence"),
        ('{"type": "prompt", "prompt": "b", "sequence": 1.5}', "invalid_message", "sequence"),
        ('{"type": "prompt", "prompt": "b", "sequence": -1}', "invalid_message", "sequence"),
        ('{"type": "prompt", "prompt": "b", "sequence": 99999999999999999999}', "invalid_message", "sequence"),
        ('{"type": "prompt", "prompt": 7, "sequence": 1}', "invalid_message", "prompt"),
        ('{"type": "prompt", "prompt": "b", "sequence": 1, "colour": 2}', "invalid_message", "colour"),
        ('{"type": "prompt", "prompt": "   ", "sequence": 1}', None, "prompt"),
        (json.dumps({"type": "prompt", "prompt": "b" * 1_000, "sequence": 1}), None, "prompt"),
        (json.dumps({"type": "prompt", "prompt": "b" * 1_000_000, "sequence": 1}), "message_too_large", None),
        ('{"type": "prompt", "prompt": "b", "sequence": 0}', "stale_sequence", "sequence"),
        ('{"type": "start", "prompt": "b"}', "already_started", "type"),
    ],
)
async def test_a_wrong_message_is_answered_and_the_stream_goes_on(
    edge: Edge, raw: str | bytes, code: str | None, param: str | None
) -> None:
    async with connect(edge.url) as socket:
        await say(socket, type="start", prompt="a")
        await hear(socket, "commit")
        await socket.send(raw)
        error = await fault(socket)
        assert (error["code"], error["param"], error["type"]) == (code, param, "invalid_request_error")
        assert len(error["message"]) < 500
        await hear(socket, "commit")
        await say(socket, type="prompt", prompt="c", sequence=5)
        await hear(socket, "applied", sequence=5)


@pytest.mark.parametrize(
    ("first", "code"),
    [
        ('{"type": "ping"}', "not_started"),
        ('{"type": "start"}', None),
        ('{"type": "start", "prompt": "a", "token": "b"}', None),
        ('{"type": "start", "token": "nobody.knows"}', "stream_not_found"),
        ('{"type": "start", "prompt": "a", "format": "gif"}', "invalid_message"),
        (b"junk", "invalid_message"),
    ],
)
async def test_a_wrong_start_ends_the_connection_with_a_reason(
    edge: Edge, first: str | bytes, code: str | None
) -> None:
    async with connect(edge.url) as socket:
        await socket.send(first)
        assert (await fault(socket))["code"] == code
        with pytest.raises(ConnectionClosed):
            await socket.recv()
        assert socket.close_code == 1008
    assert edge.group.stats()["streams"] == 0


async def test_a_full_server_says_try_later(edge: Edge) -> None:
    async with contextlib.AsyncExitStack() as stack:
        for _ in range(4):
            socket = await stack.enter_async_context(connect(edge.url))
            await say(socket, type="start", prompt="a")
            await hear(socket, "started")
        late = await stack.enter_async_context(connect(edge.url))
        await say(late, type="start", prompt="a")
        assert (await fault(late))["code"] == "streams_full"
        with pytest.raises(ConnectionClosed):
            await late.recv()
        assert late.close_code == 1013


async def test_a_viewer_comes_back_to_its_stream_and_the_newest_prompt_wins(edge: Edge) -> None:
    async with connect(edge.url) as socket:
        await say(socket, type="start", prompt="a")
        token = (await hear(socket, "started"))["token"]
        await hear(socket, "commit")
        await say(socket, type="prompt", prompt="b", sequence=1)
        await hear(socket, "acknowledged", sequence=1)
    async with connect(edge.url) as socket:
        await say(socket, type="start", token=token)
        assert (await hear(socket, "started"))["frame"] > 0
        await hear(socket, "commit", sequence=1)
        await say(socket, type="prompt", prompt="c", sequence=2)
        await hear(socket, "applied", sequence=2)
        await say(socket, type="stop")
        await hear(socket, "done")


async def test_connections_that_drop_at_any_instant_leave_nothing_behind(edge: Edge) -> None:
    """A hundred of them; a stream may be refused while the ones before it wait to be missed."""
    rng = random.Random(0)

    async def drop() -> None:
        with contextlib.suppress(ConnectionClosed, TimeoutError):
            async with connect(edge.url) as socket:
                if rng.random() < 0.9:
                    await say(socket, type="start", prompt="a", format=rng.choice(["mp4", "jpeg"]))
                if rng.random() < 0.5:
                    await say(socket, type="prompt", prompt="b", sequence=1)
                if rng.random() < 0.5:
                    async with asyncio.timeout(rng.random() * 0.3):
                        while True:
                            await socket.recv()
                if rng.random() < 0.5:
                    socket.transport.abort()

    for _ in range(20):
        await asyncio.gather(*(drop() for _ in range(5)))
    async with asyncio.timeout(60):
        while edge.group.stats()["streams"]:
            await asyncio.sleep(0.05)
    assert edge.group.stats() == {"streams": 0, "viewers": 0, "denoisers": 1}
    assert not edge.group._tasks
    async with connect(edge.url) as socket:
        await say(socket, type="start", prompt="a")
        await hear(socket, "commit")


async def test_a_viewer_that_never_reads_is_dropped_group_by_group(edge: Edge) -> None:
    """Its own queue is bounded; what a socket holds by itself is little, since the pictures are small."""
    async with connect(edge.url, max_queue=1) as socket:
        await say(socket, type="start", prompt="a")
        await asyncio.sleep(1.0)
        (session,) = edge.group._sessions.values()
        (viewer,) = session.viewers.values()
        assert sum(bool(output.parts) for output in viewer._outputs) <= 8
        await say(socket, type="stop")


async def test_a_server_without_a_live_model_says_so(
    jobs: JobStore, artifacts: ArtifactStore, forgotten: Forgotten
) -> None:
    app = create_api(ApiSettings(limits=tiny_limits()), jobs, artifacts, forget_source=forgotten)
    port = free_port()
    server = uvicorn.Server(uvicorn.Config(app, port=port, log_level="error", lifespan="off"))
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    async with connect(f"ws://127.0.0.1:{port}/v1/streams") as socket:
        assert (await fault(socket))["code"] == "streams_unavailable"
    server.should_exit = True
    await serving


async def test_a_stream_is_its_tenants_alone(
    jobs: JobStore, jobs_url: str, artifacts: ArtifactStore, forgotten: Forgotten
) -> None:
    tenants = TenantStore.connect(jobs_url)
    keys = {name: (await tenants.create_key(name))[1] for name in ("acme", "other")}
    await tenants.set_limits("acme", TenantLimits(max_streams=1))
    group = StreamGroup(GroupConfig(session=SessionConfig(vanished_s=0.5), max_load=1.0), FakeWorkers(facts=FAST))
    await group.start()
    settings = ApiSettings(limits=tiny_limits())
    app = create_api(
        settings, jobs, artifacts, forget_source=forgotten, live_streams=LocalStreams(group), tenants=tenants
    )
    acme = {"authorization": f"Bearer {keys['acme']}"}
    async with serving(app) as url, connect(url, additional_headers=acme) as mine:
        await say(mine, type="start", prompt="a red ball")
        token = (await hear(mine, "started"))["token"]
        async with connect(url) as nobody:
            assert (await hear(nobody, "error"))["error"]["code"] == "invalid_api_key"
        for other in ({"authorization": f"Bearer {keys['other']}"}, {"cookie": f"reprise_api_key={keys['other']}"}):
            async with connect(url, additional_headers=other) as theirs:
                await say(theirs, type="start", token=token)
                assert (await hear(theirs, "error"))["error"]["code"] == "stream_not_found"
        async with connect(url, additional_headers=acme) as second:
            await say(second, type="start", prompt="a blue ball")
            assert (await hear(second, "error"))["error"]["code"] == "streams_full"
    await group.close()
    await tenants.close()
