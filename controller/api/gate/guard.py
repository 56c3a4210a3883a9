"""Limits the size and duration of requests, and turns crashes into problem documents."""

from __future__ import annotations

import asyncio

from fastapi import HTTPException
from fastapi.responses import JSONResponse
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from controller.api.gate.rules import RouteTable
from controller.api.problems import crashed, problem

MAX_PATH = 2048
BODY_PAUSE_S = 20.0
"""Longest pause between two pieces of a request body."""


class RequestLimits:
    """ASGI middleware around the whole application.

    Refuses paths and bodies that are too long (414, 413) and bodies that are too slow (408).
    Turns a crash into a problem document.
    """

    def __init__(self, app: ASGIApp, *, table: RouteTable) -> None:
        self._app = app
        self._table = table

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def sending(message: Message) -> None:
            nonlocal started
            started = started or message["type"] == "http.response.start"
            await send(message)

        most = self._table.largest_body(scope["method"], scope["path"])
        response = self._refusal(scope, most)
        if response is None:
            try:
                await self._app(scope, self._bounded(receive, most), sending)
            except Exception as error:  # the client must not see a stack trace
                response = crashed(scope["method"], scope["path"], error)
        if response is not None and not started:
            await response(scope, receive, send)

    def _refusal(self, scope: Scope, most: int) -> JSONResponse | None:
        """Return the refusal that follows from a request's head, else None."""
        headers = Headers(scope=scope)
        if len(scope["path"]) > MAX_PATH:
            return problem(414, "invalid", f"the path is longer than {MAX_PATH} characters")
        length = headers.get("content-length", "0")
        if not length.isdecimal() or len(length) > 20 or int(length) > most:
            return problem(413, "invalid", _too_large(most))
        return None

    def _bounded(self, receive: Receive, most: int) -> Receive:
        total, complete = 0, False

        async def receiving() -> Message:
            nonlocal total, complete
            if complete:
                return await receive()  # a route that waits for the disconnect
            try:
                async with asyncio.timeout(BODY_PAUSE_S):
                    message = await receive()
            except TimeoutError:
                raise HTTPException(408, "the request's body did not arrive in time") from None
            total += len(message.get("body", b""))
            complete = not message.get("more_body", False)
            if total > most:
                raise HTTPException(413, _too_large(most))
            return message

        return receiving


def _too_large(most: int) -> str:
    return f"the request's body is larger than {most} bytes"
