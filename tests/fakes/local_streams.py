"""Live streams in this very process, for the HTTP edge without Ray."""

from collections.abc import Sequence

from actors.live_messages import MediaFormat, Output, StreamSpec
from actors.stream_group import StreamGroup


class LocalStream:
    """A LiveStream of a group beside it."""

    def __init__(self, group: StreamGroup, token: str) -> None:
        self._group, self.token = group, token

    async def attach(self, media: MediaFormat) -> str:
        return self._group.attach(self.token, media)

    async def detach(self, viewer_id: str) -> None:
        self._group.detach(self.token, viewer_id)

    async def prompt(self, text: str, *, sequence: int, event_id: str | None) -> None:
        self._group.prompt(self.token, text, sequence=sequence, event_id=event_id)

    async def stop(self) -> None:
        self._group.stop(self.token)

    async def take(self, viewer_id: str, wait_s: float) -> Sequence[Output]:
        return await self._group.take(self.token, viewer_id, wait_s)


class LocalStreams:
    """The LiveStreams of one group."""

    def __init__(self, group: StreamGroup) -> None:
        self.group = group

    async def open(self, spec: StreamSpec) -> LocalStream:
        return LocalStream(self.group, self.group.open(spec))

    async def find(self, token: str, *, tenant: str) -> LocalStream:
        self.group.check(token, tenant)
        return LocalStream(self.group, token)
