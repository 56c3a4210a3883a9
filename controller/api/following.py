"""Answers that go on for hours: who follows, how many may, and when they are let go.

A token is judged when a request arrives; an answer that goes on must not outlive it. Every long
answer has a ``Place`` here: it ends when its token is revoked or expires.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

import structlog
from fastapi import HTTPException
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from controller.api.gate.access import Caller
from controller.base.errors import ServiceError

log = structlog.get_logger(__name__)

MOST_PER_TOKEN = 32
MOST_PER_ADDRESS = 256
MOST = 900
"""Of users and viewers together; the stream takes 1,000, so that operators always get in."""
SEND_TIMEOUT_S = 15.0
"""A reader whose connection takes nothing for so long is cut off."""
_SWEEP_S = 1.0


@dataclass(slots=True, eq=False)
class Place:
    """One long answer's place; ``over`` is set when it has to end."""

    token: str
    address: str
    expires_at: float | None
    counted: bool
    leave: Callable[[Place], None]
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Followers:
    """Everybody who follows now. Lives on the loop."""

    def __init__(self, clock: Callable[[], float]) -> None:
        """``clock`` is the one that tokens expire by."""
        self._clock = clock
        self._places: set[Place] = set()
        self._sweep: asyncio.TimerHandle | None = None

    def enter(self, caller: Caller, address: str) -> Place:
        """Take a place; leave it at the end. ServiceError ``unavailable`` when there is none.

        Operators and admins are not counted: they must get in during a flood.
        """
        counted = not caller.principal.keeper
        if counted:
            self._check(caller.principal.token, address)
        expires_at = caller.token.expires_at if caller.token else None
        place = Place(caller.principal.token, address, expires_at, counted, self._places.discard)
        self._places.add(place)
        if self._sweep is None:
            self._look_again()
        return place

    def end(self, token: str) -> None:
        """Let go who follows with this token."""
        for place in self._places:
            if place.token == token:
                place.over.set()

    def _check(self, token: str, address: str) -> None:
        others = [place for place in self._places if place.counted]
        for whose, found, most in (
            ("this token", sum(place.token == token for place in others), MOST_PER_TOKEN),
            ("this address", sum(place.address == address for place in others), MOST_PER_ADDRESS),
            ("users", len(others), MOST),
        ):
            if found >= most:
                raise ServiceError(
                    "unavailable",
                    f"{found} streams and logs are followed by {whose} already, {most} may be",
                    object="stream",
                    hint="close some, or read /top instead",
                )

    def _look_again(self) -> None:
        """Let go whose token has expired; look again while there are followers."""
        now = self._clock()
        for place in self._places:
            if place.expires_at is not None and now >= place.expires_at:
                place.over.set()
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(_SWEEP_S, self._look_again) if self._places else None


class Following(StreamingResponse):
    """An answer whose reader may stop reading, or lose the right to: it ends, and all is well."""

    def __init__(
        self,
        pieces: AsyncGenerator[bytes],
        *,
        media_type: str,
        place: Place | None = None,
        close: Callable[[], None] | None = None,
        send_timeout_s: float = SEND_TIMEOUT_S,
    ) -> None:
        """``close`` is called at the end, whatever ended it."""
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(pieces, headers=headers, media_type=media_type)
        self._pieces = pieces
        self._place = place
        self._close = close
        self._send_timeout_s = send_timeout_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send pieces until the reader, the right to read or the controller goes."""
        work = asyncio.create_task(self._send_all(send))
        ends = [asyncio.create_task(_until_gone(receive))]
        if self._place is not None:
            ends.append(asyncio.create_task(_until_over(self._place)))
        try:
            await asyncio.wait({work, *ends}, return_when=asyncio.FIRST_COMPLETED)
            over = not work.done()
            work.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await work
            if over:
                await self._last(send)
        except TimeoutError:
            log.info("slow_reader_cut_off", client=scope.get("client"))
        finally:
            for task in (work, *ends):
                task.cancel()
            if self._place is not None:
                self._place.leave(self._place)
            if self._close is not None:
                self._close()

    async def _send_all(self, send: Send) -> None:
        start = {
            "type": "http.response.start",
            "status": self.status_code,
            "headers": self.raw_headers,
        }
        async with contextlib.aclosing(self._pieces):
            async with asyncio.timeout(self._send_timeout_s):
                await send(start)
            async for piece in self._pieces:
                async with asyncio.timeout(self._send_timeout_s):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
        await self._last(send)

    async def _last(self, send: Send) -> None:
        async with asyncio.timeout(self._send_timeout_s):
            await send({"type": "http.response.body", "body": b"", "more_body": False})


async def _until_gone(receive: Receive) -> None:
    """Wait until the client hangs up, or owes us a body that does not come."""
    with contextlib.suppress(HTTPException):
        while (await receive())["type"] != "http.disconnect":
            pass


async def _until_over(place: Place) -> None:
    await place.over.wait()
