"""The messages a viewer sends on `/v1/streams`, checked strictly; each fault names its field.

docs/stream-protocol.md tells what they mean. Knows nothing about sockets or streams.
"""

import json
from typing import Annotated, Final, Literal

from pydantic import Field, ValidationError

from actors.live_messages import MediaFormat
from deployments.api.errors import InvalidRequest
from deployments.api.schema import Body, Int64

MAX_MESSAGE_CHARACTERS: Final = 65_536
EventId = Annotated[str, Field(max_length=100)]
Sequence = Annotated[Int64, Field(ge=0)]


class Start(Body):
    """Begin a stream with a prompt, or with a token come back to one or watch it."""

    type: Literal["start"]
    prompt: str | None = None
    token: Annotated[str, Field(max_length=200)] | None = None
    sequence: Sequence = 0
    """Of the prompt."""
    event_id: EventId | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    format: MediaFormat = MediaFormat.MP4
    record: bool = False
    commitment: Literal["group", "chunk"] = "group"


class Prompt(Body):
    """Change the prompt."""

    type: Literal["prompt"]
    prompt: str
    sequence: Sequence
    event_id: EventId | None = None


class Ping(Body):
    """Ask for a sign of life."""

    type: Literal["ping"]
    id: Annotated[str, Field(max_length=100)] | None = None


class Stop(Body):
    """End the stream for all its viewers."""

    type: Literal["stop"]


Message = Start | Prompt | Ping | Stop
_KINDS: Final[dict[str, type[Message]]] = {"start": Start, "prompt": Prompt, "ping": Ping, "stop": Stop}


def read_message(raw: str | bytes | None) -> Message:
    """Read one frame of a viewer; raises InvalidRequest."""
    if not isinstance(raw, str):
        raise InvalidRequest("messages are JSON text, got a binary frame", code="invalid_message")
    if len(raw) > MAX_MESSAGE_CHARACTERS:
        raise InvalidRequest(
            f"a message has at most {MAX_MESSAGE_CHARACTERS} characters, got {len(raw)}", code="message_too_large"
        )
    try:
        value = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the message is not JSON: {str(error)[:100]}", code="invalid_message") from error
    kind = value.get("type") if isinstance(value, dict) else None
    if not isinstance(kind, str) or kind not in _KINDS:
        raise InvalidRequest(
            f"type must be one of {', '.join(_KINDS)}, got {str(kind)[:50]!r}", param="type", code="unknown_message"
        )
    try:
        return _KINDS[kind].model_validate_json(raw)
    except ValidationError as error:
        first = error.errors()[0]
        param = str(first["loc"][-1])[:100] if first["loc"] else None
        raise InvalidRequest(f"{param}: {first['msg'][:200]}", param=param, code="invalid_message") from error
