"""The commands that callers run in ranks: from their preparation to the end of their output.

A command takes two requests: the first prepares it and is recorded like every change, the second
opens its output and begins it. So what is not recorded does not begin, and a caller who never got
the first answer has changed nothing. The id of a command is a secret of its caller.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field

from agentlink.values import Typed, WindowSize
from base import clock
from controller.api.gate.access import Caller
from controller.base.errors import ServiceError
from controller.devices.engine import ExecEnd, ExecOutput
from controller.schema.execs import ExecInputRequest, ExecRequest

MOST_PER_TOKEN = 16
MOST = 128
"""Of all users together; operators and admins have as many, so they find a place."""
OPEN_S = 30.0
_WAITING_INPUTS = 4

Pieces = AsyncGenerator[ExecOutput | ExecEnd]
Prepare = Callable[[AsyncIterator[Typed | WindowSize]], Awaitable[Pieces]]
"""Prepares a command that gets this input. ServiceError."""


@dataclass(slots=True, eq=False)
class ExecSession:
    """One command and its caller. Lives on the loop."""

    id: str
    job: str
    request: ExecRequest
    caller: Caller
    prepared_at: float
    pieces: Pieces = field(init=False)
    """Its output; it begins when the first piece is asked for."""
    opened: bool = False
    how: str = "its caller left"
    """How it ended."""
    next: int = 1
    """The number of the next input."""
    _waiting: asyncio.Queue[list[Typed | WindowSize]] = field(
        default_factory=lambda: asyncio.Queue(_WAITING_INPUTS)
    )
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def given(self) -> AsyncIterator[Typed | WindowSize]:
        """Yield the caller's input as the command takes it."""
        if not self.request.stdin:
            yield Typed(None)
        while True:
            for item in await self._waiting.get():
                yield item

    async def send(self, given: ExecInputRequest) -> int:
        """Pass on one input; return the number of the next one. ServiceError ``conflict``.

        Waits while the command takes none. An input that was taken before is not passed on again.
        """
        async with self._lock:
            if given.seq < self.next:
                return self.next
            if given.seq > self.next:
                raise self._refused(
                    f"input {given.seq} came before input {self.next}", "send them in their order"
                )
            if (given.stdin or given.end) and not self.request.stdin:
                raise self._refused("the command was started without input", 'set "stdin"')
            window = given.window
            items: list[Typed | WindowSize] = [
                *([Typed(given.data)] if given.stdin else ()),
                *([Typed(None)] if given.end else ()),
                *([WindowSize(window.rows, window.columns)] if window else ()),
            ]
            await self._waiting.put(items)
            self.next += 1
            return self.next

    def _refused(self, message: str, hint: str) -> ServiceError:
        return ServiceError("conflict", message, object=f"job/{self.job}/exec", hint=hint)


class Sessions:
    """All commands that are prepared or run. Lives on the loop."""

    def __init__(self, clock: Callable[[], float] = clock.monotonic) -> None:
        self._clock = clock
        self._sessions: dict[str, ExecSession] = {}

    async def prepare(
        self, caller: Caller, job: str, request: ExecRequest, prepare: Prepare
    ) -> ExecSession:
        """Prepare a command. ServiceError ``unavailable`` if the caller has too many."""
        self._forget_unopened()
        keeper = caller.principal.keeper
        callers = [s.caller for s in self._sessions.values()]
        mine = sum(_same(one, caller) for one in callers)
        group = sum(one.principal.keeper == keeper for one in callers)
        for whose, found, most in (
            ("this token", mine, MOST_PER_TOKEN),
            ("all operators" if keeper else "all users", group, MOST),
        ):
            if found >= most:
                raise ServiceError(
                    "unavailable",
                    f"{whose} already has {found} commands in ranks, at most {most} are allowed",
                    object=f"job/{job}/exec",
                    hint="end one of them",
                )
        session = ExecSession(secrets.token_hex(16), job, request, caller, self._clock())
        session.pieces = await prepare(session.given())
        self._sessions[session.id] = session
        return session

    def open(self, caller: Caller, job: str, ident: str) -> ExecSession:
        """Take a prepared command, once. ServiceError ``not_found``, ``conflict``."""
        session = self.find(caller, job, ident)
        if session.opened:
            raise ServiceError(
                "conflict",
                "its output was opened before",
                object=f"job/{job}/exec",
                hint="prepare another command",
            )
        session.opened = True
        return session

    def find(self, caller: Caller, job: str, ident: str) -> ExecSession:
        """Return a caller's command. ServiceError ``not_found``."""
        self._forget_unopened()
        session = self._sessions.get(ident)
        if session is None or session.job != job or not _same(session.caller, caller):
            raise ServiceError(
                "not_found",
                "the command has ended, or was not opened in time",
                object=f"job/{job}/exec",
                hint="prepare it again",
            )
        return session

    def close(self, session: ExecSession) -> None:
        """Forget a command that has ended."""
        self._sessions.pop(session.id, None)

    def _forget_unopened(self) -> None:
        late = self._clock() - OPEN_S
        for session in list(self._sessions.values()):
            if not session.opened and session.prepared_at <= late:
                self.close(session)


def _same(one: Caller, other: Caller) -> bool:
    return one.principal == other.principal
