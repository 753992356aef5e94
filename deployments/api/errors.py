"""The one error tree of the HTTP edge and the handlers that give every failure the OpenAI error shape.

`{"error": {"message", "type", "param", "code"}}`, whatever went wrong; a stack trace never leaves the server.
Knows nothing about videos; every failure is counted by its code.
"""

import json
import logging
import math
import reprlib
from collections.abc import Mapping
from typing import ClassVar, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError as RedisOutOfMemoryError
from redis.exceptions import TimeoutError as RedisTimeoutError
from starlette.exceptions import HTTPException

logger = logging.getLogger(__name__)

REQUEST_ID_HEADER: Final = "x-request-id"

_NO_RETRY: Final = {"x-should-retry": "false"}
"""The official clients repeat every 409 and 5xx by themselves unless told that it cannot help."""


class ApiError(Exception):
    """A failure that the caller is told about; the class carries its HTTP status."""

    status: ClassVar[int] = 500
    type: ClassVar[str] = "server_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code
        self.headers = dict(headers or {})


class InvalidRequest(ApiError):
    """The request cannot be served as written; `param` names the field at fault."""

    status = 400
    type = "invalid_request_error"


class NotFound(ApiError):
    """There is no such thing, or no more."""

    status = 404
    type = "invalid_request_error"


class Conflict(ApiError):
    """The request is fine, but not in the present state of what it names."""

    status = 409
    type = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message, param=param, code=code, headers=_NO_RETRY)


class IdempotencyConflict(Conflict):
    """The same Idempotency-Key came before with another body."""

    def __init__(self, video_id: str) -> None:
        super().__init__(
            f"this Idempotency-Key made {video_id} from another body; send a new key with a new request",
            param="Idempotency-Key",
            code="idempotency_conflict",
        )


class RangeNotSatisfiable(ApiError):
    """The Range header asks for bytes that the file does not have."""

    status = 416
    type = "invalid_request_error"


class TenantFull(ApiError):
    """The tenant has as many unfinished jobs as it may."""

    status = 429
    type = "rate_limit_error"

    def __init__(self, limit: int) -> None:
        super().__init__(
            f"all {limit} unfinished jobs that you may have are taken; try again when one has finished",
            code="too_many_jobs",
            headers={"retry-after": "5"},
        )


class DeadlineOutOfReach(ApiError):
    """The job could not be done by the caller's deadline, which is said before any work."""

    status = 429
    type = "rate_limit_error"

    def __init__(self, finish_s: float, deadline_s: float) -> None:
        super().__init__(
            f"the job would be done in about {finish_s:.0f} s, after its deadline_s of {deadline_s:g}",
            param="deadline_s",
            code="deadline_out_of_reach",
            headers={"retry-after": str(_whole_seconds(finish_s - deadline_s))},
        )


class NotBuilt(ApiError):
    """A documented endpoint of the API that this server does not offer."""

    status = 501

    def __init__(self, message: str) -> None:
        super().__init__(message, code="not_implemented", headers=_NO_RETRY)


class Unavailable(ApiError):
    """A part of the server does not answer at the moment."""

    status = 503

    def __init__(self, message: str, *, code: str, retry_after_s: int = 1) -> None:
        super().__init__(message, code=code, headers={"retry-after": str(retry_after_s)})


class QueueFull(Unavailable):
    """As many jobs of all tenants wait or run as may; said at once rather than after a wait."""

    def __init__(self, max_unfinished_jobs: int) -> None:
        super().__init__(
            f"all {max_unfinished_jobs} places for unfinished jobs are taken; try again when one has finished",
            code="queue_full",
            retry_after_s=5,
        )


class Overloaded(Unavailable):
    """A job sent now would wait longer than this server lets one wait."""

    def __init__(self, wait_s: float, max_wait_s: float) -> None:
        super().__init__(
            f"the job would wait about {wait_s:.0f} s for its turn, and more than {max_wait_s:g} s is refused",
            code="overloaded",
            retry_after_s=_whole_seconds(wait_s - max_wait_s),
        )


def _whole_seconds(seconds: float) -> int:
    """Round up to what a Retry-After may ask for: a second at least, ten minutes at most."""
    return min(max(math.ceil(seconds), 1), 600)


class _HttpError(ApiError):
    """An error of the web framework: unknown path, wrong method."""

    type = "invalid_request_error"

    def __init__(self, message: str, *, status: int, headers: Mapping[str, str] | None) -> None:
        super().__init__(message, headers=headers)
        self.status = status  # type: ignore[misc]  # the only errors whose status is not their class's


def error_response(error: ApiError) -> Response:
    """Write an error in the shape of the API."""
    body = {"message": error.message, "type": error.type, "param": error.param, "code": error.code}
    # ASCII only: a message may quote input that no UTF-8 can hold, such as a lone surrogate.
    content = json.dumps({"error": body}, ensure_ascii=True)
    return Response(content, status_code=error.status, headers=error.headers, media_type="application/json")


def install_error_handlers(app: FastAPI) -> None:
    """Make every failure of the app answer in the shape of the API."""
    app.add_exception_handler(ApiError, _on_api_error)
    app.add_exception_handler(RequestValidationError, _on_bad_parameter)
    app.add_exception_handler(HTTPException, _on_http_error)
    for store_fault in (RedisConnectionError, RedisTimeoutError, RedisOutOfMemoryError):
        app.add_exception_handler(store_fault, _on_store_fault)
    app.add_exception_handler(Exception, _on_bug)


def _answer(request: Request, error: ApiError) -> Response:
    request.app.state.services.count_refusal(error.code or error.type)
    return error_response(error)


async def _on_api_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, ApiError)
    return _answer(request, error)


async def _on_bad_parameter(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    param = str(first["loc"][-1])
    message = f"{param}: {first['msg']}; got {reprlib.repr(first.get('input'))}"
    return _answer(request, InvalidRequest(message, param=param))


async def _on_http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    message = f"{request.method} {request.url.path}: {error.detail}"
    return _answer(request, _HttpError(message, status=error.status_code, headers=error.headers))


async def _on_store_fault(request: Request, error: Exception) -> Response:
    logger.error("the job store failed: %s", error)
    return _answer(request, Unavailable("the job store does not answer; try again", code="store_unavailable"))


async def _on_bug(request: Request, error: Exception) -> Response:
    request_id = getattr(request.state, "request_id", "unknown")
    logger.error("request %s failed with %s", request_id, type(error).__name__)
    response = _answer(
        request, ApiError(f"the server failed on this request; quote {request_id} in a report", code="internal_error")
    )
    # The handler of last resort runs outside the middleware that names every other response.
    response.headers[REQUEST_ID_HEADER] = request_id
    return response
