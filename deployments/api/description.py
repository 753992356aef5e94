"""What the OpenAPI document says beyond what the routes say themselves: the one shape of all errors.

The web framework announces a 422 for every route with parameters; this server answers 400 in its own shape instead.
"""

from typing import Any, Final

from fastapi import FastAPI
from pydantic import BaseModel


class ErrorDetail(BaseModel):
    """What went wrong."""

    message: str
    type: str
    param: str | None
    """The field at fault."""
    code: str | None


class ErrorAnswer(BaseModel):
    """Every answer that is not a success."""

    error: ErrorDetail


ERRORS: Final[dict[int | str, dict[str, Any]]] = {
    400: {"model": ErrorAnswer, "description": "The request cannot be served as written"},
    401: {"model": ErrorAnswer, "description": "No valid API key, where the server asks for one"},
    404: {"model": ErrorAnswer, "description": "There is no such thing, or no more"},
    405: {"model": ErrorAnswer, "description": "Not with this method"},
    409: {"model": ErrorAnswer, "description": "Not in the present state"},
    429: {"model": ErrorAnswer, "description": "More than the tenant may have"},
    500: {"model": ErrorAnswer, "description": "A bug"},
    503: {"model": ErrorAnswer, "description": "More than the server can do, or a part of it is away"},
}


def describe_errors(app: FastAPI) -> None:
    """Leave the framework's own errors out of the app's document."""
    make = app.openapi

    def openapi() -> dict[str, Any]:
        document = make()
        for path in document["paths"].values():
            for operation in path.values():
                operation["responses"].pop("422", None)
        for name in ("HTTPValidationError", "ValidationError"):
            document["components"]["schemas"].pop(name, None)
        return document

    app.openapi = openapi  # type: ignore[method-assign]  # as the framework's own documentation does
