"""A controller that dies at a moment that a story gives."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from controller.base import failpoints
from testbed.simulated.lives import Life
from tests.stories.telling import Log

Result = TypeVar("Result")


class Dying:
    """The lives of a controller, one after the other."""

    def __init__(self, log: Log) -> None:
        self._log = log
        self._life: Life
        self._points: int | None = None
        """Failpoints that are left until it dies; None when it does not."""

    @contextmanager
    def hooked(self) -> Iterator[None]:
        """Count the failpoints that it passes."""
        with failpoints.hooked(self._passed):
            yield

    async def _passed(self, point: str) -> None:
        if self._points is not None:
            self._points -= 1
            if self._points <= 0:
                self._log.note(f"at {point}")
                self._life.end()
                await asyncio.Event().wait()

    def begin(self) -> None:
        """Begin another life."""
        self._life, self._points = Life(), None

    async def do(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Let it do ``work``. DiedError when it dies before the end."""
        return await self._life.run(work)

    def doom(self, *, turns: int | None = None, points: int | None = None) -> None:
        """Let it die after so many turns of the loop, or at the n-th failpoint; or neither."""
        self._points = points
        self._life.end(turns)

    async def over(self, limit_s: float | None = None) -> bool:
        """Wait for its death, at most so long; return whether it is dead."""
        await asyncio.wait([self._life.over], timeout=limit_s)
        return self._life.over.done()
