"""What is left over in a server that has nothing to do: files, latents, queue entries or processes of nobody."""

import dataclasses
import time
from collections.abc import Collection
from typing import Any, Final

from load_tests.faults.kinds import TENANT
from load_tests.faults.plant import PARTS, Plant

SETTLE_S: Final = 90.0
"""In which retried purges, masks and restarts of the last fault must be done."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Leftovers:
    """Nothing of this should be."""

    unfinished: int
    """Jobs in the queues."""
    work_s: float
    files: tuple[str, ...]
    """Folders of videos that have no record."""
    latents: tuple[str, ...]
    """Latents of videos that were deleted."""
    entries: tuple[str, ...]
    purges: int
    """Deleted videos whose latents have not been asked away yet."""
    processes: dict[str, int]
    """Replicas too many or too few, by deployment."""

    @property
    def count(self) -> int:
        """Count all of it."""
        things = len(self.files) + len(self.latents) + len(self.entries)
        return self.unfinished + (self.work_s > 1e-3) + things + self.purges + sum(map(abs, self.processes.values()))


def survey(plant: Plant, *, deleted: Collection[str]) -> Leftovers:
    """Look, again and again until everything is tidy or has had its time."""
    deadline = time.monotonic() + SETTLE_S
    while True:
        found = _look(plant, set(deleted))
        if not found.count or time.monotonic() > deadline:
            return found
        time.sleep(1.0)


def _look(plant: Plant, deleted: set[str]) -> Leftovers:
    client: Any = plant.redis()
    records = {_last(name) for name in client.scan_iter(match="reprise:{jobs}:job:*")}
    queues = list(client.scan_iter(match="reprise:{jobs}:*:queue:*"))
    works = list(client.scan_iter(match="reprise:{jobs}:*:work"))
    folder = plant.folder / TENANT
    files = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    latents = {_last(name) for name in client.scan_iter(match="reprise:latents:*")}
    entries = {_last(name) for name in client.scan_iter(match="reprise:entry:*")}
    return Leftovers(
        unfinished=sum(client.xlen(queue) for queue in queues),
        work_s=sum(abs(float(seconds)) for work in works for seconds in client.hvals(work)),
        files=tuple(sorted(files - records)),
        latents=tuple(sorted(latents & deleted)),
        entries=tuple(sorted(entries & deleted)),
        purges=client.zcard("reprise:{jobs}:purges"),
        processes={part: len(plant.pids(part)) - 1 for part in PARTS if len(plant.pids(part)) != 1},
    )


def _last(name: bytes) -> str:
    return name.decode().rpartition(":")[2]
