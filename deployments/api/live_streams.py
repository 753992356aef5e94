"""What the HTTP edge asks of live streams, wherever they run. Knows nothing about Ray or sockets."""

from collections.abc import Sequence
from typing import Protocol

from actors.live_messages import MediaFormat, Output, StreamSpec


class LiveStream(Protocol):
    """One stream, from wherever it runs; everything raises StreamUnknown once it has ended."""

    token: str

    async def attach(self, media: MediaFormat) -> str:
        """Let a viewer watch; gives the viewer's id."""
        ...

    async def detach(self, viewer_id: str) -> None:
        """Forget a viewer."""
        ...

    async def prompt(self, text: str, *, sequence: int, event_id: str | None) -> None:
        """Change the prompt; raises StaleSequence."""
        ...

    async def stop(self) -> None:
        """End the stream."""
        ...

    async def take(self, viewer_id: str, wait_s: float) -> Sequence[Output]:
        """Give what a viewer has not seen, waiting for something to be there."""
        ...


class LiveStreams(Protocol):
    """All streams of the server."""

    async def open(self, spec: StreamSpec) -> LiveStream:
        """Begin a stream; raises StreamsFull."""
        ...

    async def find(self, token: str, *, tenant: str) -> LiveStream:
        """Come back to a tenant's stream; raises StreamUnknown, as for one of another tenant."""
        ...
