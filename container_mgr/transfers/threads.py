"""Runs what blocks in a thread of its own, and asks the event loop from there.

Such a thread never keeps the agent from ending.

A store whose server is gone holds its thread in the kernel without end; a pool would run out of
threads, and the interpreter waits for a pool's threads at its end.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import TypeVar

from agentlink.checkpoints import Folder, Holding, HoldingKind
from container_mgr.checkpoints.contract import Holder
from container_mgr.checkpoints.values import HeldPart, PartPlace
from container_mgr.values import AgentError

_T = TypeVar("_T")

ANSWER_S = 10.0
"""How long the event loop may take to answer a thread."""


def _answered(work: Callable[[], _T]) -> tuple[Future[_T], Callable[[], None]]:
    """Return a future, and what does the work and answers it."""
    future: Future[_T] = Future()

    def body() -> None:
        if not future.set_running_or_notify_cancel():
            return
        try:
            result = work()
        except BaseException as error:
            future.set_exception(error)
        else:
            future.set_result(result)

    return future, body


async def run(work: Callable[[], _T], name: str) -> _T:
    """Return what ``work`` returns. A caller that is cancelled leaves the thread behind."""
    future, body = _answered(work)
    threading.Thread(target=body, name=name, daemon=True).start()
    return await asyncio.wrap_future(future)


def on_loop(loop: asyncio.AbstractEventLoop, work: Callable[[], _T]) -> _T:
    """Run what belongs to the event loop there, from another thread. Raises AgentError."""
    future, body = _answered(work)
    try:
        loop.call_soon_threadsafe(body)
        return future.result(ANSWER_S)
    except (TimeoutError, RuntimeError) as error:
        raise AgentError("unavailable", "agent", "the agent ends, or is too slow") from error


class Held:
    """Asks on the loop, from any other thread. AgentError ``unavailable`` while the agent ends."""

    def __init__(self, holder: Holder, loop: asyncio.AbstractEventLoop) -> None:
        self._holder = holder
        self._loop = loop

    def folder(self, name: str) -> Folder | None:
        """See :meth:`Holder.folder`."""
        return on_loop(self._loop, partial(self._holder.folder, name))

    def find(self, place: PartPlace) -> HeldPart | None:
        """See :meth:`Holder.find`."""
        return on_loop(self._loop, partial(self._holder.find, place))

    def any_of(self, place: PartPlace, *kinds: HoldingKind) -> HeldPart | None:
        """Return the first of these kinds that is held at a place."""
        for kind in kinds:
            found = self.find(PartPlace(place.folder, place.endpoint, kind, place.rank, place.key))
            if found is not None:
                return found
        return None

    def report(self, holding: Holding) -> None:
        """See :meth:`Holder.report`."""
        on_loop(self._loop, partial(self._holder.report, holding))

    def damaged(self, place: PartPlace, why: str) -> None:
        """See :meth:`Holder.damaged`."""
        on_loop(self._loop, partial(self._holder.damaged, place, why))
