"""One live stream: the controller's machine on a real clock, with a worker to sample for it and viewers to show to.

Everything that happens is fed to the machine at once and its commands are carried out; nothing here decides what is
sampled or shown. Knows nothing about sockets, processes or models.
"""

import asyncio
import contextlib
import dataclasses
import logging
import pathlib
import secrets
from collections.abc import AsyncIterator, Callable
from typing import IO, Any, Final, Protocol

from actors.live_messages import ChunkSpec, Frames, LiveFacts, MediaFormat, Output, ReadyGroup, Recording, StreamSpec
from actors.stream_figures import StreamFigures, StreamWatch
from actors.viewer import Viewer
from reprise.speculative.estimator import EstimatorConfig
from reprise.speculative.events import (
    Applied,
    Command,
    Crowd,
    Deliver,
    Discard,
    Event,
    Fail,
    Fallback,
    Finish,
    Launch,
    Ready,
    Start,
    Supersede,
    Tick,
    Underrun,
    Update,
    Wake,
)
from reprise.speculative.latency import Commitment
from reprise.speculative.log import Step, header_line, step_line
from reprise.speculative.machine import EPSILON_S, MachineConfig, StreamMachine

logger = logging.getLogger(__name__)

TOKEN_BYTES: Final = 16


class StaleSequence(Exception):
    """A prompt came with a sequence number that is not newer than the last one."""


class ChunkMaker(Protocol):
    """Whoever samples chunks."""

    def make(self, chunk: ChunkSpec, *, deadline: float | None) -> AsyncIterator[ReadyGroup]:
        """Yield a chunk's groups as they are ready; raises whatever kept it from being made, once nothing runs."""
        ...


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class SessionConfig:
    """What all streams of a group have in common."""

    fallback: Fallback = Fallback.STALE
    margin: float = 0.1
    """Added to the estimate of a call's time, as a share of it."""
    queued_groups: int = 8
    """Groups that wait for one viewer; the oldest are dropped."""
    vanished_s: float = 30.0
    """A stream that nobody has read from for so long ends; until then a viewer may come back."""
    max_stream_s: float = 3600.0
    log_folder: str | None = None
    """Where every stream writes its event log, a line a step; None writes none."""


