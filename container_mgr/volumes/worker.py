"""Runs the calls on one file system in a thread of its own.

A call on a file system whose server is gone can wait in the kernel for ever. Only the thread
of that volume then waits; its callers learn that the volume does not answer.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any, TypeVar

_T = TypeVar("_T")

MAX_WAITING = 256


class Worker:
    """One thread, started with the first call. It does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None
        self._stuck: Future[Any] | None = None

    async def run(self, work: Callable[[], _T], timeout_s: float) -> _T:
        """Return what ``work`` returns.

        Raises TimeoutError when it takes longer, and at once while an earlier call is not back.
        A call that has not begun by then never happens; one that has begun may still complete.
        """
        if self._stuck is not None and not self._stuck.done():
            raise TimeoutError
        if self._queue.qsize() >= MAX_WAITING:
            raise TimeoutError
        self._stuck = None
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        future: Future[_T] = Future()
        self._queue.put((future, work))
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), timeout_s)
        except TimeoutError:
            if future.running():
                self._stuck = future
            raise

    def close(self) -> None:
        """End the thread after the calls that wait, without waiting for it."""
        self._queue.put(None)

    def _serve(self) -> None:
        while (item := self._queue.get()) is not None:
            future, work = item
            if future.set_running_or_notify_cancel():
                try:
                    future.set_result(work())
                except BaseException as error:
                    future.set_exception(error)
            del item, future, work
