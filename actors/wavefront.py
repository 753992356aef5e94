"""A long video as a wavefront over Ray actors, one for each stage and one that plans: a gang in one placement group.

All forwards of a video are ordered calls of the gang's actors whose latents and KV are object references, so an actor
begins a forward when what it reads is there, and nobody waits in rounds. A lost actor ends the gang; the next video
gets a new one. Knows nothing about what a forward computes, about jobs or decoding.
"""

import collections
import dataclasses
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import ray
import torch
from ray.exceptions import RayActorError, RayTaskError
from ray.util.placement_group import PlacementGroup, remove_placement_group

from actors.placement import Bundle, bundle_options, place
from reprise.errors import Cancelled
from reprise.flashforward.denoiser import Entry, LongVideoSpec
from reprise.flashforward.model import load_long, new_denoiser
from reprise.flashforward.routing import KvKey, Routed, keys_of, route
from reprise.flashforward.schedule import Forward, Method, Placement, Source, list_forwards
from reprise.flashforward.worker import Delivery, RunFacts, StageWorker
from reprise.wan.long_presets import LongPreset
from reprise.wan.model import PromptEmbedding

logger = logging.getLogger(__name__)

CHUNKS_IN_FLIGHT: Final = 4
"""Chunks that are submitted beyond those that can be at work at once; bounds what waits in the object store."""
POLL_S: Final = 0.1
CONTROL: Final = "control"
"""The actors' second thread, which answers while a forward runs."""


class GangLost(Exception):
    """An actor of the gang has ended, and with it the video that it was making."""

    code = "worker_lost"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class GangConfig:
    """The actors of a gang and what each of them holds."""

    preset: LongPreset
    placement: Placement
    method: Method = Method.FLASH_FORWARD
    device: str = "cpu"
    num_threads: int = 1
    num_cpus: float = 1.0
    """Of each actor, as is num_gpus."""
    num_gpus: float = 0.0
    strategy: str = "PACK"
    """Of the placement group: PACK keeps the actors on as few machines as possible."""
    place_timeout_s: float = 30.0
    start_timeout_s: float = 600.0
    """For loading the weights."""

    @property
    def num_workers(self) -> int:
        """Count the actors."""
        return self.placement.num_workers(len(self.preset.sigmas) - 1)


@dataclasses.dataclass(frozen=True, slots=True)
class Timing:
    """When a forward ran, on its actor's clock, and what its actor held after it."""

    begin_s: float
    end_s: float
    kv_bytes: int


class StageActor:
    """One worker of the gang: the model and the KV of the video under way."""

    def __init__(self, number: int, config: GangConfig) -> None:
        torch.set_num_threads(config.num_threads)
        self._model = load_long(config.preset, config.device, method=config.method)
        self._number, self._num_threads = number, config.num_threads
        self._worker: StageWorker | None = None
        self._is_abandoned = False

    def begin(self, spec: LongVideoSpec, embedding: PromptEmbedding, negative: PromptEmbedding | None) -> None:
        """Take up a video; what is left of the one before goes."""
        torch.set_num_threads(self._num_threads)  # of this very thread, which runs the forwards
        denoiser = new_denoiser(self._model, spec, embedding, negative)
        self._worker = StageWorker(self._number, denoiser)
        self._is_abandoned = False

    @ray.method(concurrency_group=CONTROL)  # type: ignore[untyped-decorator]
    def abandon(self) -> None:
        """Pass over the forwards that are queued, at once; until the next video begins."""
        self._is_abandoned = True

    def run(
        self, routed: Routed, latent_BCTHW: torch.Tensor | None, after: object, senders: Sequence[Routed], *sent: Any
    ) -> tuple[torch.Tensor | None, tuple[Entry, ...], Timing]:
        """Run one forward once `sent` has come: KV that other actors published in the forwards `senders`.

        `after` is only waited for.
        """
        del after
        worker = self._worker
        if worker is None:
            raise RuntimeError("no video was begun: call begin() first")
        begin_s = time.monotonic()
        if self._is_abandoned:
            return None, (), Timing(begin_s, begin_s, 0)
        device = self._model.wan.device
        for sender, entries in zip(senders, sent, strict=True):
            worker.receive(sender, tuple(tuple(kv.to(device) for kv in entry) for entry in entries))
        result = worker.run(routed, None if latent_BCTHW is None else latent_BCTHW.to(device))
        latent = None if result.latent_BCTHW is None else result.latent_BCTHW.cpu()
        is_read_elsewhere = any(number != self._number for number in routed.keeps)
        published = (
            tuple(tuple(kv.to("cpu") for kv in entry) for entry in result.published) if is_read_elsewhere else ()
        )
        return latent, published, Timing(begin_s, time.monotonic(), worker.bank.num_bytes)

    def end(self) -> None:
        """Let the video's KV go."""
        self._worker = None


