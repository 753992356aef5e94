"""What one worker holds while a video is made: the KV that its coming forwards read, and the forward itself.

`render` runs a whole list on one worker; a wavefront gives each worker its part of the list. Knows nothing about
processes or how KV and latents travel.

Shape letters: B batch, C latent channels, T latent frames, H, W latent grid.
"""

import dataclasses
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from torch import Tensor

from reprise.errors import Cancelled
from reprise.flashforward.denoiser import Entry, ForwardResult, StageDenoiser
from reprise.flashforward.routing import KvKey, Routed, keys_of, route
from reprise.flashforward.schedule import Forward, Role, Source


class KvBank:
    """Entries of KV that some forward to come reads."""

    def __init__(self) -> None:
        self._entries: dict[KvKey, Entry] = {}

    def __len__(self) -> int:
        """Count the entries."""
        return len(self._entries)

    @property
    def num_bytes(self) -> int:
        """Count the bytes of all entries."""
        return sum(kv.num_bytes for entry in self._entries.values() for kv in entry)

    def put(self, key: KvKey, entry: Entry) -> None:
        """Keep an entry."""
        self._entries[key] = entry

    def read(self, forward: Forward) -> list[Entry]:
        """Give what a forward reads, in its order; raise KeyError for an entry that is not there."""
        return [self._entries[key] for span in forward.reads for key in keys_of(span)]

    def forget(self, keys: Iterable[KvKey]) -> None:
        """Let entries go."""
        for key in keys:
            del self._entries[key]


class StageWorker:
    """One worker of a video, by its number in the schedule."""

    def __init__(self, number: int, denoiser: StageDenoiser) -> None:
        self.number, self.bank = number, KvBank()
        self._denoiser = denoiser

    def run(self, routed: Routed, latent_BCTHW: Tensor | None) -> ForwardResult:
        """Run a forward of this worker, keep what it will read of the result, forget what it has read last."""
        forward = routed.forward
        result = self._denoiser.run(forward, latent_BCTHW, self.bank.read(forward))
        self.bank.forget(routed.forgets)
        self.receive(routed, result.published)
        return result

    def receive(self, routed: Routed, published: Sequence[Entry]) -> None:
        """Keep what coming forwards of this worker read of what a forward, of any worker, has published."""
        kept = set(routed.keeps.get(self.number, ()))
        if not kept:
            return
        assert routed.forward.publishes is not None
        for key, entry in zip(keys_of(routed.forward.publishes), published, strict=True):
            if key in kept:
                self.bank.put(key, entry)


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Delivery:
    """Finished latents of a video, in float32."""

    positions: range
    latent_BCTHW: Tensor


@dataclasses.dataclass(slots=True)
class RunFacts:
    """What was run; grows while a video is made."""

    forwards: Counter[Role] = dataclasses.field(default_factory=Counter)
    peak_kv_bytes: int = 0
    """Most bytes of KV on one worker, between forwards."""
    workers: int = 0
    rounds: int = 0
    wait_s: dict[int, float] = dataclasses.field(default_factory=dict)
    """Seconds that each of several workers was idle between its first and last forward."""

    def count(self, forward: Forward, kv_bytes: int) -> None:
        """Take note of a forward that was run."""
        self.forwards[forward.role] += 1
        self.rounds = max(self.rounds, forward.round + 1)
        self.workers = max(self.workers, forward.worker + 1)
        self.peak_kv_bytes = max(self.peak_kv_bytes, kv_bytes)


def render(
    forwards: Sequence[Forward],
    denoiser: StageDenoiser,
    *,
    facts: RunFacts | None = None,
    starts: Mapping[tuple[Source, int], Tensor] | None = None,
    on_forward: Callable[[Forward], None] | None = None,
    should_stop: Callable[[], bool] = lambda: False,
) -> Iterator[Delivery]:
    """Run a list on one device, whatever workers it names, and yield latents as they are finished.

    `starts` are latents (B, C, T, H, W) of chunks or blocks whose first forwards the list leaves out.

    Raises Cancelled before the next forward once `should_stop` says so.
    """
    workers = {number: StageWorker(number, denoiser) for number in sorted({f.worker for f in forwards})}
    latents = dict(starts or {})
    facts = RunFacts() if facts is None else facts
    for routed in route(forwards):
        if should_stop():
            raise Cancelled(f"stopped before forward {facts.forwards.total() + 1} of {len(forwards)}")
        forward, worker = routed.forward, workers[routed.forward.worker]
        result = worker.run(routed, latents.get((forward.source, forward.unit)))
        for number in routed.keeps:
            if number != worker.number:
                workers[number].receive(routed, result.published)
        if routed.is_last:
            latents.pop((forward.source, forward.unit), None)
        elif result.latent_BCTHW is not None:
            latents[forward.source, forward.unit] = result.latent_BCTHW
        facts.count(forward, max(one.bank.num_bytes for one in workers.values()))
        if on_forward is not None:
            on_forward(forward)
        if forward.delivers is not None:
            assert result.latent_BCTHW is not None
            yield Delivery(positions=forward.delivers, latent_BCTHW=result.latent_BCTHW)
