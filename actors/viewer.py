"""One viewer's queue of a live stream: bounded, so that one that reads too slowly loses whole groups, never the stream.

Knows nothing about where groups come from or how they are sent.
"""

import asyncio
import collections
import contextlib
from typing import Any, Final

from actors.live_messages import MediaFormat, Output, ReadyGroup

MOST_MESSAGES: Final = 1000
"""Messages without pictures that wait for one viewer; the oldest go first."""


class Viewer:
    """One viewer's queue."""

    def __init__(self, media: MediaFormat, queued_groups: int) -> None:
        self.media = media
        self.num_dropped = 0
        self._queued_groups = queued_groups
        self._outputs: collections.deque[Output] = collections.deque()
        self._has_some = asyncio.Event()
        self._needs_header = True

    def push(self, message: dict[str, Any]) -> None:
        """Queue a message."""
        self._outputs.append(Output(message))
        if len(self._outputs) > MOST_MESSAGES:
            self._outputs.popleft()
        self._has_some.set()

    def show(self, message: dict[str, Any], group: ReadyGroup) -> None:
        """Queue a group; where too many wait, the oldest is dropped and said so in its place."""
        if self.media not in group.formats:
            return  # it was sampled before this viewer came
        parts = group.pictures
        if self.media is MediaFormat.MP4:
            parts = (group.header + group.fragment,) if self._needs_header else (group.fragment,)
            self._needs_header = False
        self._outputs.append(Output(message, parts))
        waiting = [place for place, output in enumerate(self._outputs) if output.parts]
        if len(waiting) > self._queued_groups:
            self._drop(waiting[0], group.header)
        self._has_some.set()

    async def take(self, wait_s: float) -> list[Output]:
        """Give what is queued, once there is something or time is up."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._has_some.wait(), wait_s)
        taken = list(self._outputs)
        self._outputs.clear()
        self._has_some.clear()
        return taken

    def _drop(self, place: int, header: bytes) -> None:
        dropped = self._outputs[place]
        self.num_dropped += 1
        lost = {"type": "dropped", "from": dropped.message["frame"], "frames": dropped.message["frames"]}
        self._outputs[place] = Output(lost)
        if header and dropped.parts[0].startswith(header):  # the next one must begin the file in its place
            after = next(number for number, output in enumerate(self._outputs) if output.parts)
            kept = self._outputs[after]
            self._outputs[after] = Output(kept.message, (header + kept.parts[0], *kept.parts[1:]))
