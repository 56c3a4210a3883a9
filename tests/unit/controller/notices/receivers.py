"""A receiver of notices for tests: an HTTP server of this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field


@dataclass
class Post:
    """One request as it came."""

    path: str
    headers: dict[str, str]
    body: bytes


@dataclass
class HttpReceiver:
    """Answers each POST with ``answer``, bytes of a whole response; none when it is empty."""

    answer: Callable[[Post], bytes] = lambda post: b"HTTP/1.1 204 No Content\r\n\r\n"
    posts: list[Post] = field(default_factory=list)
    port: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)

    @property
    def url(self) -> str:
        """A URL of it."""
        return f"http://127.0.0.1:{self.port}/hook?key=in-the-url"

    @contextlib.asynccontextmanager
    async def listening(self) -> AsyncIterator[HttpReceiver]:
        """Accept connections; the port stays the same when it listens again."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", self.port)
        self.port = server.sockets[0].getsockname()[1]
        try:
            yield self
        finally:
            server.close()
            for writer in self._writers:
                writer.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                pairs = [line.split(": ", 1) for line in head[1:] if line]
                headers = {name.lower(): value for name, value in pairs}
                body = await reader.readexactly(int(headers["content-length"]))
                post = Post(head[0].split()[1], headers, body)
                self.posts.append(post)
                writer.write(self.answer(post))
                await writer.drain()
