"""One local Ray and one application with the bundled model for all tests of this folder, driven over real HTTP.

Tests share the server, so each keeps to a negative prompt of its own: that is a reuse partition of its own.
"""

import dataclasses
import logging
import pathlib
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import ray
import redis
from openai import OpenAI
from openai.types import Video
from ray import serve

from cache_store.connection import connect
from cache_store.embedded import EmbeddedConfig, EmbeddedValkey
from cache_store.latents.redis import RedisLatentStore
from deployments.app import build_app
from deployments.config import AppConfig
from deployments.config_sections import LogSection
from deployments.serve import APP_NAME, drain, free_port

STEPS = 8
FRAMES = 9
FPS = 8
TENANT = "default"


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Server:
    """The application, where it listens and where its data lies."""

    config: AppConfig
    port: int

    @property
    def url(self) -> str:
        """Give the address of the HTTP server."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def store_url(self) -> str:
        """Give the URL of the embedded store."""
        return EmbeddedValkey(EmbeddedConfig(data_dir=self.config.data_path() / "store")).url

    def start(self) -> None:
        """Start the application and wait until every replica is up."""
        serve.run(build_app(self.config), name=APP_NAME, route_prefix="/")

    def stop(self) -> None:
        """Stop the application when its running jobs are done; Ray goes on."""
        drain()
        serve.delete(APP_NAME)

    @property
    def jobs_file(self) -> pathlib.Path:
        """Give the file with a line for each job that ended."""
        assert self.config.log.jobs_file is not None
        return pathlib.Path(self.config.log.jobs_file)

    def latent_steps(self, video_id: str) -> set[int]:
        """Give the steps of which latents are stored of a video."""
        latents = RedisLatentStore(connect(self.store_url, timeout_s=10.0), ttl_s=60)
        return set(latents.sizes(TENANT, video_id))

    def mask(self, video_id: str, phrase: str) -> bytes | None:
        """Give the stored mask of an object of a video."""
        latents = RedisLatentStore(connect(self.store_url, timeout_s=10.0), ttl_s=60)
        return latents.mask(TENANT, video_id, phrase)

    def is_source(self, video_id: str) -> bool:
        """Tell whether later requests find a video's latents; that is a little after its caller has it."""
        client = connect(self.store_url, timeout_s=10.0)
        return any(True for _ in client.scan_iter(match=f"reprise:entry:*:{video_id}"))

    def files(self, video_id: str) -> list[str]:
        """Give the names of a video's files."""
        folder = pathlib.Path(self.config.artifacts()) / TENANT / video_id
        return sorted(path.name for path in folder.iterdir()) if folder.exists() else []


@pytest.fixture(scope="package")
def server() -> Iterator[Server]:
    ray.init(
        address="local",
        num_cpus=8,  # logical: the replicas' shares must fit on any machine
        object_store_memory=128 << 20,
        include_dashboard=False,
        log_to_driver=False,
        logging_level=logging.WARNING,
        configure_logging=False,
    )
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="reprise-serve-") as folder:
        server = Server(config=AppConfig(data_dir=folder, log=LogSection(jobs_file=f"{folder}/jobs.log")), port=port)
        try:
            serve.start(http_options={"host": "127.0.0.1", "port": port}, logging_config={"log_level": "WARNING"})
            server.start()
            yield server
        finally:
            serve.shutdown()
            ray.shutdown()
            _stop_store(server)


def _stop_store(server: Server) -> None:
    """Leave no Valkey behind; one that outlives its application is a fault."""
    client = connect(server.store_url, timeout_s=5.0)
    try:
        client.ping()
    except redis.ConnectionError:
        return
    client.shutdown(nosave=True)
    raise AssertionError("the embedded store outlived the application")


@dataclasses.dataclass(frozen=True, kw_only=True, slots=True)
class Studio:
    """The official client, and clips in a partition of one test's own."""

    server: Server
    client: OpenAI
    partition: str

    def create(self, prompt: str, **fields: Any) -> Video:
        """Post a short clip."""
        body = {"num_inference_steps": STEPS, "num_frames": FRAMES, "fps": FPS, "negative_prompt": self.partition}
        return self.client.videos.create(prompt=prompt, extra_body=body | fields)

    def make(self, prompt: str, **fields: Any) -> Video:
        """Post a short clip and wait for it."""
        return self.completed(self.create(prompt, **fields).id)

    def source(self, prompt: str, **fields: Any) -> Video:
        """Post a short clip and wait until it can be reused."""
        video = self.make(prompt, **fields)
        while not self.server.is_source(video.id):
            time.sleep(0.05)
        return video

    def completed(self, video_id: str) -> Video:
        """Wait until a job has completed."""
        video = self.wait(video_id, lambda video: video.status in ("completed", "failed"))
        assert video.status == "completed", video.error
        return video

    def wait(self, video_id: str, holds: Callable[[Video], bool]) -> Video:
        """Ask until something holds; the test's own timeout ends a wait in vain."""
        while not holds(video := self.client.videos.retrieve(video_id)):
            time.sleep(0.05)
        return video


@pytest.fixture
def studio(server: Server, request: pytest.FixtureRequest) -> Iterator[Studio]:
    client = OpenAI(
        api_key="unused", base_url=f"{server.url}/v1", timeout=60, max_retries=0, _strict_response_validation=True
    )
    with client:
        yield Studio(server=server, client=client, partition=request.node.name)


def facts_of(video: Video) -> dict[str, Any]:
    """Give our own key of a video object of the official client."""
    facts: dict[str, Any] = getattr(video, "reuse")  # noqa: B009 - an extra field, unknown to the client's types
    return facts
