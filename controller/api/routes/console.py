"""Serves the console's files, with headers that restrict its pages to their own origin.

To the controller the console is data: a folder of files, found by the name of its package. None of
its code is loaded, and the API works without it.
"""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

from fastapi import FastAPI, Response
from fastapi.responses import FileResponse
from starlette.datastructures import MutableHeaders
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from readings.catalogue import of
from readings.reading import Object

PACKAGE = "console.web"
PREFIX = "/console"
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    )
)
"""Content security policy of the console's pages (CSP level 3): no inline script or style."""
_ALWAYS = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
_PAGES = {
    "Content-Security-Policy": POLICY,
    "Permissions-Policy": "camera=(), microphone=(), geolocation=()",
    # Files change only with the program, but a page must not mix old and new files.
    "Cache-Control": "no-cache",
}


def install(app: FastAPI) -> None:
    """Serve the console at ``/`` if it is installed, and set the headers of every answer."""
    folder = assets()
    if folder is not None:
        index = folder / "static" / "index.html"

        @app.get("/", include_in_schema=False)
        async def console() -> FileResponse:
            return FileResponse(index)

        @app.get(f"{PREFIX}/js/readings.js", include_in_schema=False)
        async def readings() -> Response:
            return Response(readings_module(), media_type="text/javascript")

        app.mount(f"{PREFIX}/vendor", StaticFiles(directory=folder / "vendor"))
        app.mount(PREFIX, StaticFiles(directory=folder / "static"))
    app.add_middleware(SecureHeaders)


def readings_module() -> str:
    """Return the catalogue as a module of the console: what a page needs to show a reading."""
    shown = ("name", "of", "unit", "column", "label", "text")
    entries = [{field: getattr(one, field) for field in shown} for one in of(*Object)]
    return f"export const READINGS = {json.dumps(entries)};\n"


def assets() -> Path | None:
    """Return the folder with the console's files, None when the console is not installed."""
    try:
        spec = find_spec(PACKAGE)
    except ModuleNotFoundError:
        return None
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0])


class SecureHeaders:
    """ASGI middleware: adds security headers that an answer does not have."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        page = scope["path"] == "/" or scope["path"].startswith(f"{PREFIX}/")
        wanted = {**_ALWAYS, **_PAGES} if page else _ALWAYS

        async def sending(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in wanted.items():
                    headers.setdefault(name, value)
            await send(message)

        await self._app(scope, receive, sending)
