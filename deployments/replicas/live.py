"""The deployment that owns a group of live streams: starts it, lets streams in, and ends it.

A replica is one group. Viewers talk to the group itself, an actor of its own name, so that they find their stream
from any replica of the API. Knows nothing about sockets.
"""

import asyncio
import logging
import secrets
from typing import Any

import ray
from ray.exceptions import RayActorError

from actors.live_messages import StreamSpec
from actors.stream_workers import LiveConfig, StreamGroupActor
from deployments.api.artifacts import ArtifactStore
from deployments.api.jobs import JobStore
from deployments.config import AppConfig
from deployments.live_handle import LIVE_NAMESPACE, MOST_CALLS, answer_of
from deployments.metrics import RayMetrics, Sample, record_regularly, stream_samples
from deployments.recording import keep_recording
from deployments.replicas.store import Store, store_url

logger = logging.getLogger(__name__)

HEALTH_TIMEOUT_S = 10.0
RECORDING_WAIT_S = 30.0
CLOSE_TIMEOUT_S = 10.0


class LiveDeployment:
    """One group of workers and its streams."""

    async def __init__(self, live: LiveConfig, config: AppConfig, store: Store) -> None:  # type: ignore[misc] # Serve
        self._name = f"live-{secrets.token_hex(6)}"
        options = {"name": self._name, "namespace": LIVE_NAMESPACE, "num_cpus": 0, "max_concurrency": MOST_CALLS}
        self._group: Any = ray.remote(StreamGroupActor).options(**options).remote(live)
        await self._group.start.remote()
        self._jobs = JobStore.connect(await store_url(store), config.job_store_config())
        self._artifacts = ArtifactStore(config.artifacts())
        self._size = config.model_preset().default_size
        self._max_sequence_length = live.workers.worker.preset.model.max_sequence_length
        self._keeping = asyncio.create_task(self._keep_recordings())
        self._watching = asyncio.create_task(record_regularly(RayMetrics(), self._read))

    async def open(self, spec: StreamSpec) -> tuple[str, str]:
        """Begin a stream; the group's name and the stream's token in it. Raises StreamsFull."""
        token: str = await answer_of(self._group.open.remote(spec))
        return self._name, token

    async def check_health(self) -> None:
        """Fail when the group is gone or does not answer; Serve then starts another, with workers of its own."""
        await asyncio.wait_for(self._group.stats.remote(), HEALTH_TIMEOUT_S)

    async def _read(self) -> list[Sample]:
        stats, figures = await asyncio.gather(self._group.stats.remote(), self._group.take_figures.remote())
        return stream_samples(stats, figures)

    async def _keep_recordings(self) -> None:
        while True:
            try:
                recording = await self._group.next_recording.remote(RECORDING_WAIT_S)
                if recording is not None:
                    video_id = await keep_recording(
                        recording,
                        self._jobs,
                        self._artifacts,
                        size=self._size,
                        max_sequence_length=self._max_sequence_length,
                    )
                    await self._group.kept.remote(recording.stream_id, video_id)
            except RayActorError:
                return  # the health check tells
            except Exception:  # a recording that cannot be kept is told as such to its viewer, when time is up
                logger.exception("a recording could not be kept")
                await asyncio.sleep(1.0)

    def __del__(self) -> None:
        if not hasattr(self, "_group"):
            return
        try:
            ray.get(self._group.close.remote(), timeout=CLOSE_TIMEOUT_S)  # viewers are told, the workers given back
        except Exception:  # whatever it is, the group ends now
            logger.exception("a group of streams did not close by itself")
        ray.kill(self._group)
