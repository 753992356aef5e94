"""The deployment that owns a group of live streams: starts it, lets streams in, and ends it.

A replica is one group. Viewers talk to the group itself, an actor of its own name, so that they find their stream
from any replica of the API. Knows nothing about sockets.
"""

import asyncio
import secrets
from typing import Any

import ray

from actors.live_messages import LiveFacts, StreamSpec
from actors.stream_workers import LiveConfig, StreamGroupActor
from deployments.live_handle import LIVE_NAMESPACE, MOST_CALLS, answer_of

HEALTH_TIMEOUT_S = 10.0


class LiveDeployment:
    """One group of workers and its streams."""

    async def __init__(self, config: LiveConfig) -> None:  # type: ignore[misc] # Serve awaits it
        self._name = f"live-{secrets.token_hex(6)}"
        options = {"name": self._name, "namespace": LIVE_NAMESPACE, "num_cpus": 0, "max_concurrency": MOST_CALLS}
        self._group: Any = ray.remote(StreamGroupActor).options(**options).remote(config)
        self._facts: LiveFacts = await self._group.start.remote()

    async def open(self, spec: StreamSpec) -> tuple[str, str]:
        """Begin a stream; the group's name and the stream's token in it. Raises StreamsFull."""
        token: str = await answer_of(self._group.open.remote(spec))
        return self._name, token

    async def facts(self) -> LiveFacts:
        """Give what the group makes."""
        return self._facts

    async def check_health(self) -> None:
        """Fail when the group is gone or does not answer; Serve then starts another, with workers of its own."""
        await asyncio.wait_for(self._group.stats.remote(), HEALTH_TIMEOUT_S)

    def __del__(self) -> None:
        if hasattr(self, "_group"):
            ray.kill(self._group)
