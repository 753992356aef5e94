"""What forwards of the bundled causal model take, measured while it makes videos; a virtual clock runs on it.

A forward's time depends on its role and on how much KV it reads, so both are kept apart. Shared by the benchmarks of
long videos; knows nothing about placements.
"""

import collections
import dataclasses
import statistics
import time
from collections.abc import Mapping, Sequence

from torch import Tensor

from reprise.flashforward.denoiser import Entry, ForwardResult, LongVideoSpec, StageDenoiser
from reprise.flashforward.model import LongModel, embed
from reprise.flashforward.schedule import Forward, Method, Placement, Role, Source, list_forwards
from reprise.flashforward.worker import render
from reprise.wan.presets import TEMPORAL_STRIDE

SIDE = 64
PROMPT = "a large red circle moves right over a blue background"

CostKey = tuple[Method, Role, int, int]
"""Method, role, and how many chunks and anchors are read."""


def key_of(method: Method, forward: Forward) -> CostKey:
    """Tell forwards apart that take different times."""
    reads = {source: sum(len(span.indices) for span in forward.reads if span.source is source) for source in Source}
    return method, forward.role, reads[Source.CHUNK], reads[Source.ANCHOR]


class TimedDenoiser(StageDenoiser):
    """Notes the seconds of every forward."""

    def attach(self, method: Method, seconds: dict[CostKey, list[float]]) -> None:
        """Name the method and where times go."""
        self._method, self._seconds = method, seconds

    def run(self, forward: Forward, latent_BCTHW: Tensor | None, context: Sequence[Entry]) -> ForwardResult:
        """Run one forward and time it."""
        begin = time.perf_counter()
        result = super().run(forward, latent_BCTHW, context)
        self._seconds[key_of(self._method, forward)].append(time.perf_counter() - begin)
        return result


@dataclasses.dataclass(frozen=True, slots=True)
class Measured:
    """Times of videos on one worker, and of their forwards."""

    videos: Mapping[tuple[Method, int], list[float]]
    """Seconds from the first forward to the last latent, by method and latents."""
    forwards: Mapping[CostKey, list[float]]

    def cost(self, method: Method, forward: Forward) -> float:
        """Give the median seconds of forwards like this one; raise KeyError when none was run."""
        return statistics.median(self.forwards[key_of(method, forward)])


def measure(models: Mapping[Method, LongModel], lengths: Sequence[int], *, repeats: int, seed: int) -> Measured:
    """Make videos of every length by every method in turn."""
    seconds: dict[CostKey, list[float]] = collections.defaultdict(list)
    videos: dict[tuple[Method, int], list[float]] = collections.defaultdict(list)
    for repeat in range(-1, repeats):
        for num_latents in lengths[:1] if repeat < 0 else lengths:
            for method, model in models.items():
                begin = time.perf_counter()
                make(model, method, num_latents, seed=seed + repeat + 1, seconds=seconds)
                if repeat >= 0:
                    videos[method, num_latents].append(time.perf_counter() - begin)
        if repeat < 0:  # the first of each is slower
            seconds.clear()
    return Measured(videos, seconds)


def make(model: LongModel, method: Method, num_latents: int, *, seed: int, seconds: dict[CostKey, list[float]]) -> None:
    """Make the latents of one video."""
    spec = spec_of(model, method, num_latents, seed=seed)
    denoiser = TimedDenoiser(model.wan, model.adapters, spec, *embed(model, PROMPT, ""))
    denoiser.attach(method, seconds)
    for _ in render(list(list_forwards(method, spec.layout, Placement.ONE_WORKER)), denoiser):
        pass


def spec_of(model: LongModel, method: Method, num_latents: int, *, seed: int) -> LongVideoSpec:
    """Describe one video."""
    preset = model.preset
    return LongVideoSpec(
        method=method,
        layout=preset.layout(TEMPORAL_STRIDE * (num_latents - 1) + 1),
        seed=seed,
        width=SIDE,
        height=SIDE,
        guidance_scale=preset.guidance_scale,
        sigmas=preset.sigmas,
    )
