"""Exchanges TL1 messages over one TCP connection and matches responses to commands by ctag."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Sequence
from itertools import count

from base.addresses import join_address
from ocs_driver.errors import OcsError, OcsTimeout, OcsUnreachable, unreachable
from ocs_driver.tl1.messages import (
    ACK_REJECTED,
    Ack,
    Message,
    Overflow,
    Response,
    Tl1Command,
    Tl1Report,
)
from ocs_driver.tl1.parser import Tl1Parser

_log = logging.getLogger(__name__)

_CTAGS = 999_999
"""Largest ctag: GR-831 allows six characters."""
_READ_SIZE = 16384
"""Bytes read at a time; parsing them blocks the event loop."""
_UNASKED = 8 * 1024 * 1024
"""Limit of bytes without a response, including prompts and reports; more is a flood."""


class Tl1Connection:
    """Demultiplexes responses by ctag. A broken connection is final; a session opens another."""

    def __init__(
        self,
        name: str,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        on_report: Callable[[Tl1Report], None],
    ) -> None:
        self.name = name
        self._reader = reader
        self._writer = writer
        self._on_report = on_report
        self._ctags = count(1)
        self._waiting: dict[str, asyncio.Future[Response]] = {}
        self.closed = asyncio.Event()
        self.flooded = False
        """Whether the switch sent too much data; then the session waits before it reconnects."""
        self._unasked = 0
        self._pump = asyncio.create_task(self._receive(), name=f"tl1-{name}")

    @classmethod
    async def open(
        cls, host: str, port: int, timeout_s: float, on_report: Callable[[Tl1Report], None]
    ) -> Tl1Connection:
        """Connect. Raises OcsUnreachable on failure or after ``timeout_s``."""
        name = join_address(host, port)
        try:
            async with asyncio.timeout(timeout_s):
                reader, writer = await asyncio.open_connection(host, port)
        except (OSError, TimeoutError) as error:
            raise unreachable(name, error, timeout_s) from None
        return cls(name, reader, writer, on_report)

    async def exchange(self, commands: Sequence[Tl1Command], timeout_s: float) -> list[Response]:
        """Send all commands before waiting, and return their responses in order.

        Raises OcsTimeout (outcome unknown, connection closed) when a response is missing.
        """
        if self.closed.is_set():
            raise OcsUnreachable("connection_lost", self.name, "the switch closed the connection")
        loop = asyncio.get_running_loop()
        tags = [self._next_ctag() for _ in commands]
        data = b"".join(c.encode(tag) for c, tag in zip(commands, tags, strict=True))
        futures = [loop.create_future() for _ in tags]
        self._waiting.update(zip(tags, futures, strict=True))
        try:
            async with asyncio.timeout(timeout_s):
                self._writer.write(data)
                await self._writer.drain()
                return list(await asyncio.gather(*futures))
        except TimeoutError:
            self.abort()
            silent = [str(c) for c, f in zip(commands, futures, strict=True) if not _answered(f)]
            raise OcsTimeout(
                "no_answer", self.name, f"no response within {timeout_s:g} s to {silent[0]}"
            ) from None
        except OSError as error:
            self.abort()
            raise OcsTimeout("connection_lost", self.name, str(error)) from None
        finally:
            for tag, future in zip(tags, futures, strict=True):
                self._waiting.pop(tag, None)
                if not future.cancel() and not future.cancelled():
                    future.exception()  # mark as retrieved: the first one was already raised

    def abort(self) -> None:
        """Close immediately; pending commands fail with an unknown outcome."""
        self.closed.set()
        self._writer.transport.abort()
        for future in self._waiting.values():
            if not future.done():
                future.set_exception(
                    OcsTimeout(
                        "connection_lost",
                        self.name,
                        "the connection broke before the response arrived",
                    )
                )

    async def close(self) -> None:
        """Close and wait until the receiver has stopped."""
        self.abort()
        self._pump.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._pump
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    def _next_ctag(self) -> str:
        return str((next(self._ctags) - 1) % _CTAGS + 1)

    async def _receive(self) -> None:
        parser = Tl1Parser()
        try:
            while data := await self._reader.read(_READ_SIZE):
                self._unasked += len(data)
                for message in parser.feed(data):
                    self._dispatch(message)
                if self._unasked > _UNASKED:
                    raise OcsUnreachable(
                        "flood", self.name, f"received {self._unasked} bytes without a response"
                    )
                await asyncio.sleep(0)  # an endless stream must not block the event loop
        except OSError as error:
            _log.info("connection to %s broke: %s", self.name, error)
        except OcsError as error:
            self.flooded = True
            _log.warning("closing the connection: %s", error)
        finally:
            self.abort()

    def _dispatch(self, message: Message) -> None:
        if isinstance(message, Tl1Report):
            self._on_report(message)
        elif isinstance(message, Overflow):
            raise OcsUnreachable(
                "message_too_long", self.name, f"a message exceeded {message.size} bytes"
            )
        elif isinstance(message, Ack):
            if message.code in ACK_REJECTED:
                text = (f"rejected with acknowledgement {message.code}",)
                self._answer(Response("", "", message.ctag, "DENY", message.code, text=text))
        elif message.completion != "DELAY":
            # DELAY only announces a later response.
            self._answer(message)

    def _answer(self, response: Response) -> None:
        future = self._waiting.get(response.ctag)
        if future is None:
            _log.debug("%s: dropped the response to unknown ctag %s", self.name, response.ctag)
        elif not future.done():
            self._unasked = 0
            future.set_result(response)


def _answered(future: asyncio.Future[Response]) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None
