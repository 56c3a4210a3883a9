"""Runs blocking calls one after the other on one thread, each with a time limit."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from base.pools import Pool
from controller.base.tasks import seen

Given = ParamSpec("Given")
Result = TypeVar("Result")


class LateError(Exception):
    """A call did not end within the time limit.

    ``begun``: it may still be carried out. Otherwise it was not begun and never will be, because
    an earlier call has not ended.
    """

    def __init__(self, *, begun: bool) -> None:
        super().__init__("the call did not end in time" if begun else "an earlier call still runs")
        self.begun = begun


class OneThread:
    """One thread; calls run in the order in which they are made."""

    def __init__(self, name: str, limit_s: float | None = None) -> None:
        """``limit_s`` is the longest that a caller waits; None for unlimited."""
        self._limit_s = limit_s
        self._pool = Pool(name)
        self._late: asyncio.Future[Any] | None = None
        """The last call that did not end in time."""

    async def call(
        self, function: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs
    ) -> Result:
        """Return what ``function`` returns. LateError after the time limit.

        The call is carried out even if its caller is cancelled. After a late call the next one
        waits until that has ended.
        """
        late = self._late
        if late is not None:
            await asyncio.wait({late}, timeout=self._limit_s)
            if not late.done():
                raise LateError(begun=False)
            if self._late is late:
                self._late = None
        work = self._pool.run(function, *args, **kwargs)
        work.add_done_callback(seen)
        await asyncio.wait({work}, timeout=self._limit_s)
        if not work.done():
            self._late = work
            raise LateError(begun=True)
        return work.result()

    def close(self) -> None:
        """Take no further call. The thread ends after the calls that were made."""
        self._pool.close()
