"""A stream on a clock: what viewers get, in virtual time."""

import asyncio
import dataclasses
import itertools
import pathlib
from typing import Any

import pytest

from actors.live_messages import MediaFormat, Output, StreamSpec
from actors.stream_group import DeadlineQueue, GroupConfig, StreamGroup, StreamsFull, StreamUnknown
from actors.stream_session import SessionConfig, StaleSequence
from reprise.speculative.events import Crowd, Fallback, Underrun, Update
from reprise.speculative.log import replay
from tests.fakes.stream_workers import FACTS, FakeWorkers
from tests.fakes.virtual_time import run_virtually

SPEC = StreamSpec(prompt="a", seed=1)


class Watcher:
    """A viewer that takes everything at once, and when it came."""

    def __init__(self, group: StreamGroup, token: str, media: MediaFormat = MediaFormat.MP4) -> None:
        self.outputs: list[tuple[float, Output]] = []
        self._group, self._token = group, token
        self._viewer = group.attach(token, media)
        self.task = asyncio.create_task(self._watch())

    async def _watch(self) -> None:
        while not any(output.message["type"] == "done" for _, output in self.outputs):
            taken = await self._group.take(self._token, self._viewer, 1.0)
            self.outputs += [(asyncio.get_running_loop().time(), output) for output in taken]

    def of(self, kind: str) -> list[dict[str, Any]]:
        return [dict(output.message) for _, output in self.outputs if output.message["type"] == kind]

    def times_of(self, kind: str) -> list[float]:
        return [at for at, output in self.outputs if output.message["type"] == kind]

    @property
    def shown(self) -> list[bytes]:
        return [output.parts[0] for _, output in self.outputs if output.parts]


async def begin(
    workers: FakeWorkers, *, spec: StreamSpec = SPEC, config: SessionConfig | None = None, max_load: float = 0.7
) -> tuple[StreamGroup, str]:
    group = StreamGroup(GroupConfig(session=config or SessionConfig(), max_load=max_load), workers)
    await group.start()
    return group, group.open(spec)


def gaps_of(watcher: Watcher) -> list[float]:
    return [after - before for before, after in itertools.pairwise(watcher.times_of("commit"))]


def test_a_change_is_acknowledged_applied_and_replaces_only_what_was_not_shown() -> None:
    async def play() -> None:
        workers = FakeWorkers()
        group, token = await begin(workers)
        watcher = Watcher(group, token)
        await asyncio.sleep(10.0)
        group.prompt(token, "b", sequence=3, event_id="mine")
        await asyncio.sleep(5.0)
        group.stop(token)
        await watcher.task
        frames = [message["frame"] for message in watcher.of("commit")]
        assert frames == list(range(0, 4 * len(frames), 4))
        assert len(frames) == pytest.approx(2 * 15, abs=2)
        gaps = gaps_of(watcher)
        assert gaps == pytest.approx([0.5] * len(gaps))
        (acknowledged,) = watcher.of("acknowledged")
        applied = watcher.of("applied")[1]
        (replaced,) = watcher.of("replaced")
        assert (acknowledged["sequence"], acknowledged["event_id"]) == (3, "mine")
        assert acknowledged["frame"] == applied["frame"] == replaced["from"]
        assert applied["latency_ms"] < 1000 * (FACTS.whole_s * 1.1 + 2 * FACTS.group_s)
        letters = [shown.removeprefix(b"header ").decode().split(":")[0] for shown in watcher.shown]
        changed = applied["frame"] // 4
        assert letters == ["a"] * changed + ["b"] * (len(letters) - changed)
        assert watcher.shown[0].startswith(b"header ")
        assert not any(shown.startswith(b"header ") for shown in watcher.shown[1:])
        assert watcher.of("underrun") == []
        assert watcher.of("done") == [
            {"type": "done", "reason": "stopped", "frames": 4 * len(frames), "video_id": None}
        ]

    run_virtually(play())


