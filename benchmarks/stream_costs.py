"""What a live stream's sampling calls take on this machine, and calls in simulated time that take as long.

Shared by the benchmarks of streams; measures nothing when imported.
"""

import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Sequence

from actors.live_messages import ChunkSpec, LiveWorkerConfig, MediaFormat
from actors.live_worker import LiveWorker
from reprise.speculative.estimator import EstimatorConfig
from reprise.speculative.events import Fallback, Finish, Launch, Ready
from reprise.speculative.latency import Commitment
from reprise.speculative.log import replay
from reprise.speculative.machine import MachineConfig
from reprise.speculative.simulation import Call
from reprise.wan.live_presets import LivePreset

PROMPTS = (
    "a small red circle moves left over a gray background",
    "a small blue circle moves left over a gray background",
)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class ChunkCosts:
    """Calls of one length that were made."""

    chunk_latents: int
    group_s: float
    calls: Sequence[Call]

    @property
    def compute_s(self) -> float:
        """Give C, the mean time of a call until all of it is there."""
        return sum(call.slot_s for call in self.calls) / len(self.calls)

    def config(self, commitment: Commitment, *, margin: float = 0.1) -> MachineConfig:
        """Give a stream's constants as the product has them."""
        return MachineConfig(
            chunk_groups=self.chunk_latents,
            group_s=self.group_s,
            estimator=EstimatorConfig(initial_s=max(call.slot_s for call in self.calls), margin=margin),
            commitment=commitment,
            fallback=Fallback.STALE,
        )

    def simulated(self) -> Callable[[Launch], Call]:
        """Let simulated calls take what the measured ones took, one after the other and over again."""
        calls = itertools.cycle(self.calls)
        return lambda _: next(calls)


def read_costs(logs: Iterable[str], preset: LivePreset) -> ChunkCosts:
    """Take what calls took out of the event logs of real streams; each stream's first call is left out."""
    calls: list[Call] = []
    for log in logs:
        launched: dict[int, float] = {}
        ready: dict[int, list[float]] = {}
        for step in replay(log.splitlines()):
            match step.event:
                case Ready(job=job, count=count):
                    ready.setdefault(job, []).extend([step.now - launched[job]] * count)
                case Finish(job=job) if job > 0:
                    calls.append(Call(ready_s=ready[job], slot_s=step.now - launched[job]))
            launched |= {command.job: step.now for command in step.commands if isinstance(command, Launch)}
    return ChunkCosts(chunk_latents=preset.chunk_latents, group_s=preset.group_s, calls=calls)


def measure_chunks(preset: LivePreset, *, num_calls: int) -> ChunkCosts:
    """Continue one stream by `num_calls` chunks, encoded as for a viewer, after one that warms up."""
    worker = LiveWorker(LiveWorkerConfig(preset=preset))
    boundary, calls = None, []
    for job in range(-1, num_calls):
        chunk = ChunkSpec(
            prompt=PROMPTS[job % 2],
            seed=0,
            job=job + 1,
            branch=0,
            boundary_HWC=boundary,
            formats=frozenset({MediaFormat.MP4}),
        )
        begin, ready_s = time.perf_counter(), []
        for group in worker.make(chunk):
            ready_s.append(time.perf_counter() - begin)
            boundary = group.last_HWC
        if job >= 0:
            calls.append(Call(ready_s=ready_s, slot_s=ready_s[-1]))
    return ChunkCosts(chunk_latents=preset.chunk_latents, group_s=preset.group_s, calls=calls)
