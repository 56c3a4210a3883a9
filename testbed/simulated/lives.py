"""Programs of a simulation that die as by SIGKILL: nothing of them runs after, no cleanup either.

What a program begins (tasks, callbacks, timers, calls in pools that have not begun) belongs to it
by its context. It dies between two turns of the loop, so at any ``await``.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Coroutine
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

Result = TypeVar("Result")

_life: ContextVar[Life | None] = ContextVar("life", default=None)


class DiedError(Exception):
    """The program that was asked died before it answered."""


class Ready(deque[asyncio.Handle]):
    """What is ready on a loop; nothing of what is dead."""

    def popleft(self) -> asyncio.Handle:
        """Return the next; in place of a dead one's a cancelled one, which the loop skips."""
        handle = super().popleft()
        life = handle._context.get(_life)  # type: ignore[attr-defined]
        return handle if life is None else life.turn(handle)


class Life:
    """One life of a program."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._loop.lives.append(self)  # type: ignore[attr-defined]
        self.over = self._loop.create_future()
        """Done when it is dead."""
        self._turns: int | None = None
        """Turns that are left; None without a set end."""
        self._cleared = False
        self._left: list[asyncio.Handle] = []
        """What became ready after its death."""
        self._tasks: set[asyncio.Task[Any]] = set()
        """The loop's tasks at its death: collected garbage would run their cleanup."""
        self._nothing = self._loop.call_soon(lambda: None)
        self._nothing.cancel()

    async def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Do ``work`` as this program and return its result. DiedError when it dies before."""
        context = copy_context()
        context.run(_life.set, self)
        task = self._loop.create_task(work, context=context)
        task.add_done_callback(lambda task: task.cancelled() or task.exception())  # may be late
        try:
            await asyncio.wait((task, self.over), return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if not task.done():
            raise DiedError
        return task.result()

    def end(self, turns: int | None = 0) -> None:
        """End it after so many more of its turns of the loop; None keeps it alive."""
        self._turns = turns
        if turns == 0 and not self.over.done():
            self.over.set_result(None)
            self._tasks = asyncio.all_tasks(self._loop)

    def turn(self, handle: asyncio.Handle) -> asyncio.Handle:
        """Return what runs in place of ``handle``, which belongs to this program."""
        if self._cleared:
            return handle
        if self.over.done():
            self._left.append(handle)
            return self._nothing
        if self._turns is not None:
            self.end(self._turns - 1)
        return handle

    def clear(self) -> None:
        """Release what is left, so that the loop can cancel it: the simulation is over."""
        self._cleared = True
        self._loop._ready.extend(self._left)  # type: ignore[attr-defined]