class Wavefront:
    """Renders long videos on a gang of its own; starts it when a video comes and there is none."""

    def __init__(self, config: GangConfig) -> None:
        self._config = config
        self._group: PlacementGroup | None = None
        self._actors: list[Any] = []

    def start(self) -> None:
        """Place the gang, whole or not at all, and load its weights.

        Raises GangUnplaceable when the cluster has no room for all actors within `place_timeout_s`.
        """
        if self._actors:
            return
        config = self._config
        self._group = place(
            [Bundle(num_cpus=config.num_cpus, num_gpus=config.num_gpus)] * config.num_workers,
            kind="wavefront",
            strategy=config.strategy,
            timeout_s=config.place_timeout_s,
        )
        make = ray.remote(concurrency_groups={CONTROL: 1})(StageActor)
        self._actors = [
            make.options(
                num_cpus=config.num_cpus,
                num_gpus=config.num_gpus,
                max_restarts=0,
                **bundle_options(self._group, number),
            ).remote(number, config)
            for number in range(config.num_workers)
        ]
        try:
            ray.get([actor.__ray_ready__.remote() for actor in self._actors], timeout=config.start_timeout_s)
        except Exception:
            self.close()
            raise

    def close(self) -> None:
        """End the gang and give its resources back; nothing of it is left."""
        for actor in self._actors:
            ray.kill(actor)
        self._actors = []
        if self._group is not None:
            remove_placement_group(self._group)
            self._group = None

    def render(
        self,
        spec: LongVideoSpec,
        embedding: PromptEmbedding,
        negative: PromptEmbedding | None,
        *,
        facts: RunFacts,
        should_stop: Callable[[], bool],
    ) -> Iterator[Delivery]:
        """Yield latents as they are finished, in order.

        Raises GangLost when an actor ended, Cancelled once `should_stop` says so, and whatever a forward raised. The
        gang goes on to the next video after anything but a loss.
        """
        self.start()
        try:
            yield from self._render(spec, embedding, negative, facts=facts, should_stop=should_stop)
        except RayActorError as error:
            logger.warning("the gang has lost an actor: %s", error)
            self.close()
            raise GangLost(f"an actor of the gang has ended: {type(error).__name__}") from error
        except RayTaskError as error:
            raise error.cause from error

    def _render(
        self,
        spec: LongVideoSpec,
        embedding: PromptEmbedding,
        negative: PromptEmbedding | None,
        *,
        facts: RunFacts,
        should_stop: Callable[[], bool],
    ) -> Iterator[Delivery]:
        ray.get([actor.begin.remote(spec, embedding, negative) for actor in self._actors])
        run = _Submission(self._actors)
        in_flight: collections.deque[tuple[range, Any]] = collections.deque()
        most = spec.layout.num_stages + CHUNKS_IN_FLIGHT
        forwards = list(list_forwards(spec.method, spec.layout, self._config.placement))
        try:
            for routed in route(forwards):
                latent_ref = run.submit(routed)
                if routed.forward.delivers is not None:
                    in_flight.append((routed.forward.delivers, latent_ref))
                if len(in_flight) == most:
                    yield _await_delivery(*in_flight.popleft(), should_stop=should_stop)
            while in_flight:
                yield _await_delivery(*in_flight.popleft(), should_stop=should_stop)
            run.report(facts)
        finally:
            for actor in self._actors:
                # Ray's own cancel of a call that waits for its arguments leaves a gap in the actor's queue.
                actor.abandon.remote()
                actor.end.remote()


class _Submission:
    """The forwards of one video as actor calls: what was submitted, and the references that later ones need."""

    def __init__(self, actors: Sequence[Any]) -> None:
        self._actors = actors
        self._latents: dict[tuple[Source, int], Any] = {}
        self._published: dict[int, dict[KvKey, tuple[Routed, Any]]] = collections.defaultdict(dict)
        """By worker, what others have made for it and it was not sent yet."""
        self._entered: dict[int, Any] = {}
        self._timings: list[tuple[Forward, Any]] = []

    def submit(self, routed: Routed) -> Any:
        """Queue a forward on its actor and give the reference of its latent."""
        forward = routed.forward
        place = (forward.source, forward.unit)
        senders = self._senders(forward)
        after = None if forward.after_chunk is None else self._entered[forward.after_chunk]
        latent_ref, published_ref, timing_ref = (
            self._actors[forward.worker]
            .run.options(num_returns=3)
            .remote(routed, self._latents.get(place), after, [one for one, _ in senders], *[ref for _, ref in senders])
        )
        if routed.is_last:
            self._latents.pop(place, None)
        elif forward.advances:
            self._latents[place] = latent_ref
        if forward.source is Source.CHUNK and forward.stage == 0:
            self._entered[forward.unit] = timing_ref
        for worker, keys in routed.keeps.items():
            if worker != forward.worker:
                self._published[worker].update(dict.fromkeys(keys, (routed, published_ref)))
        self._timings.append((forward, timing_ref))
        return latent_ref

    def _senders(self, forward: Forward) -> list[tuple[Routed, Any]]:
        """Find what the forward reads that its worker has not been sent yet, each published result once."""
        waiting, found = self._published[forward.worker], dict[int, tuple[Routed, Any]]()
        for span in forward.reads:
            for key in keys_of(span):
                if key in waiting:
                    routed, ref = waiting[key]
                    found[id(ref)] = (routed, ref)
                    for sent in routed.keeps[forward.worker]:
                        del waiting[sent]
        return list(found.values())

    def report(self, facts: RunFacts) -> None:
        """Fill in what was run."""
        spans: dict[int, list[Timing]] = collections.defaultdict(list)
        for (forward, _), timing in zip(self._timings, ray.get([ref for _, ref in self._timings]), strict=True):
            facts.count(forward, timing.kv_bytes)
            spans[forward.worker].append(timing)
        for worker, timings in spans.items():
            busy = sum(timing.end_s - timing.begin_s for timing in timings)
            facts.wait_s[worker] = timings[-1].end_s - timings[0].begin_s - busy


def _await_delivery(positions: range, latent_ref: Any, *, should_stop: Callable[[], bool]) -> Delivery:
    while True:
        if should_stop():
            raise Cancelled(f"stopped before latents {positions.start} to {positions.stop - 1}")
        ready, _ = ray.wait([latent_ref], timeout=POLL_S)
        if ready:
            return Delivery(positions=positions, latent_BCTHW=ray.get(latent_ref))
