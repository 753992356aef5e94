"""Send a stored file, whole or the byte range that a player asks for (RFC 9110, single ranges).

Knows nothing about jobs; the caller has checked that the file may be sent.
"""

import asyncio
import re
from collections.abc import AsyncIterator
from typing import IO, Final

from fastapi import Request
from fastapi.responses import Response, StreamingResponse

from deployments.api.artifacts import ArtifactStore, Variant
from deployments.api.errors import NotFound, RangeNotSatisfiable

_CHUNK_BYTES: Final = 256 * 1024
_SINGLE_RANGE: Final = re.compile(r"bytes=(?:([0-9]{1,18})-([0-9]{1,18})?|-([0-9]{1,18}))")


def parse_range(header: str, size: int) -> tuple[int, int] | None:
    """Give the half-open range of bytes; None (send all) for what is no single byte range, as the RFC allows."""
    match = _SINGLE_RANGE.fullmatch(header.replace(" ", ""))
    if match is None:
        return None
    first, last, suffix = match.groups()
    if suffix is not None:
        start, stop = max(0, size - int(suffix)), size
    else:
        start, stop = int(first), min(size, int(last) + 1) if last is not None else size
        if last is not None and int(last) < start:
            return None
    if start >= stop:
        raise RangeNotSatisfiable(
            f"Range {header!r} lies outside the file of {size} bytes",
            param="Range",
            headers={"content-range": f"bytes */{size}"},
        )
    return start, stop


async def send_file(
    request: Request, artifacts: ArtifactStore, *, tenant: str, video_id: str, variant: Variant
) -> Response:
    """Answer a GET or HEAD for one file."""
    size = await asyncio.to_thread(artifacts.size, tenant, video_id, variant)
    if size is None:
        raise NotFound(f"the {variant} file of {video_id} is gone", param="video_id", code="content_gone")
    # A finished job's file never changes, so its name is its version.
    tag = f'"{video_id}-{variant}"'
    headers = {"accept-ranges": "bytes", "etag": tag, "content-disposition": f'inline; filename="{variant.file_name}"'}
    wanted = None
    if "range" in request.headers and request.headers.get("if-range", tag) == tag:
        wanted = parse_range(request.headers["range"], size)
    start, stop = wanted or (0, size)
    headers["content-length"] = str(stop - start)
    if wanted:
        headers["content-range"] = f"bytes {start}-{stop - 1}/{size}"
    status = 206 if wanted else 200
    if request.method == "HEAD":
        return Response(status_code=status, headers=headers, media_type=variant.media_type)
    file = await asyncio.to_thread(artifacts.open, tenant, video_id, variant)
    if file is None:
        raise NotFound(f"the {variant} file of {video_id} is gone", param="video_id", code="content_gone")
    return StreamingResponse(_read(file, start, stop), status, headers, variant.media_type)


async def _read(file: IO[bytes], start: int, stop: int) -> AsyncIterator[bytes]:
    try:
        await asyncio.to_thread(file.seek, start)
        while start < stop:
            chunk = await asyncio.to_thread(file.read, min(_CHUNK_BYTES, stop - start))
            start += len(chunk)
            yield chunk
    finally:
        file.close()
