"""Serialises access to the session of a switch: one command at a time, changes uninterrupted.

A change (deletes, makes, read-back) holds the session for its whole duration: any command in
between would extend the dark time. Reads therefore run in small portions, and a waiting change
goes before their next portion.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from ocs_driver.errors import OcsUnreachable


class CommandTurns:
    """The right to send commands, on one event loop.

    ``name`` is the switch's, for messages. ``until`` is in the loop's time; None waits without
    a limit. Raises OcsUnreachable when the turn does not come by then.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = asyncio.Lock()
        self._owner: asyncio.Task[object] | None = None
        self._waiting = 0
        self._changes = 0
        """Number of finished changes."""

    @property
    def changing(self) -> bool:
        """Whether a change is in progress."""
        return self._owner is not None

    @contextlib.asynccontextmanager
    async def change(self, until: float | None = None) -> AsyncIterator[None]:
        """Hold the session for all commands that this task sends inside."""
        self._waiting += 1
        try:
            async with asyncio.timeout_at(until):
                await self._lock.acquire()
        except TimeoutError:
            why = "another change, or a long read, is in progress"
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
        """Hold the session for one portion of commands; immediate inside this task's change."""
        if self._owner is not None and self._owner is asyncio.current_task():
            yield
            return
        try:
            async with asyncio.timeout_at(until):
                await self._acquire()
        except TimeoutError:
            why = "a change, or another command, is in progress"
            raise OcsUnreachable("session_busy", self._name, why) from None
        try:
            yield
        finally:
            self._lock.release()

    async def _acquire(self) -> None:
        """Wait for queued changes, but not without limit: a read goes after one of them."""
        changes = self._changes
        while True:
            await self._lock.acquire()
            if not self._waiting or self._changes != changes:
                return
            self._lock.release()  # the lock is fair: the change is now ahead in its queue
