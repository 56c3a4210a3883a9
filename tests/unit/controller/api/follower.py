"""Follows a long answer as a server does."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

from starlette.types import Message, Scope

from tests.parts.api.people import Site

LIMIT_S = 60


@dataclass
class Follower:
    """One request whose answer goes on, and what came of it so far."""

    task: asyncio.Task[None]
    begun: asyncio.Event
    messages: list[Message] = field(default_factory=list)

    @property
    def status(self) -> int:
        return int(self.messages[0]["status"])


@contextlib.asynccontextmanager
async def following(
    site: Site, secret: str, path: str = "/stream", address: str = "127.0.0.1"
) -> AsyncIterator[Follower]:
    """Ask for a long answer as a server does; leave once its first bytes are there."""
    where, _, query = path.partition("?")
    scope: Scope = {
        "type": "http",
        "http_version": "1.1",
        "asgi": {"version": "3.0"},
        "method": "GET",
        "scheme": "http",
        "path": f"/api/v1{where}",
        "raw_path": f"/api/v1{where}".encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(b"authorization", f"Bearer {secret}".encode()), (b"host", b"localhost")],
        "client": (address, 50000),
        "server": ("127.0.0.1", 8470),
    }
    asked = False
    messages: list[Message] = []
    begun = asyncio.Event()

    async def receive() -> Message:
        nonlocal asked
        if not asked:
            asked = True
            return {"type": "http.request", "body": b"", "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError

    async def send(message: Message) -> None:
        messages.append(message)
        if message.get("body"):
            begun.set()

    task = asyncio.create_task(site.app(scope, receive, send))
    follower = Follower(task, begun, messages)
    async with asyncio.timeout(LIMIT_S):
        await begun.wait()
    try:
        yield follower
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task
