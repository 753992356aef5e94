"""A group of real workers on Ray: streams go on through a lost worker, and nothing is left when it ends."""

import asyncio
import dataclasses
import logging
import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray.util import list_named_actors, placement_group_table

from actors.live_messages import LiveFacts, LiveWorkerConfig, MediaFormat, StreamSpec
from actors.placement import GangUnplaceable, release_orphans
from actors.stream_group import GroupConfig, StreamUnknown
from actors.stream_session import SessionConfig
from actors.stream_workers import KIND, LiveConfig, StreamGroupActor, StreamWorkers, StreamWorkersConfig
from deployments.live_handle import RayLiveStream, answer_of
from reprise.wan.live_presets import tiny_live

pytestmark = [pytest.mark.serve, pytest.mark.timeout(300)]

PROMPT = "a small red circle moves left over a black background"
OTHER = "a small blue circle moves left over a black background"
CPUS = 3


@pytest.fixture(scope="module", autouse=True)
def local_ray() -> Iterator[None]:
    ray.init(
        address="local",
        num_cpus=CPUS,  # logical: the actors share whatever there is
        object_store_memory=128 << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.WARNING,
    )
    yield
    ray.shutdown()


def config_of(*, num_denoisers: int = 1, decodes_apart: bool = False) -> LiveConfig:
    preset = dataclasses.replace(tiny_live(), chunk_latents=4)
    return LiveConfig(
        group=GroupConfig(session=SessionConfig(vanished_s=20.0)),
        workers=StreamWorkersConfig(
            worker=LiveWorkerConfig(preset=preset),
            num_denoisers=num_denoisers,
            decodes_apart=decodes_apart,
            place_timeout_s=5.0,
        ),
    )


class Player:
    """Takes what one viewer is shown."""

    def __init__(self, stream: RayLiveStream) -> None:
        self.stream = stream
        self.messages: list[dict[str, Any]] = []
        self._viewer: str | None = None

    async def until(self, kind: str, **values: Any) -> dict[str, Any]:
        if self._viewer is None:
            self._viewer = await self.stream.attach(MediaFormat.MP4)
        async with asyncio.timeout(120):
            while True:
                found = [m for m in self.messages if m["type"] == kind and values.items() <= m.items()]
                if found:
                    return found[0]
                self.messages += [dict(output.message) for output in await self.stream.take(self._viewer, 1.0)]


async def started(config: LiveConfig) -> tuple[Any, RayLiveStream, LiveFacts]:
    group = ray.remote(StreamGroupActor).options(num_cpus=0, max_concurrency=100).remote(config)
    facts: LiveFacts = await group.start.remote()
    token = await group.open.remote(StreamSpec(prompt=PROMPT, seed=1))
    return group, RayLiveStream(group, "group", token), facts


def worker_pids() -> set[int]:
    """Find the workers of this Ray by what their processes are called."""
    pids = set()
    for entry in os.listdir("/proc"):
        if entry.isdecimal():
            try:
                with open(f"/proc/{entry}/cmdline", "rb") as file:
                    if file.read().startswith(b"ray::_Worker"):
                        pids.add(int(entry))
            except OSError:
                continue
    return pids


@pytest.mark.parametrize("decodes_apart", [False, True])
async def test_a_stream_survives_a_killed_worker_and_its_newest_prompt_too(decodes_apart: bool) -> None:
    before = worker_pids()
    group, stream, facts = await started(config_of(decodes_apart=decodes_apart))
    assert (facts.chunk_groups, facts.group_frames, facts.width) == (4, 4, 64)
    player = Player(stream)
    await player.until("commit", frame=8)
    for pid in worker_pids() - before:
        os.kill(pid, signal.SIGKILL)
    await stream.prompt(OTHER, sequence=1, event_id=None)
    await player.until("applied", sequence=1)
    frames = [message["frame"] for message in player.messages if message["type"] == "commit"]
    assert frames == sorted(set(frames))
    await stream.stop()
    await player.until("done")
    await group.close.remote()
    ray.kill(group)


async def test_a_group_that_is_gone_is_told_as_an_unknown_stream_and_holds_nothing() -> None:
    group, stream, _ = await started(config_of(num_denoisers=2))
    await Player(stream).until("commit")
    ray.kill(group)
    with pytest.raises(StreamUnknown):
        await stream.prompt(OTHER, sequence=1, event_id=None)
    deadline = time.monotonic() + 60
    while not release_orphans(KIND) and time.monotonic() < deadline:  # as the next group's start does
        await asyncio.sleep(0.2)
    while ray.available_resources().get("CPU", 0) < CPUS and time.monotonic() < deadline:
        await asyncio.sleep(0.2)
    assert ray.available_resources()["CPU"] == CPUS
    states = {entry["state"] for entry in placement_group_table().values()}
    assert states <= {"REMOVED"}
    assert release_orphans(KIND) == 0
    assert list_named_actors(all_namespaces=True) == []


async def test_a_group_without_room_says_so_and_reserves_nothing() -> None:
    workers = StreamWorkers(config_of(num_denoisers=9).workers)
    with pytest.raises(GangUnplaceable, match="9 actors"):
        await workers.start()
    assert ray.available_resources()["CPU"] == CPUS


async def test_an_error_of_the_group_arrives_as_what_it_is() -> None:
    group, stream, _ = await started(config_of())
    player = Player(stream)
    await player.until("commit")
    await stream.stop()
    await player.until("done")
    with pytest.raises(StreamUnknown, match="has ended"):
        await stream.attach(MediaFormat.MP4)
    with pytest.raises(StreamUnknown, match="has ended"):
        await answer_of(group.attach.remote("nonsense", MediaFormat.MP4))
    await group.close.remote()
    ray.kill(group)
