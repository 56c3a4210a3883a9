"""Limits and ends long answers: streams, logs that are followed, output of commands.

The gate checks a token when a request arrives, and a long answer must not outlive its token. Every
long answer has a ``AnswerSlot`` here: it ends when its token is revoked or expires. What logs and
commands write at full speed would take the loop, so their answers have a rate.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field

import structlog
from fastapi import HTTPException
from fastapi.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from base import clock
from controller.api.gate.access import Caller
from controller.base.errors import ServiceError
from controller.base.token_bucket import TokenBucket

log = structlog.get_logger(__name__)

MOST_PER_TOKEN = 32
MOST_PER_ADDRESS = 256
MOST = 900
"""Of users and viewers together; the stream takes 1,000, so operators always find a place."""
RATE_BPS = 4 * 2**20
"""Bytes a second of all long answers of one caller, in the long run."""
RATE_BURST = 16 * 2**20
RATE_ALL_BPS = 8 * 2**20
"""Bytes a second of all users and viewers together."""
PIECE_BYTES = 2048
"""What a piece costs beside its bytes: each takes a turn of the loop."""
MOST_KNOWN = 10_000
"""Callers whose rate is known; the least recently seen are forgotten first."""
SEND_TIMEOUT_S = 15.0
"""A reader whose connection takes no bytes for this long is disconnected."""
_SWEEP_S = 1.0


@dataclass(slots=True, eq=False)
class AnswerSlot:
    """The place of one long answer; ``over`` is set when the answer must end."""

    token: str
    address: str
    expires_at: float | None
    counted: bool
    leave: Callable[[AnswerSlot], None]
    spend: Callable[[int], float]
    """Counts a piece of so many bytes; returns the seconds to wait before the next one."""
    over: asyncio.Event = field(default_factory=asyncio.Event)


class Followers:
    """All long answers that run now. Lives on the loop."""

    def __init__(self, expiry: Callable[[], float]) -> None:
        """``expiry`` is the clock of the tokens' expiry."""
        self._expiry = expiry
        self._places: set[AnswerSlot] = set()
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()
        """By caller's name."""
        self._all = TokenBucket(RATE_ALL_BPS, RATE_BURST)
        self._sweep: asyncio.TimerHandle | None = None

    def enter(self, caller: Caller, address: str) -> AnswerSlot:
        """Take a place; leave it at the end. ServiceError ``unavailable`` if none is free.

        Operators and admins are not counted: they need access during a flood.
        """
        counted, name = not caller.principal.keeper, caller.principal.name
        if counted:
            self._check(caller.principal.token, address)
        expires_at = caller.token.expires_at if caller.token else None
        place = AnswerSlot(
            caller.principal.token,
            address,
            expires_at,
            counted,
            self._places.discard,
            (lambda size: self._spend(name, size)) if counted else _free,
        )
        self._places.add(place)
        if self._sweep is None:
            self._end_expired()
        return place

    def end(self, token: str) -> None:
        """End all answers of this token."""
        for place in self._places:
            if place.token == token:
                place.over.set()

    def _spend(self, name: str, size: int) -> float:
        bucket = self._buckets.get(name)
        if bucket is None:
            bucket = self._buckets[name] = TokenBucket(RATE_BPS, RATE_BURST)
            if len(self._buckets) > MOST_KNOWN:
                self._buckets.popitem(last=False)
        self._buckets.move_to_end(name)
        now, cost = clock.monotonic(), PIECE_BYTES + size
        return max(bucket.spend(now, cost), self._all.spend(now, cost))

    def _check(self, token: str, address: str) -> None:
        others = [place for place in self._places if place.counted]
        for whose, found, most in (
            ("this token", sum(place.token == token for place in others), MOST_PER_TOKEN),
            ("this address", sum(place.address == address for place in others), MOST_PER_ADDRESS),
            ("all users", len(others), MOST),
        ):
            if found >= most:
                raise ServiceError(
                    "unavailable",
                    f"{whose} already has {found} streams and logs, at most {most} are allowed",
                    object="stream",
                    hint="close some, or read /top instead",
                )

    def _end_expired(self) -> None:
        """End answers whose token has expired; check again while there are answers."""
        now = self._expiry()
        for place in self._places:
            if place.expires_at is not None and now >= place.expires_at:
                place.over.set()
        loop = asyncio.get_running_loop()
        self._sweep = loop.call_later(_SWEEP_S, self._end_expired) if self._places else None


class Following(StreamingResponse):
    """A long answer. It ends without an error when its reader stops or its token ends."""

    def __init__(
        self,
        pieces: AsyncGenerator[bytes],
        *,
        media_type: str,
        place: AnswerSlot | None = None,
        close: Callable[[], None] | None = None,
    ) -> None:
        """``close`` is called at the end in every case."""
        headers = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
        super().__init__(pieces, headers=headers, media_type=media_type)
        self._pieces = pieces
        self._place = place
        self._close = close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send pieces until the reader leaves, its place is over or the pieces end."""
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
            async with asyncio.timeout(SEND_TIMEOUT_S):
                await send(start)
            async for piece in self._pieces:
                async with asyncio.timeout(SEND_TIMEOUT_S):
                    await send({"type": "http.response.body", "body": piece, "more_body": True})
                wait_s = 0.0 if self._place is None else self._place.spend(len(piece))
                if wait_s:
                    await asyncio.sleep(wait_s)
        await self._last(send)

    async def _last(self, send: Send) -> None:
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await send({"type": "http.response.body", "body": b"", "more_body": False})


def _free(size: int) -> float:
    del size
    return 0.0


async def _until_gone(receive: Receive) -> None:
    """Wait until the client disconnects, or its body does not arrive."""
    with contextlib.suppress(HTTPException):
        while (await receive())["type"] != "http.disconnect":
            pass


async def _until_over(place: AnswerSlot) -> None:
    await place.over.wait()