def test_every_stream_leaves_a_log_that_decides_the_same_again(tmp_path: pathlib.Path) -> None:
    async def play() -> None:
        workers = FakeWorkers()
        group, token = await begin(workers, config=SessionConfig(log_folder=str(tmp_path / "logs")))
        watcher = Watcher(group, token)
        await asyncio.sleep(6.1)
        workers.slowness = lambda _: 5.0
        group.prompt(token, "b", sequence=1, event_id=None)
        await asyncio.sleep(4.0)
        group.stop(token)
        await watcher.task

    run_virtually(play())
    (path,) = (tmp_path / "logs").iterdir()
    steps = replay(path.read_text().splitlines())
    assert path.stem.startswith("stream_")
    assert sum(isinstance(step.event, Update) for step in steps) == 2
    assert any(isinstance(command, Underrun) for step in steps for command in step.commands)


def test_chunks_continue_the_very_frame_that_is_shown_before_them() -> None:
    async def play() -> None:
        workers = FakeWorkers()
        group, token = await begin(workers)
        watcher = Watcher(group, token)
        await asyncio.sleep(4.2)
        group.prompt(token, "b", sequence=1, event_id=None)
        await asyncio.sleep(4.0)
        group.stop(token)
        await watcher.task
        assert workers.chunks[0].boundary_HWC is None
        for chunk in workers.chunks[1:]:
            assert chunk.boundary_HWC is not None
            assert int(chunk.boundary_HWC[0, 0, 0]) == chunk.branch - 1

    run_virtually(play())


def test_prompts_that_are_not_newer_are_refused_and_change_nothing() -> None:
    async def play() -> None:
        group, token = await begin(FakeWorkers(), spec=StreamSpec(prompt="a", seed=0, sequence=5))
        watcher = Watcher(group, token)
        await asyncio.sleep(1.0)
        for sequence in (5, 4, -1):
            with pytest.raises(StaleSequence, match="above 5"):
                group.prompt(token, "b", sequence=sequence, event_id=None)
        group.prompt(token, "c", sequence=6, event_id=None)
        with pytest.raises(StaleSequence):
            group.prompt(token, "c", sequence=6, event_id=None)
        await asyncio.sleep(3.0)
        group.stop(token)
        await watcher.task
        assert [message["sequence"] for message in watcher.of("applied")] == [5, 6]

    run_virtually(play())


def test_a_prompt_that_waits_to_be_taken_leaves_the_one_in_force_its_text() -> None:
    """Results that came before it are dealt with first, and may launch a call for the prompt before."""

    async def play() -> None:
        workers = FakeWorkers()
        group, token = await begin(workers)
        watcher = Watcher(group, token)
        await asyncio.sleep(1.0)
        session = group._session(token)
        group.prompt(token, "b", sequence=1, event_id=None)
        session._feed(Crowd(0.0))
        session._feed(Crowd(100.0))  # so that a refill is due at once, still for the first prompt
        await asyncio.sleep(3.0)
        group.stop(token)
        await watcher.task
        assert [chunk.prompt for chunk in workers.chunks[:3]] == ["a", "a", "b"]
        assert [message["sequence"] for message in watcher.of("applied")] == [0, 1]
        assert watcher.of("done")[0]["reason"] == "stopped"

    run_virtually(play())


def test_the_newest_prompt_survives_a_lost_worker_and_playback_goes_on_with_what_is_there() -> None:
    async def play() -> None:
        workers = FakeWorkers()
        group, token = await begin(workers)
        watcher = Watcher(group, token)
        await asyncio.sleep(4.0)
        workers.fails = lambda chunk: chunk.prompt == "b" and sum(one.prompt == "b" for one in workers.chunks) == 1
        group.prompt(token, "b", sequence=1, event_id=None)
        await asyncio.sleep(6.0)
        group.stop(token)
        await watcher.task
        assert [message["sequence"] for message in watcher.of("applied")] == [0, 1]
        assert len(watcher.of("commit")) >= 18

    run_virtually(play())


