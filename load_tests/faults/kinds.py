"""Every kind of fault that is injected into a running server, each as one function that ends when the fault does.

What a fault does to jobs is judged elsewhere. A fault may find nothing to break, such as a process that another fault
has just ended; then it did nothing.
"""

import contextlib
import random
import resource
import signal
import time
from collections.abc import Callable, Mapping
from typing import Final

import psutil
import redis
import torch

from cache_store.contracts import LatentKey, LatentRecord
from cache_store.latents.redis import RedisLatentStore
from load_tests.faults.plant import PARTS, Plant

PAUSE_S: Final = 2.0
TENANT: Final = "default"

Fault = Callable[[Plant, random.Random], None]


def _kill(part: str) -> Fault:
    def fault(plant: Plant, draw: random.Random) -> None:
        pids = plant.pids(part)
        if pids:
            plant.send(draw.choice(pids), signal.SIGKILL)

    return fault


def _stall(part: str) -> Fault:
    def fault(plant: Plant, draw: random.Random) -> None:
        pids = plant.pids(part)
        if not pids:
            return
        pid = draw.choice(pids)
        plant.send(pid, signal.SIGSTOP)
        try:
            time.sleep(PAUSE_S)
        finally:
            plant.send(pid, signal.SIGCONT)

    return fault


def _starve(plant: Plant, _draw: random.Random) -> None:
    """Give the denoiser no more memory than it has, wherever in a clip it is."""
    unlimited = (resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    for pid in plant.pids("Denoiser"):
        with contextlib.suppress(ProcessLookupError, psutil.NoSuchProcess):
            # Half of the addresses in use: every further mapping fails, which takes large tensors first.
            resource.prlimit(pid, resource.RLIMIT_AS, (psutil.Process(pid).memory_info().vms // 2, unlimited[1]))
            try:
                time.sleep(PAUSE_S)
            finally:
                resource.prlimit(pid, resource.RLIMIT_AS, unlimited)


def _kill_store(plant: Plant, _draw: random.Random) -> None:
    plant.send(plant.store_pid(), signal.SIGKILL)
    time.sleep(0.5)
    plant.store.start()


def _stall_store(plant: Plant, _draw: random.Random) -> None:
    pid = plant.store_pid()
    plant.send(pid, signal.SIGSTOP)
    try:
        time.sleep(PAUSE_S)
    finally:
        plant.send(pid, signal.SIGCONT)


def _slow_network(plant: Plant, _draw: random.Random) -> None:
    with plant.network.slow(0.2):
        time.sleep(PAUSE_S)


def _cut_network(plant: Plant, _draw: random.Random) -> None:
    plant.network.cut()


def _some_source(plant: Plant, draw: random.Random) -> bytes | None:
    names: list[bytes] = sorted(plant.redis().scan_iter(match=f"reprise:latents:{TENANT}:*"))
    return draw.choice(names) if names else None


def _damage_latents(plant: Plant, draw: random.Random) -> None:
    """Turn a bit of every value of a source, cut them, or write what was never ours."""
    name = _some_source(plant, draw)
    if name is None:
        return
    client = plant.redis()
    values: dict[bytes, bytes] = client.hgetall(name)  # type: ignore[assignment]  # nothing is decoded here
    for field, value in values.items():
        match draw.randrange(3):
            case 0:
                place = draw.randrange(len(value))
                damaged = value[:place] + bytes([value[place] ^ (1 << draw.randrange(8))]) + value[place + 1 :]
            case 1:
                damaged = value[: draw.randrange(len(value))]
            case _:
                damaged = draw.randbytes(64)
        client.hset(name, field, damaged)


def _poison_latents(plant: Plant, draw: random.Random) -> None:
    """Write latents that pass every check of the store and are not numbers."""
    name = _some_source(plant, draw)
    if name is None:
        return
    source_id = name.decode().rpartition(":")[2]
    latents = RedisLatentStore(plant.redis(), ttl_s=plant.config.store.entry_ttl_s)
    for step in latents.sizes(TENANT, source_id):
        key = LatentKey(tenant=TENANT, source_id=source_id, step=step)
        record = latents.get(key)
        if record is not None:
            poison = torch.full(record.shape, float("nan"), dtype=getattr(torch, record.dtype))
            data = poison.view(torch.uint8).numpy().tobytes()
            latents.put(key, LatentRecord(dtype=record.dtype, shape=record.shape, data=data))


def _drop_latents(plant: Plant, draw: random.Random) -> None:
    """Remove a source's latents and leave its entry, which then promises too much."""
    name = _some_source(plant, draw)
    if name is not None:
        plant.redis().delete(name)


def _block_files(plant: Plant, _draw: random.Random) -> None:
    """Let no file be written for a moment, as a full disk does: a file stands where the folder was."""
    folder, aside = plant.folder / TENANT, plant.folder / "aside"
    if not folder.is_dir():
        return
    folder.rename(aside)
    folder.write_bytes(b"")
    try:
        time.sleep(0.5)
    finally:
        folder.unlink()
        aside.rename(folder)


FAULTS: Final[Mapping[str, Fault]] = {
    **{f"kill {part}": _kill(part) for part in PARTS},
    **{f"stall {part}": _stall(part) for part in PARTS},
    "starve Denoiser": _starve,
    "kill store": _kill_store,
    "stall store": _stall_store,
    "slow network": _slow_network,
    "cut network": _cut_network,
    "damage latents": _damage_latents,
    "poison latents": _poison_latents,
    "drop latents": _drop_latents,
    "block files": _block_files,
}


def inject(name: str, plant: Plant, draw: random.Random) -> None:
    """Break one thing and mend it again; a store that is away at this moment has nothing to be broken."""
    with contextlib.suppress(redis.ConnectionError, redis.TimeoutError):
        FAULTS[name](plant, draw)
