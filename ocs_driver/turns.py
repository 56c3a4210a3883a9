"""Who may use a switch's one session: one command at a time, and a change undisturbed.

A change (deletes, makes, read-back) keeps the session for its whole cut: whatever came between
its commands would only make the time longer in which light is away. Readings therefore come in
small portions, and let a change that waits go before their next one.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from ocs_driver.errors import OcsUnreachable


class Turns:
    """The right to send commands, on one loop.

    ``name`` is the switch's, for messages; ``until`` is in the loop's time, None waits without
    a limit. OcsUnreachable when the turn does not come by then.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = asyncio.Lock()
        self._owner: asyncio.Task[object] | None = None
        self._waiting = 0
        self._changes = 0
        """Changes that have ended."""

    @property
    def changing(self) -> bool:
        """Whether a change is under way."""
        return self._owner is not None

    @contextlib.asynccontextmanager
    async def change(self, until: float | None = None) -> AsyncIterator[None]:
        """Keep the session for all commands that this task sends inside."""
        self._waiting += 1
        try:
            async with asyncio.timeout_at(until):
                await self._lock.acquire()
        except TimeoutError:
            why = "another change, or a long reading, is under way"
            raise OcsUnreachable("switch_busy", self._name, why) from None
        finally:
            self._waiting -= 1
        self._owner = asyncio.current_task()
        try:
            yield
        finally:
            self._owner = None
            self._changes += 1
            self._lock.release()

    @contextlib.asynccontextmanager
    async def command(self, until: float | None = None) -> AsyncIterator[None]:
        """Have the session for one portion of commands; at once inside a change of this task."""
        if self._owner is not None and self._owner is asyncio.current_task():
            yield
            return
        try:
            async with asyncio.timeout_at(until):
                await self._acquire()
        except TimeoutError:
            why = "a change, or another command, is under way"
            raise OcsUnreachable("session_busy", self._name, why) from None
        try:
            yield
        finally:
            self._lock.release()

    async def _acquire(self) -> None:
        """Let changes that wait go first, but not for ever: after one it is a reading's turn."""
        changes = self._changes
        while True:
            await self._lock.acquire()
            if not self._waiting or self._changes != changes:
                return
            self._lock.release()  # the lock is fair: the change is in front of us from now on
