"""Read a request body, JSON or multipart form, under a byte limit and into one of the body models.

The official client sends a create as multipart with bracket keys (`input_reference[image_url]`), a remix as JSON;
both are taken everywhere. Knows nothing about what the fields mean.
"""

from collections.abc import AsyncGenerator
from typing import Final

from fastapi import Request
from starlette.datastructures import FormData, Headers, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from deployments.api.errors import InvalidRequest
from deployments.api.schema import NO_INPUT_REFERENCE, BodyT, FormValue, read_form_body, read_json_body

_MAX_FORM_PARTS: Final = 100


async def read_body(kind: type[BodyT], request: Request, *, max_bytes: int) -> BodyT:
    """Read the body whichever of the two forms it has; every fault is a 400 that says what to change."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type not in ("application/json", "multipart/form-data"):
        raise InvalidRequest(
            f"Content-Type must be application/json or multipart/form-data, got {media_type or 'none'}",
            code="unsupported_content_type",
        )
    raw = await _read_capped(request, max_bytes)
    if media_type == "application/json":
        return read_json_body(kind, raw)
    return read_form_body(kind, await _read_form(request.headers, raw))


async def _read_capped(request: Request, max_bytes: int) -> bytes:
    too_large = InvalidRequest(f"the body must be at most {max_bytes} bytes", code="body_too_large")
    declared = request.headers.get("content-length", "")
    if declared.isdecimal() and int(declared) > max_bytes:
        raise too_large
    raw = bytearray()
    async for chunk in request.stream():
        raw += chunk
        if len(raw) > max_bytes:
            raise too_large
    return bytes(raw)


async def _read_form(headers: Headers, raw: bytes) -> dict[str, FormValue]:
    parser = MultiPartParser(headers, _once(raw), max_files=_MAX_FORM_PARTS, max_fields=_MAX_FORM_PARTS)
    try:
        form = await parser.parse()
    except MultiPartException as error:
        raise InvalidRequest(f"the multipart body cannot be read: {error.message}") from None
    try:
        fields = _form_fields(form)
    finally:
        await form.close()
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        # The parser would take it for Latin-1 and so change the prompt without a word.
        raise InvalidRequest(f"the text of a form must be UTF-8, got byte {raw[error.start]:#04x}") from None
    return fields


async def _once(raw: bytes) -> AsyncGenerator[bytes, None]:
    yield raw


def _form_fields(form: FormData) -> dict[str, FormValue]:
    """Collect the fields; `name[part]` keys make a mapping under `name`."""
    fields: dict[str, FormValue] = {}
    for key, value in form.multi_items():
        if isinstance(value, UploadFile):
            message = NO_INPUT_REFERENCE if key == "input_reference" else f"{key} must be text, got a file"
            raise InvalidRequest(message, param=key)
        name, bracket, part = key.removesuffix("]").partition("[")
        held = fields.get(name)
        if bracket and isinstance(held, dict) and part not in held:
            held[part] = value
        elif held is None:
            fields[name] = {part: value} if bracket else value
        else:
            raise InvalidRequest(f"{name} is given more than once", param=name)
    return fields