@pytest.mark.parametrize(("fallback", "stalls"), [(Fallback.FREEZE, True), (Fallback.STALE, False)])
def test_what_is_not_ready_in_time_is_an_underrun(fallback: Fallback, stalls: bool) -> None:
    async def play() -> None:
        workers = FakeWorkers()
        group, token = await begin(workers, config=SessionConfig(fallback=fallback))
        watcher = Watcher(group, token)
        await asyncio.sleep(6.1)
        workers.slowness = lambda _: 5.0
        group.prompt(token, "b", sequence=1, event_id=None)
        await asyncio.sleep(4.0)
        group.stop(token)
        await watcher.task
        assert {message["fallback"] for message in watcher.of("underrun")} <= {fallback.value, "freeze"}
        assert watcher.of("underrun")[0]["fallback"] == fallback.value
        assert any(message["held_ms"] > 0 for message in watcher.of("commit")) is stalls

    run_virtually(play())


def test_a_machine_that_cannot_keep_up_says_so() -> None:
    async def play() -> None:
        slow = dataclasses.replace(FACTS, first_s=2.9, whole_s=3.0)
        group, token = await begin(FakeWorkers(facts=slow))
        watcher = Watcher(group, token)
        await asyncio.sleep(10.0)
        group.stop(token)
        await watcher.task
        (started,) = watcher.of("started")
        assert started["realtime"] is False
        assert started["sustainable_fps"] == pytest.approx(16 / 3.3, abs=0.01)

    run_virtually(play())


def test_a_viewer_that_reads_too_slowly_loses_whole_groups_and_is_told() -> None:
    async def play() -> None:
        group, token = await begin(FakeWorkers(), config=SessionConfig(queued_groups=3))
        viewer = group.attach(token, MediaFormat.MP4)
        await asyncio.sleep(10.0)
        outputs = await group.take(token, viewer, 0.0)
        shown = [output for output in outputs if output.parts]
        dropped = [output.message for output in outputs if output.message["type"] == "dropped"]
        assert len(shown) == 3
        assert shown[0].parts[0].startswith(b"header "), "what comes first begins the file, whatever was dropped"
        frames = [message["from"] for message in dropped] + [output.message["frame"] for output in shown]
        assert frames == list(range(0, 4 * len(frames), 4))
        group.stop(token)

    run_virtually(play())


def test_a_second_viewer_joins_with_a_header_of_its_own_and_in_its_own_format() -> None:
    async def play() -> None:
        group, token = await begin(FakeWorkers())
        first = Watcher(group, token)
        await asyncio.sleep(5.1)
        second, third = Watcher(group, token), Watcher(group, token, MediaFormat.JPEG)
        await asyncio.sleep(6.0)
        group.stop(token)
        await asyncio.gather(first.task, second.task, third.task)
        assert second.shown[0].startswith(b"header ")
        assert second.shown[0].removeprefix(b"header ") in first.shown
        assert third.of("commit")
        assert all(len(output.parts) == 4 for _, output in third.outputs if output.parts)

    run_virtually(play())


def test_a_viewer_of_pictures_sees_the_stream_from_its_first_group() -> None:
    async def play() -> None:
        group, token = await begin(FakeWorkers(), spec=dataclasses.replace(SPEC, media=MediaFormat.JPEG))
        watcher = Watcher(group, token, MediaFormat.JPEG)
        await asyncio.sleep(3.0)
        group.stop(token)
        await watcher.task
        assert watcher.of("commit")[0]["frame"] == 0

    run_virtually(play())


