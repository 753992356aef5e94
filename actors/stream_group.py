"""A group of workers and the live streams that share them: admission, the order of calls, and what ends with whom.

Workers are asked for the chunk whose first group is due first. A worker that is lost fails its chunk and is replaced
while playback goes on. Knows nothing about what a worker computes, sockets or HTTP.
"""

import asyncio
import contextlib
import dataclasses
import heapq
import itertools
import logging
import math
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any, Final, Protocol

from actors.live_messages import ChunkSpec, LiveFacts, MediaFormat, Output, ReadyGroup, Recording, StreamSpec
from actors.stream_figures import StreamFigures
from actors.stream_session import SessionConfig, StreamSession
from reprise.speculative.estimator import crowd_of

logger = logging.getLogger(__name__)

KEEP_TIMEOUT_S: Final = 30.0
_UNKNOWN: Final = "no stream has this token: it has ended, or never was"


class StreamsFull(Exception):
    """The group has no room for another stream that plays without stalls."""


class StreamUnknown(Exception):
    """No stream has this token: it has ended, or never was."""


class WorkerPool(Protocol):
    """Some workers: denoisers that sample, each one call at a time, and perhaps one that decodes for them."""

    num_denoisers: int
    decodes_apart: bool
    """A denoiser is free for the next call while its chunk is decoded elsewhere."""

    async def start(self) -> LiveFacts:
        """Start the workers, warm them up and say what they make."""
        ...

    async def sample(self, denoiser: int, chunk: ChunkSpec) -> Any:
        """Sample a chunk; gives what `decode` takes."""
        ...

    def decode(self, denoiser: int, chunk: ChunkSpec, sampled: Any) -> AsyncGenerator[ReadyGroup, None]:
        """Yield the groups of a chunk that the denoiser has sampled."""
        ...

    async def close(self) -> None:
        """End the workers."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GroupConfig:
    """How many streams share a group's workers."""

    session: SessionConfig
    max_load: float = 0.7
    """Share of the denoisers' time that the refills of all streams may take; the rest is for changes. One stream is
    always let in: it says itself whether it can be real time."""
    max_streams: int = 64


class DeadlineQueue:
    """Lends denoisers to whoever must be served first."""

    def __init__(self, num_denoisers: int) -> None:
        self._free = list(range(num_denoisers))
        self._waiting: list[tuple[float, int, asyncio.Future[int]]] = []
        self._number = itertools.count()

    @contextlib.asynccontextmanager
    async def lend(self, deadline: float | None) -> AsyncIterator[int]:
        """Wait for a denoiser; a start without a deadline waits for all that have one."""
        future: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (math.inf if deadline is None else deadline, next(self._number), future))
        self._match()
        try:
            denoiser = await future
        except asyncio.CancelledError:
            if future.done() and not future.cancelled():
                self._give_back(future.result())
            raise
        try:
            yield denoiser
        finally:
            self._give_back(denoiser)

    def _give_back(self, denoiser: int) -> None:
        self._free.append(denoiser)
        self._match()

    def _match(self) -> None:
        while self._free and self._waiting:
            _, _, future = heapq.heappop(self._waiting)
            if not future.done():
                future.set_result(self._free.pop())