class StreamSession:
    """One stream, made on a running event loop; `run` plays it until it is stopped."""

    def __init__(
        self,
        spec: StreamSpec,
        facts: LiveFacts,
        config: SessionConfig,
        maker: ChunkMaker,
        figures: StreamFigures | None = None,
    ) -> None:
        """Figures of the group are added to as the stream plays."""
        self.id = f"stream_{secrets.token_hex(12)}"
        self.token = secrets.token_urlsafe(TOKEN_BYTES)
        self.spec, self.facts = spec, facts
        self._config, self._maker = config, maker
        self._clock: Callable[[], float] = asyncio.get_running_loop().time
        estimator = EstimatorConfig(initial_s=max(facts.whole_s, 1e-3), margin=config.margin)
        self.machine_config = MachineConfig(
            chunk_groups=facts.chunk_groups,
            group_s=facts.group_s,
            estimator=estimator,
            commitment=Commitment.CHUNK if spec.waits_for_chunk else Commitment.GROUP,
            fallback=config.fallback,
        )
        self.machine = StreamMachine(self.machine_config)
        self._watch = StreamWatch(StreamFigures() if figures is None else figures)
        self._log: IO[str] | None = None
        self._shown: list[bytes] = []
        """The MP4 of what was shown, in pieces, where it is kept."""
        self._last_prompt = spec.prompt
        self.viewers: dict[str, Viewer] = {}
        self.end_reason: str | None = None
        self._prompts: dict[int, tuple[str, str | None, float]] = {}
        """Text, the viewer's own id and arrival, by sequence number."""
        self._groups: dict[tuple[int, int], ReadyGroup] = {}
        self._inbox: asyncio.Queue[Event | None] = asyncio.Queue()
        self._job: asyncio.Task[None] | None = None
        self._read_at = self._began_at = self._clock()
        self._is_realtime = True

    @property
    def is_realtime(self) -> bool:
        """Tell whether a call takes no longer than what it makes plays."""
        estimator = self.machine.estimator
        return estimator.whole_s <= self.facts.chunk_groups * self.facts.group_s

    def attach(self, media: MediaFormat) -> str:
        """Let one more viewer watch, from the next group on; gives the viewer's id."""
        viewer_id = secrets.token_hex(8)
        viewer = self.viewers[viewer_id] = Viewer(media, self._config.queued_groups)
        viewer.push(self._started())
        self._read_at = self._clock()
        return viewer_id

    def detach(self, viewer_id: str) -> None:
        """Forget a viewer; the stream goes on until nobody has come back for a while."""
        self.viewers.pop(viewer_id, None)

    async def take(self, viewer_id: str, wait_s: float) -> list[Output]:
        """Give what a viewer has not seen; raises KeyError for one that is not attached."""
        self._read_at = self._clock()
        outputs = await self.viewers[viewer_id].take(wait_s)
        self._read_at = self._clock()
        return outputs

    def accept(self, prompt: str, *, sequence: int, event_id: str | None = None) -> None:
        """Take a new prompt; raises StaleSequence for one that is not newer."""
        latest = max(self._prompts, default=-1)
        if sequence <= latest:
            raise StaleSequence(f"sequence must be above {latest}, the last one accepted, got {sequence}")
        self._prompts[sequence] = (prompt, event_id, self._clock())
        self._inbox.put_nowait(Update(sequence))

    def recording(self) -> Recording | None:
        """Give what is to be kept of the stream; None where nothing is, or nothing was shown."""
        if not self._shown:
            return None
        return Recording(
            stream_id=self.id,
            spec=dataclasses.replace(self.spec, prompt=self._last_prompt),
            facts=self.facts,
            num_frames=len(self._shown) * self.facts.group_frames,
            mp4=b"".join(self._shown),
        )

    def share(self, calls: float) -> None:
        """Take for how many calls of other streams one of this may have to wait."""
        self._inbox.put_nowait(Crowd(calls))

    def stop(self, reason: str) -> None:
        """End the stream; `run` returns."""
        if self.end_reason is None:
            self.end_reason = reason
            self._inbox.put_nowait(None)

    async def run(self) -> None:
        """Play until stopped, unwatched or as long as a stream may be."""
        self.accept(self.spec.prompt, sequence=self.spec.sequence, event_id=self.spec.event_id)
        self._open_log()
        try:
            while self.end_reason is None:
                event = await self._next_event()
                if event is not None:
                    self._feed(event)
                self._look_around()
        finally:
            self.end_reason = self.end_reason or "error"
            if self._job is not None:
                self._job.cancel()
            if self._log is not None:
                self._log.close()

    def _open_log(self) -> None:
        if self._config.log_folder is None:
            return
        folder = pathlib.Path(self._config.log_folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._log = (folder / f"{self.id}.jsonl").open("w", buffering=1)
        self._log.write(header_line(self.machine_config) + "\n")

    def tell_done(self, video_id: str | None) -> None:
        """Tell all viewers that it is over, and as what video it is kept."""
        frames = self.machine.registers.cursor * self.facts.group_frames
        self._tell({"type": "done", "reason": self.end_reason, "frames": frames, "video_id": video_id})

    async def _next_event(self) -> Event | None:
        """Give the next message, or what the clock brings."""
        now = self._clock()
        tick_at, wake_at = self.machine.tick_at, self.machine.wake_at
        due = [at for at in (tick_at, wake_at, now + 1.0) if at is not None]  # look around once a second at least
        try:
            return await asyncio.wait_for(self._inbox.get(), max(0.0, min(due) - now))
        except TimeoutError:
            now = self._clock() + EPSILON_S
            if tick_at is not None and now >= tick_at:
                return Tick()
            return Wake() if wake_at is not None and now >= wake_at else None

    def _look_around(self) -> None:
        now = self._clock()
        if now - self._read_at > self._config.vanished_s:
            self.stop("vanished")
        elif now - self._began_at > self._config.max_stream_s:
            self.stop("limit")
        if self.is_realtime != self._is_realtime:
            self._is_realtime = self.is_realtime
            self._tell({"type": "realtime", "realtime": self._is_realtime, "fps": self._sustainable_fps()})

    def _feed(self, event: Event) -> None:
        now = self._clock()
        if isinstance(event, Tick) and (self.machine.tick_at is None or now < self.machine.tick_at - EPSILON_S):
            return  # what came before it has changed what is due
        commands = self.machine.feed(event, now)
        self._watch.see(event, commands, now)
        if self._log is not None:
            self._log.write(step_line(Step(now, event, tuple(commands))) + "\n")
        if isinstance(event, Update) and event.version != self.spec.sequence:  # the first one is in `started`
            self._acknowledge(event.version)
        for command in commands:
            self._carry_out(command, now)
        r = self.machine.registers
        needed = [*r.predictions.values(), *r.stale.values(), *r.shown]
        keys = {(group.job, group.index) for group in needed}
        active = None if r.job is None else r.job.id  # some of its groups may not have been fed yet
        self._groups = {key: group for key, group in self._groups.items() if key in keys or key[0] == active}
        self._prompts = {number: prompt for number, prompt in self._prompts.items() if self._is_needed(number)}

    def _is_needed(self, sequence: int) -> bool:
        """Tell whether a prompt may still be sampled or spoken of; one that only waits takes no other's place."""
        r = self.machine.registers
        is_current = r.latest is None or sequence >= r.latest
        return is_current or sequence in r.unseen or (r.job is not None and r.job.version == sequence)

    def _carry_out(self, command: Command, now: float) -> None:
        size = self.facts.group_frames
        match command:
            case Launch():
                self._launch(command)
                if command.replaced:
                    first, last = command.replaced.start * size, command.replaced.stop * size - 1
                    self._tell({"type": "replaced", "from": first, "to": last})
            case Deliver():
                self._show(command)
            case Applied(version=version, position=position):
                self._last_prompt, event_id, came_at = self._prompts[version]
                latency_ms = round(1000 * (now - came_at), 1)
                self._tell(
                    {"type": "applied", "sequence": version, "frame": position * size, "latency_ms": latency_ms},
                    event_id,
                )
            case Supersede(version=version, by=by):
                self._tell({"type": "superseded", "sequence": version, "by": by}, self._prompts[version][1])
            case Underrun(position=position, fallback=fallback):
                self._tell({"type": "underrun", "frame": position * size, "fallback": fallback.value})
            case Start() | Discard():
                pass

    def _launch(self, launch: Launch) -> None:
        boundary: Frames | None = self._groups[launch.prefix[-1]].last_HWC if launch.prefix else None
        formats = {viewer.media for viewer in self.viewers.values()} | {self.spec.media}
        formats |= {MediaFormat.MP4} if self.spec.record else set()
        chunk = ChunkSpec(
            prompt=self._prompts[launch.version][0],
            seed=self.spec.seed,
            job=launch.job,
            branch=launch.branch,
            boundary_HWC=boundary,
            formats=frozenset(formats),
        )
        self._job = asyncio.create_task(self._make(chunk, launch))

    async def _make(self, chunk: ChunkSpec, launch: Launch) -> None:
        count = 0
        try:
            async with contextlib.aclosing(self._maker.make(chunk, deadline=launch.deadline)) as groups:  # type: ignore[type-var]
                async for group in groups:
                    self._groups[launch.job, count] = group
                    count += 1
                    self._inbox.put_nowait(Ready(launch.job))
        except Exception as error:
            logger.warning("chunk %d of %s failed: %r", launch.job, self.id, error)
            self._inbox.put_nowait(Fail(launch.job))
        else:
            self._inbox.put_nowait(Finish(launch.job) if count == launch.num_groups else Fail(launch.job))

    def _show(self, deliver: Deliver) -> None:
        group = self._groups[deliver.job, deliver.index]
        if self.spec.record:
            self._shown.append(group.fragment if self._shown else group.header + group.fragment)
        size = self.facts.group_frames
        message = {
            "type": "commit",
            "frame": deliver.position * size,
            "frames": size,
            "sequence": deliver.version,
            "stale": deliver.is_stale,
            "held_ms": round(1000 * deliver.held_s, 1),
            "predicted_to": self.machine.registers.end * size,
        }
        for viewer in self.viewers.values():
            viewer.show(message, group)

    def _acknowledge(self, sequence: int) -> None:
        position, job = self.machine.expected_position, self.machine.registers.job
        message = {
            "type": "acknowledged",
            "sequence": sequence,
            "frame": None if position is None else position * self.facts.group_frames,
            "is_estimate": job is None or job.version != sequence,
        }
        self._tell(message, self._prompts[sequence][1])

    def _started(self) -> dict[str, Any]:
        facts = self.facts
        return {
            "type": "started",
            "stream": self.id,
            "model": facts.model,
            "width": facts.width,
            "height": facts.height,
            "fps": facts.fps,
            "group_frames": facts.group_frames,
            "chunk_groups": facts.chunk_groups,
            "frame": self.machine.registers.cursor * facts.group_frames,
            "realtime": self.is_realtime,
            "sustainable_fps": self._sustainable_fps(),
            "compute_ms": round(1000 * self.machine.estimator.whole_s, 1),
        }

    def _sustainable_fps(self) -> float:
        frames = self.facts.chunk_groups * self.facts.group_frames
        return round(frames / self.machine.estimator.whole_s, 2)

    def _tell(self, message: dict[str, Any], event_id: str | None = None) -> None:
        if event_id is not None:
            message["event_id"] = event_id
        for viewer in self.viewers.values():
            viewer.push(message)
