"""Runs the calls on one file system in a thread of its own.

A call on a file system whose server is gone can wait in the kernel without end. Only the thread
of that volume then waits; its callers get TimeoutError.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from queue import SimpleQueue
from typing import Any, Generic, ParamSpec, TypeVar

_Given = ParamSpec("_Given")
_T = TypeVar("_T")

MAX_WAITING = 256


class VolumeThread:
    """One thread, started with the first call. It does not keep the process alive."""

    def __init__(self, name: str) -> None:
        self._thread = _Thread(name)
        self._waiting = 0
        self._stuck: _Call[Any] | None = None

    async def run(self, work: Callable[[], _T], timeout_s: float) -> _T:
        """Return what ``work`` returns.

        Raises TimeoutError when it takes longer, and at once while an earlier call is not back.
        A call that has not begun by then never happens; one that has begun may still complete.
        """
        if self._stuck is not None and not self._stuck.over:
            raise TimeoutError
        if self._waiting >= MAX_WAITING:
            raise TimeoutError
        self._stuck = None
        call = _Call(work)
        self._waiting += 1
        try:
            running = asyncio.get_running_loop().run_in_executor(self._thread, call)
            return await asyncio.wait_for(running, timeout_s)
        except TimeoutError:
            if call.begun:
                self._stuck = call
            raise
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """End the thread after the calls that wait, without waiting for it."""
        self._thread.shutdown(wait=False)


class _Call(Generic[_T]):
    """One call, and how far it is."""

    def __init__(self, work: Callable[[], _T]) -> None:
        self._work = work
        self.begun = False
        self.over = False

    def __call__(self) -> _T:
        self.begun = True
        try:
            return self._work()
        finally:
            self.over = True


class _Thread(Executor):
    """An executor whose thread ends with the process, also in the middle of a call."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._max_workers = 1
        self._shutdown = False
        self._queue: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._thread: threading.Thread | None = None

    def submit(
        self, fn: Callable[_Given, _T], /, *args: _Given.args, **kwargs: _Given.kwargs
    ) -> Future[_T]:
        """Call ``fn`` in the thread."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._serve, name=self._name, daemon=True)
            self._thread.start()
        future: Future[_T] = Future()
        self._queue.put((future, lambda: fn(*args, **kwargs)))
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """End the thread after the calls that wait."""
        del wait, cancel_futures
        self._shutdown = True
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
