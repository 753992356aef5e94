"""The WebSocket `/v1/streams`: a viewer's messages to its stream, and what the stream shows back to the viewer.

A fault of a viewer's message is answered and the stream goes on; a viewer that goes away leaves its stream to come
back to. docs/stream-protocol.md is the contract. Knows nothing about how streams are made.
"""

import asyncio
import contextlib
import json
import logging
from typing import Any, Final

from fastapi import APIRouter, WebSocket
from starlette.websockets import WebSocketDisconnect, WebSocketState

from actors.live_messages import Output, StreamSpec
from actors.stream_group import StreamsFull, StreamUnknown
from actors.stream_session import StaleSequence
from deployments.api.auth import Caller, caller_of
from deployments.api.errors import ApiError, Conflict, InvalidRequest, NotFound, Unavailable
from deployments.api.live_schema import Message, Ping, Prompt, Start, Stop, read_message
from deployments.api.live_streams import LiveStream, LiveStreams
from deployments.api.schema import draw_seed, read_prompt
from deployments.api.services import ApiServices

logger = logging.getLogger(__name__)

START_TIMEOUT_S: Final = 30.0
TAKE_WAIT_S: Final = 5.0
SEND_TIMEOUT_S: Final = 30.0
"""After which a viewer whose connection takes nothing counts as gone."""
MOST_FAULTS: Final = 100
"""Messages of one connection that may be wrong."""
POLICY, TRY_LATER = 1008, 1013

router = APIRouter()


@router.websocket("/v1/streams")
async def stream(socket: WebSocket) -> None:
    """Serve one viewer."""
    await socket.accept()
    services: ApiServices = socket.app.state.services
    connection = _Connection(socket, services)
    try:
        await connection.serve(await caller_of(socket))
    except (WebSocketDisconnect, ConnectionError, TimeoutError):
        pass  # the viewer is gone, or takes nothing any more
    except ApiError as error:
        await connection.end(error)
    except Exception as error:
        logger.exception("a stream's connection broke: %s", type(error).__name__)
        await connection.end(ApiError("the server failed on this stream", code="internal_error"))


class _Connection:
    def __init__(self, socket: WebSocket, services: ApiServices) -> None:
        self._socket, self._services = socket, services
        self._sending = asyncio.Lock()
        """A message and the binary frames that follow it stay together."""

    async def serve(self, caller: Caller) -> None:
        live = self._services.live
        if live is None:
            raise Unavailable("this server has no model for live streams", code="streams_unavailable")
        try:
            start = await asyncio.wait_for(self._read_start(), START_TIMEOUT_S)
        except TimeoutError as error:
            raise InvalidRequest(f"no start came within {START_TIMEOUT_S:g} s", code="not_started") from error
        found, viewer_id = await self._begin(live, start, caller)
        watching = asyncio.create_task(self._watch(found, viewer_id))
        reading = asyncio.create_task(self._read(found))
        try:
            done, _ = await asyncio.wait({watching, reading}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            for task in (watching, reading):
                task.cancel()
            await asyncio.gather(watching, reading, return_exceptions=True)
            with contextlib.suppress(Exception):  # a group that is gone has forgotten the viewer too
                await found.detach(viewer_id)
        await self._close(1000)

    async def end(self, error: ApiError) -> None:
        """Tell why the connection ends."""
        with contextlib.suppress(Exception):
            await self._send(Output(_error(error)))
            await self._close(TRY_LATER if error.status in (429, 503) else POLICY)

    async def _read_start(self) -> Start:
        message = await self._receive()
        if not isinstance(message, Start):
            raise InvalidRequest("the first message must be of type start", param="type", code="not_started")
        return message

    async def _begin(self, live: LiveStreams, start: Start, caller: Caller) -> tuple[LiveStream, str]:
        if (start.prompt is None) == (start.token is None):
            raise InvalidRequest(
                "start needs a prompt, to begin a stream, or a token, to come back to one", param="prompt"
            )
        try:
            if start.token is not None:
                found = await live.find(start.token, tenant=caller.tenant)
            else:
                assert start.prompt is not None
                spec = StreamSpec(
                    prompt=read_prompt(start.prompt, self._services.settings.limits),
                    seed=draw_seed() if start.seed is None else start.seed,
                    sequence=start.sequence,
                    event_id=start.event_id,
                    waits_for_chunk=start.commitment == "chunk",
                    media=start.format,
                    record=start.record,
                    tenant=caller.tenant,
                    max_streams=caller.limits.max_streams,
                )
                found = await live.open(spec)
            return found, await found.attach(start.format)
        except StreamsFull as error:
            raise Unavailable(str(error), code="streams_full") from error
        except StreamUnknown as error:
            raise NotFound(str(error), param="token", code="stream_not_found") from error

    async def _read(self, found: LiveStream) -> None:
        """Do what the viewer says until it stops or leaves."""
        num_faults = 0
        while True:
            try:
                message = await self._receive()
                match message:
                    case Ping():
                        await self._send(Output({"type": "pong", "id": message.id}))
                    case Prompt():
                        text = read_prompt(message.prompt, self._services.settings.limits)
                        await found.prompt(text, sequence=message.sequence, event_id=message.event_id)
                    case Stop():
                        await found.stop()
                    case Start():
                        raise Conflict("this connection has its stream already", param="type", code="already_started")
            except StaleSequence as error:
                await self._send(Output(_error(Conflict(str(error), param="sequence", code="stale_sequence"))))
            except StreamUnknown:
                pass  # it has ended; what is left in its queue tells the viewer
            except ApiError as error:
                num_faults += 1
                if num_faults > MOST_FAULTS:
                    raise
                await self._send(Output(_error(error)))

    async def _watch(self, found: LiveStream, viewer_id: str) -> None:
        """Show the stream until it is done."""
        while True:
            try:
                outputs = await found.take(viewer_id, TAKE_WAIT_S)
            except StreamUnknown:
                await self._send(Output({"type": "done", "reason": "gone", "frames": None}))
                return
            for output in outputs:
                message = dict(output.message)
                if message["type"] == "started":
                    message["token"] = found.token
                await self._send(Output(message, output.parts))
                if message["type"] == "done":
                    return

    async def _receive(self) -> Message:
        event = await self._socket.receive()
        if event["type"] == "websocket.disconnect":
            raise WebSocketDisconnect(event.get("code", 1000))
        text = event.get("text")
        return read_message(event.get("bytes") if text is None else text)

    async def _send(self, output: Output) -> None:
        async with self._sending, asyncio.timeout(SEND_TIMEOUT_S):
            await self._socket.send_text(json.dumps(output.message))
            for part in output.parts:
                await self._socket.send_bytes(part)

    async def _close(self, code: int) -> None:
        if self._socket.client_state is WebSocketState.CONNECTED:
            with contextlib.suppress(RuntimeError):
                await self._socket.close(code)


def _error(error: ApiError) -> dict[str, Any]:
    body = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    return {"type": "error", "error": body}
