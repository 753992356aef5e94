"""Live streams as the HTTP edge sees them, over Ray: every call of a stream's group from outside is made here.

A token names the group and the stream, so any process finds both.
"""

import asyncio
from collections.abc import Awaitable, Sequence
from typing import Any, Final, TypeVar

import ray
from ray.exceptions import RayActorError, RayTaskError
from ray.serve.handle import DeploymentHandle

from actors.live_messages import MediaFormat, Output, StreamSpec
from actors.stream_group import StreamUnknown

LIVE_NAMESPACE: Final = "reprise-live"
MOST_CALLS: Final = 1000
"""Calls that a group answers side by side; every viewer has one open."""
_GONE: Final = "no stream has this token: it has ended, or never was"

Result = TypeVar("Result")


async def answer_of(call: Awaitable[Result]) -> Result:
    """Await a call in the errors that a stream knows."""
    try:
        return await call
    except RayTaskError as error:
        raise error.cause from None
    except RayActorError as error:
        raise StreamUnknown("the stream's workers are gone, and the stream with them") from error


class RayLiveStream:
    """A LiveStream in a group's actor."""

    def __init__(self, group: Any, name: str, token: str) -> None:
        self._group, self._token = group, token
        self.token = f"{name}.{token}"

    async def attach(self, media: MediaFormat) -> str:
        """Let a viewer watch."""
        viewer_id: str = await answer_of(self._group.attach.remote(self._token, media))
        return viewer_id

    async def detach(self, viewer_id: str) -> None:
        """Forget a viewer."""
        await answer_of(self._group.detach.remote(self._token, viewer_id))

    async def prompt(self, text: str, *, sequence: int, event_id: str | None) -> None:
        """Change the prompt."""
        await answer_of(self._group.prompt.remote(self._token, text, sequence, event_id))

    async def stop(self) -> None:
        """End the stream."""
        await answer_of(self._group.stop.remote(self._token))

    async def take(self, viewer_id: str, wait_s: float) -> Sequence[Output]:
        """Give what a viewer has not seen."""
        outputs: list[Output] = await answer_of(self._group.take.remote(self._token, viewer_id, wait_s))
        return outputs


class RayLiveStreams:
    """The LiveStreams of the application."""

    def __init__(self, handle: DeploymentHandle) -> None:
        self._handle = handle

    async def open(self, spec: StreamSpec) -> RayLiveStream:
        """Begin a stream in one of the groups."""
        name, token = await answer_of(self._handle.open.remote(spec))
        return RayLiveStream(await self._group(name), name, token)

    async def find(self, token: str, *, tenant: str) -> RayLiveStream:
        """Come back to a tenant's stream."""
        name, _, rest = token.partition(".")
        if not rest:
            raise StreamUnknown(_GONE)
        group = await self._group(name)
        await answer_of(group.check.remote(rest, tenant))
        return RayLiveStream(group, name, rest)

    async def _group(self, name: str) -> Any:
        try:
            return await asyncio.to_thread(ray.get_actor, name, LIVE_NAMESPACE)
        except ValueError as error:
            raise StreamUnknown(_GONE) from error