def test_a_stream_that_nobody_reads_ends_and_its_token_with_it() -> None:
    async def play() -> None:
        group, token = await begin(FakeWorkers(), config=SessionConfig(vanished_s=5.0))
        viewer = group.attach(token, MediaFormat.MP4)
        await group.take(token, viewer, 0.0)
        group.detach(token, viewer)
        await asyncio.sleep(4.0)
        again = Watcher(group, token)
        await asyncio.sleep(4.0)
        assert again.of("started")[0]["frame"] > 0, "it came back to the stream as it had gone on"
        again.task.cancel()
        await asyncio.sleep(8.0)
        with pytest.raises(StreamUnknown):
            group.attach(token, MediaFormat.MP4)
        assert group.stats() == {"streams": 0, "viewers": 0, "denoisers": 1}
        assert not group._tasks

    run_virtually(play())


def test_a_stream_is_no_longer_than_it_may_be() -> None:
    async def play() -> None:
        group, token = await begin(FakeWorkers(), config=SessionConfig(max_stream_s=10.0))
        watcher = Watcher(group, token)
        await watcher.task
        assert watcher.of("done")[0]["reason"] == "limit"
        assert asyncio.get_running_loop().time() < 13

    run_virtually(play())


def test_a_group_admits_what_its_workers_can_carry_and_lends_them_one_call_at_a_time() -> None:
    async def play() -> None:
        workers = FakeWorkers()
        group, token = await begin(workers)
        tokens = [token]
        tokens += [group.open(dataclasses.replace(SPEC, seed=seed)) for seed in range(3)]
        with pytest.raises(StreamsFull, match="would take the workers to 75 %"):
            group.open(SPEC)
        watchers = [Watcher(group, one) for one in tokens]
        await asyncio.sleep(20.0)
        assert workers.most_busy == 1
        for one in tokens:
            group.stop(one)
        await asyncio.gather(*(watcher.task for watcher in watchers))
        for watcher in watchers:
            assert max(gaps_of(watcher)[4:]) < 0.75, "no stall once all have begun"
        await group.close()
        assert workers.is_closed

    run_virtually(play())


def test_a_denoiser_goes_to_the_earliest_deadline_and_comes_back_when_the_borrower_is_gone() -> None:
    async def play() -> None:
        queue, order = DeadlineQueue(1), list[str]()

        async def borrow(name: str, deadline: float | None) -> None:
            async with queue.lend(deadline):
                await asyncio.sleep(1.0)
                order.append(name)

        first = asyncio.create_task(borrow("first", 9.0))
        await asyncio.sleep(0.1)
        waiting = {name: asyncio.create_task(borrow(name, due)) for name, due in (("start", None), ("b", 5), ("a", 3))}
        await asyncio.sleep(0.1)
        gone = asyncio.create_task(borrow("gone", 1.0))
        await asyncio.sleep(0.1)
        gone.cancel()
        await asyncio.gather(first, *waiting.values())
        assert order == ["first", "a", "b", "start"]

    run_virtually(play())


def test_what_was_shown_is_kept_where_asked_for_and_its_viewer_told_as_what() -> None:
    async def play() -> None:
        group, token = await begin(FakeWorkers(), spec=dataclasses.replace(SPEC, record=True))
        watcher = Watcher(group, token)
        await asyncio.sleep(3.0)
        group.prompt(token, "b", sequence=1, event_id=None)
        await asyncio.sleep(3.0)
        group.stop(token)
        recording = await group.next_recording(5.0)
        assert recording is not None
        group.kept(recording.stream_id, "video_1")
        await watcher.task
        assert watcher.of("done")[0]["video_id"] == "video_1"
        assert recording.mp4 == b"".join(watcher.shown)
        assert (recording.num_frames, recording.spec.prompt) == (4 * len(watcher.shown), "b")
        assert await group.next_recording(1.0) is None

    run_virtually(play())


def test_a_recording_that_nobody_keeps_does_not_hold_the_end_up_for_ever() -> None:
    async def play() -> None:
        group, token = await begin(FakeWorkers(), spec=dataclasses.replace(SPEC, record=True))
        watcher = Watcher(group, token)
        await asyncio.sleep(3.0)
        group.stop(token)
        await watcher.task
        assert watcher.of("done")[0]["video_id"] is None
        assert not group._keeping

    run_virtually(play())
