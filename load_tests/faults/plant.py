"""A whole server to be broken: its store behind a network of ours, its processes by name, its files.

Runs Ray and Serve in this process's own session, so every part is a descendant and nothing else on the machine is
touched.
"""

import contextlib
import dataclasses
import logging
import pathlib
import signal
from collections.abc import Iterator
from typing import Any

import psutil
import redis

from cache_store.connection import connect
from cache_store.embedded import EmbeddedConfig, EmbeddedValkey
from deployments.config import AppConfig
from deployments.serve import APP_NAME, free_port
from load_tests.faults.network import FaultyNetwork

PARTS = ("Denoiser", "Router", "Retrieval", "Embedder", "MaskGenerator", "Api")
"""Deployments whose processes are broken; the proxy and Ray's own are Ray's to keep alive."""


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Plant:
    """A running server."""

    url: str
    config: AppConfig
    store: EmbeddedValkey
    network: FaultyNetwork

    def pids(self, part: str) -> list[int]:
        """Find the processes of a deployment: Ray names a worker by what it runs."""
        workers = psutil.Process().children(recursive=True)
        found = []
        for worker in workers:
            with contextlib.suppress(psutil.Error):
                if f":{part}" in " ".join(worker.cmdline()) and "ServeReplica" in worker.cmdline()[0]:
                    found.append(worker.pid)
        return found

    def store_pid(self) -> int:
        """Find the store's process."""
        return int(self.redis().info("server")["process_id"])

    def redis(self) -> redis.Redis:
        """Give a client that no fault of the network reaches."""
        return connect(self.store.url, timeout_s=10.0)

    def send(self, pid: int, signum: signal.Signals) -> None:
        """Send a signal; a process that has just ended gets none."""
        with contextlib.suppress(psutil.NoSuchProcess):
            psutil.Process(pid).send_signal(signum)

    @property
    def folder(self) -> pathlib.Path:
        """Give the folder of all tenants' files."""
        return pathlib.Path(self.config.artifacts())


@contextlib.contextmanager
def running(folder: pathlib.Path, **values: Any) -> Iterator[Plant]:
    """Start a server with its data in a folder; `values` are further keys of AppConfig."""
    import ray
    from ray import serve

    from deployments.app import build_app

    store = EmbeddedValkey(EmbeddedConfig(data_dir=folder / "store", max_memory_bytes=2 << 30))
    store.start()
    network = FaultyNetwork(pathlib.Path(store.url.removeprefix("unix://")))
    config = AppConfig.model_validate(
        {
            "preset": "tiny-4step",
            "data_dir": str(folder),
            "store": {"url": f"redis://127.0.0.1:{network.port}"},
            "router": {"max_attempts": 5, "lease_timeout_s": 3.0},
            "long": {"enabled": False},
            "live": {"enabled": False},
            **values,
        }
    )
    port = free_port()
    ray.init(
        address="local",
        num_cpus=8,  # logical: all parts must fit on any machine
        object_store_memory=256 << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.ERROR,
        configure_logging=False,
    )
    try:
        serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config={"log_level": "ERROR"})
        serve.run(build_app(config), name=APP_NAME, route_prefix="/")
        yield Plant(url=f"http://127.0.0.1:{port}", config=config, store=store, network=network)
    finally:
        serve.shutdown()
        ray.shutdown()
        network.close()
        store.stop()
