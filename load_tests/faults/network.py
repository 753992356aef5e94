"""A slow or broken network in front of a server on a Unix socket: a TCP proxy whose faults are turned on and off."""

import asyncio
import contextlib
import pathlib
import threading
from collections.abc import Iterator
from typing import Final

_CHUNK: Final = 1 << 16


class FaultyNetwork:
    """A proxy in a thread of its own; `port` is where it listens."""

    def __init__(self, target: pathlib.Path) -> None:
        self._target = target
        self._delay_s = 0.0
        self._pairs: set[asyncio.Task[None]] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._server = asyncio.run_coroutine_threadsafe(
            asyncio.start_server(self._serve, "127.0.0.1", 0), self._loop
        ).result()
        self.port: int = self._server.sockets[0].getsockname()[1]

    @contextlib.contextmanager
    def slow(self, delay_s: float) -> Iterator[None]:
        """Hold every piece of data back for a while."""
        self._delay_s = delay_s
        try:
            yield
        finally:
            self._delay_s = 0.0

    def cut(self) -> None:
        """Break every connection there is."""
        self._loop.call_soon_threadsafe(lambda: [pair.cancel() for pair in self._pairs])

    def close(self) -> None:
        """Stop listening and break what is left."""
        self._loop.call_soon_threadsafe(self._server.close)
        self.cut()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(timeout=5)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        pair = asyncio.current_task()
        assert pair is not None
        self._pairs.add(pair)
        far: asyncio.StreamWriter | None = None
        try:
            far_reader, far = await asyncio.open_unix_connection(str(self._target))
            ways = [asyncio.create_task(self._pass(reader, far)), asyncio.create_task(self._pass(far_reader, writer))]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
        except (OSError, asyncio.CancelledError):
            pass  # the server is away, or the connection is cut on purpose
        finally:
            self._pairs.discard(pair)
            for end in (writer, far):
                if end is not None:
                    end.transport.abort()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(_CHUNK):
                if self._delay_s:
                    await asyncio.sleep(self._delay_s)
                writer.write(data)
                await writer.drain()
