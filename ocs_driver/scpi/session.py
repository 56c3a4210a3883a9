"""Keeps one serialised SCPI connection per switch, without a login; writes get no reply."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass

from base.addresses import join_address
from ocs_driver.errors import OcsError, OcsTimeout, OcsUnreachable, unreachable
from ocs_driver.scpi.codec import ReplyParser
from ocs_driver.turns import CommandTurns

_log = logging.getLogger(__name__)

_READ_SIZE = 65536


@dataclass(slots=True, frozen=True)
class ScpiTiming:
    """All waits of a connection, in seconds."""

    connect_s: float = 5.0
    hello_s: float = 5.0
    answer_s: float = 30.0
    keepalive_s: float = 45.0
    backoff_first_s: float = 0.2
    backoff_longest_s: float = 30.0


class ScpiSession:
    """Sends lines and returns one reply per query in a line.

    Replies carry no tag, so the connection is closed after a lost reply and never reused.
    ``turns`` orders the lines.
    ``on_link`` gets True when a connection is established and False when it is lost.
    """

    def __init__(
        self,
        host: str,
        port: int,
        *,
        timing: ScpiTiming | None = None,
        turns: CommandTurns | None = None,
        on_link: Callable[[bool], None] = lambda up: None,
    ) -> None:
        self.name = join_address(host, port)
        self._host = host
        self._port = port
        self._timing = timing or ScpiTiming()
        self._on_link = on_link
        self._turns = turns or CommandTurns(self.name)
        self._stream: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._used_at = 0.0
        self._failures = 0
        self._next_try_at = 0.0

    async def open(self) -> None:
        """Connect. Raises OcsUnreachable on failure, OcsError if another device responds."""
        async with self._turns.command():
            await self._ensure(asyncio.get_running_loop().time() + self._timing.connect_s)
        try:
            (name,) = await self.ask("*IDN?", timeout_s=self._timing.hello_s)
        except OcsTimeout as error:
            raise OcsUnreachable(
                "no_answer", self.name, f"connected, but {error.hint}: is this the SCPI port?"
            ) from None
        if name.count(",") < 2:
            raise OcsError(
                "wrong_dialect", self.name, f"*IDN? returned {name[:60]!r}: not an SCPI instrument"
            )
        if self._keeper is None:
            self._keeper = asyncio.create_task(self._keep(), name=f"scpi-keeper-{self.name}")

    async def close(self) -> None:
        """Close. Never fails."""
        if self._keeper is not None:
            self._keeper.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._keeper
            self._keeper = None
        await self._drop(tell=False)

    async def ask(self, line: str, replies: int = 1, timeout_s: float | None = None) -> list[str]:
        """Send a read-only line and return its replies; reconnects once on a lost connection."""
        try:
            return await self.send(line, replies, timeout_s)
        except OcsTimeout as error:
            if error.code != "connection_lost":
                raise
            return await self.send(line, replies, timeout_s)

    async def send(self, line: str, replies: int, timeout_s: float | None = None) -> list[str]:
        """Send a line and return its replies. Raises OcsTimeout when the outcome is unknown."""
        limit = self._timing.answer_s if timeout_s is None else timeout_s
        until = asyncio.get_running_loop().time() + limit
        async with self._turns.command(until):
            return await self._exchange(line, replies, until, limit)

    # -- below: this task holds the turn -----------------------------------------

    async def _exchange(self, line: str, replies: int, until: float, limit: float) -> list[str]:
        reader, writer = await self._ensure(until)
        if await _unasked(reader):
            # Data already received would count as the reply to this line.
            await self._drop()
            reader, writer = await self._ensure(until)
        loop = asyncio.get_running_loop()
        self._used_at = loop.time()
        parser = ReplyParser()
        got: list[str] = []
        try:
            async with asyncio.timeout_at(until):
                writer.write(f"{line}\r\n".encode("ascii"))
                await writer.drain()
                while len(got) < replies:
                    data = await reader.read(_READ_SIZE)
                    if not data:
                        raise ConnectionError("the switch closed the connection")
                    got += parser.feed(data)
                    whole = len(got) == replies
                    if parser.overflowed or len(got) > replies or (whole and parser.open):
                        raise ConnectionError(
                            f"the switch sent more replies than {line[:60]} requests"
                        )
                    await asyncio.sleep(0)  # an endless reply must not block the event loop
        except TimeoutError:
            await self._drop()
            raise OcsTimeout(
                "no_answer", self.name, f"no response within {limit:g} s to {line[:60]}"
            ) from None
        except OSError as error:
            await self._drop()
            raise OcsTimeout("connection_lost", self.name, str(error)) from None
        except BaseException:
            # Cancelled during an exchange: its late reply must not answer the next line.
            await self._drop()
            raise
        return got

    async def _ensure(self, until: float) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        if self._stream is not None and not self._stream[0].at_eof():
            return self._stream
        if self._stream is not None:
            await self._drop()
        loop = asyncio.get_running_loop()
        if self._next_try_at >= until:
            wait = self._next_try_at - loop.time()
            raise OcsUnreachable("backing_off", self.name, f"next attempt in {wait:.1f} s")
        await asyncio.sleep(max(self._next_try_at - loop.time(), 0.0))
        limit = min(self._timing.connect_s, max(until - loop.time(), 0.001))
        try:
            async with asyncio.timeout(limit):
                self._stream = await asyncio.open_connection(self._host, self._port)
        except (OSError, TimeoutError) as error:
            self._failures += 1
            pause = self._timing.backoff_first_s * 2 ** min(self._failures - 1, 16)
            self._next_try_at = loop.time() + min(pause, self._timing.backoff_longest_s)
            raise unreachable(self.name, error, limit) from None
        self._failures, self._next_try_at = 0, 0.0
        self._on_link(True)
        return self._stream

    async def _drop(self, *, tell: bool = True) -> None:
        stream, self._stream = self._stream, None
        if stream is not None:
            stream[1].transport.abort()
            with contextlib.suppress(OSError):
                await stream[1].wait_closed()
            if tell:
                self._on_link(False)

    async def _keep(self) -> None:
        """Detect a lost connection and reconnect; ping an idle connection."""
        loop = asyncio.get_running_loop()
        while True:
            stream = self._stream
            if stream is None:
                rest = max(self._next_try_at - loop.time(), self._timing.backoff_first_s)
                await asyncio.sleep(rest)
            else:
                await asyncio.sleep(min(1.0, self._timing.keepalive_s))
                idle = loop.time() - self._used_at >= self._timing.keepalive_s
                if not idle and not stream[0].at_eof():
                    continue
            try:
                await self.ask("*OPC?", timeout_s=self._timing.connect_s)
            except OcsError as error:
                _log.warning("keep-alive: %s", error)


async def _unasked(reader: asyncio.StreamReader) -> bool:
    """Whether unsolicited data or the end of the stream has arrived."""
    try:
        async with asyncio.timeout(0):
            await reader.read(_READ_SIZE)
    except TimeoutError:
        return False
    return True
