"""The page at `/`: static files, read from beside this package. They use nothing but the public API."""

import pathlib
from typing import Final

from fastapi import FastAPI
from fastapi.responses import FileResponse
from fastapi.staticfiles import StaticFiles

FOLDER: Final = pathlib.Path(__file__).parent.parent / "playground"
_POLICY: Final = {
    "content-security-policy": "default-src 'self'; img-src 'self' data: blob:; media-src 'self' blob:; "
    "connect-src 'self' ws: wss:; frame-ancestors 'none'"
}


def mount(app: FastAPI) -> None:
    """Serve the page and its files."""

    @app.get("/", include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(FOLDER / "index.html", headers=_POLICY)

    app.mount("/playground", StaticFiles(directory=FOLDER), name="playground")