class StreamGroup:
    """The streams of one group; each has a task of its own on the event loop."""

    def __init__(self, config: GroupConfig, workers: WorkerPool) -> None:
        self._config, self._workers = config, workers
        self._queue = DeadlineQueue(workers.num_denoisers)
        self._facts: LiveFacts | None = None
        self._sessions: dict[str, StreamSession] = {}
        self._figures = StreamFigures()
        self._tasks: set[asyncio.Task[None]] = set()
        self._recordings: asyncio.Queue[Recording] = asyncio.Queue()
        self._keeping: dict[str, asyncio.Future[str]] = {}

    async def start(self) -> LiveFacts:
        """Start the workers; gives what they make."""
        self._facts = await self._workers.start()
        return self._facts

    async def close(self) -> None:
        """End all streams and the workers."""
        for session in self._sessions.values():
            session.stop("shutdown")
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=5)
        await self._workers.close()

    def open(self, spec: StreamSpec) -> str:
        """Begin a stream and give its token; raises StreamsFull."""
        assert self._facts is not None, "start() comes first"
        count = len(self._sessions)
        mine = sum(session.spec.tenant == spec.tenant for session in self._sessions.values())
        if spec.max_streams is not None and mine >= spec.max_streams:
            raise StreamsFull(f"{mine} streams of yours run here, and no more may")
        share = self._facts.whole_s / (self._facts.chunk_groups * self._facts.group_s)
        load = (count + 1) * share / self._workers.num_denoisers
        if count and (load > self._config.max_load or count >= self._config.max_streams):
            raise StreamsFull(f"{count} streams run here, one more would take the workers to {100 * load:.0f} %")
        session = StreamSession(spec, self._facts, self._config.session, self, self._figures)
        self._sessions[session.token] = session
        self._tell_crowd()
        task = asyncio.create_task(self._run(session))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return session.token

    def attach(self, token: str, media: MediaFormat) -> str:
        """Let a viewer watch; gives the viewer's id. Raises StreamUnknown, as all that take a token."""
        session = self._session(token)
        if session.end_reason is not None:
            raise StreamUnknown(_UNKNOWN)
        return session.attach(media)

    def check(self, token: str, tenant: str) -> None:
        """Raise StreamUnknown for a stream that is not there, or not this tenant's."""
        if self._session(token).spec.tenant != tenant:
            raise StreamUnknown(_UNKNOWN)

    def detach(self, token: str, viewer_id: str) -> None:
        """Forget a viewer."""
        with contextlib.suppress(StreamUnknown):
            self._session(token).detach(viewer_id)

    def prompt(self, token: str, text: str, *, sequence: int, event_id: str | None) -> None:
        """Change a stream's prompt; raises StaleSequence."""
        self._session(token).accept(text, sequence=sequence, event_id=event_id)

    def stop(self, token: str) -> None:
        """End a stream."""
        self._session(token).stop("stopped")

    async def take(self, token: str, viewer_id: str, wait_s: float) -> list[Output]:
        """Give what a viewer has not seen; raises KeyError for one that is not attached."""
        return await self._session(token).take(viewer_id, wait_s)

    async def make(self, chunk: ChunkSpec, *, deadline: float | None) -> AsyncIterator[ReadyGroup]:
        """Sample for a stream on the next free denoiser."""
        async with self._queue.lend(deadline) as denoiser:
            sampled = await self._workers.sample(denoiser, chunk)
            if not self._workers.decodes_apart:
                async for group in self._workers.decode(denoiser, chunk, sampled):
                    yield group
                return
        async for group in self._workers.decode(denoiser, chunk, sampled):
            yield group

    def _tell_crowd(self) -> None:
        calls = crowd_of(len(self._sessions), self._workers.num_denoisers) if self._sessions else 0.0
        for session in self._sessions.values():
            session.share(calls)

    def stats(self) -> dict[str, Any]:
        """Give what an operator asks for."""
        return {
            "streams": len(self._sessions),
            "viewers": sum(len(session.viewers) for session in self._sessions.values()),
            "denoisers": self._workers.num_denoisers,
        }

    def take_figures(self) -> StreamFigures:
        """Give what the streams have shown since this was last asked."""
        return self._figures.take()

    def _session(self, token: str) -> StreamSession:
        session = self._sessions.get(token)
        if session is None:
            raise StreamUnknown(_UNKNOWN)
        return session

    async def next_recording(self, wait_s: float) -> Recording | None:
        """Give a stream that is to be kept, once there is one or time is up; `kept` is to follow."""
        try:
            return await asyncio.wait_for(self._recordings.get(), wait_s)
        except TimeoutError:
            return None

    def kept(self, stream_id: str, video_id: str) -> None:
        """Take as what video a recording is kept."""
        waiting = self._keeping.get(stream_id)
        if waiting is not None and not waiting.done():
            waiting.set_result(video_id)

    async def _run(self, session: StreamSession) -> None:
        try:
            await session.run()
        except Exception:
            logger.exception("stream %s broke", session.id)
        finally:
            logger.info("stream %s ended: %s", session.id, session.end_reason)
            session.tell_done(await self._keep(session))
            # Viewers take what is left, `done` above all, before the token is forgotten.
            await asyncio.sleep(1.0)
            self._sessions.pop(session.token, None)
            self._tell_crowd()

    async def _keep(self, session: StreamSession) -> str | None:
        """Hand over what is to be kept; its video's id, or None where there is nothing or it takes too long."""
        recording = session.recording()
        if recording is None:
            return None
        kept = self._keeping[session.id] = asyncio.get_running_loop().create_future()
        self._recordings.put_nowait(recording)
        try:
            return await asyncio.wait_for(kept, KEEP_TIMEOUT_S)
        except TimeoutError:
            logger.warning("stream %s could not be kept in time", session.id)
            return None
        finally:
            del self._keeping[session.id]
