"""Pool work of a simulation: each call runs on the loop's thread, in a greenlet of its own.

Work that waits (``clock.sleep``, ``WorkEvent.wait``) is suspended and the loop goes on, as with a
thread that waits. A pool runs as many calls at a time as it has threads, in order of arrival.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import Executor
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from greenlet import getcurrent, greenlet

from testbed.simulated.clock import READING_S

if TYPE_CHECKING:
    from testbed.simulated.loop import VirtualLoop


class SimulatedPools:
    """The pools of one simulation."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self._pools: WeakKeyDictionary[Executor, _Pool] = WeakKeyDictionary()
        self._calls: set[_Call] = set()
        self._closing = False

    def run(
        self, executor: Executor | None, function: Callable[..., Any], arguments: tuple[Any, ...]
    ) -> asyncio.Future[Any]:
        """Call ``function`` in a pool; None is the pool without a limit."""
        if executor is not None and executor._shutdown:  # type: ignore[attr-defined]
            raise RuntimeError("cannot schedule new futures after shutdown")
        call = _Call(self._loop, function, arguments, self._calls)
        if executor is None:
            self._loop.after_delay(call.begin)
            return call.result
        pool = self._pools.get(executor)
        if pool is None:
            threads = executor._max_workers  # type: ignore[attr-defined]
            pool = self._pools[executor] = _Pool(self._loop, threads)
        pool.accept(call)
        return call.result

    def read(self) -> None:
        """Charge time to a reading of the clock by a call, in which the loop goes on."""
        call = getcurrent()
        if isinstance(call, _Call) and not self._closing:
            loop = self._loop
            loop.clock.advance(READING_S)
            if loop.busy() and not call.holds:
                loop.call_soon(call.go_on)
                call.wait()

    def sleep(self, seconds: float) -> bool:
        """Suspend the call that is running for ``seconds``. False when none is."""
        call = getcurrent()
        if not isinstance(call, _Call):
            return False
        self._loop.call_later(seconds, call.go_on)
        call.wait()
        return True

    def close(self) -> None:
        """End the calls that are suspended, also those that are no longer awaited."""
        self._closing = True
        for call in list(self._calls):
            call.end()
        self._calls.clear()


class _Call(greenlet):  # type: ignore[misc]
    """One call, with the future of its result."""

    def __init__(
        self,
        loop: VirtualLoop,
        function: Callable[..., Any],
        arguments: tuple[Any, ...],
        calls: set[_Call],
    ) -> None:
        super().__init__(self._work)
        self._loop = loop
        self._calls = calls
        calls.add(self)
        self._function = function
        self._arguments = arguments
        self.result: asyncio.Future[Any] = loop.create_future()
        self.over: Callable[[], None] = lambda: None
        """Called when the call is over."""
        self.holds = 0
        """Locks that it holds."""

    def __hash__(self) -> int:
        return id(self)

    def begin(self) -> None:
        """Begin, unless it is no longer awaited."""
        if self.result.cancelled():
            self._calls.discard(self)
            self.over()
        else:
            self.go_on()

    def go_on(self) -> None:
        """Run until the call waits or is over, on the loop's thread but outside of its tasks."""
        if self.dead:
            return
        self.parent = getcurrent()
        asyncio._set_running_loop(None)
        try:
            self.switch()
        finally:
            asyncio._set_running_loop(self._loop)

    def wait(self) -> None:
        """Suspend this call until ``go_on``."""
        if self.parent is None:
            raise RuntimeError("this call does not run")
        self.parent.switch()

    def end(self) -> None:
        """End the call where it is suspended."""
        if self and not self.dead:
            self.parent = getcurrent()
            self.throw()

    def _work(self) -> None:
        try:
            value = self._function(*self._arguments)
        except Exception as error:
            self._settle(self.result.set_exception, error)
        else:
            self._settle(self.result.set_result, value)
        finally:
            self._calls.discard(self)

    def _settle(self, settle: Callable[[Any], None], outcome: Any) -> None:
        """Hand the result over, after which the thread is free."""

        def report() -> None:
            if not self.result.done():
                settle(outcome)
            self.over()

        self._loop.after_delay(report)


class _Pool:
    """Runs as many calls at a time as the executor it stands for has threads."""

    def __init__(self, loop: VirtualLoop, threads: int) -> None:
        self._loop = loop
        self._free = threads
        self._waiting: deque[_Call] = deque()

    def accept(self, call: _Call) -> None:
        self._waiting.append(call)
        self._begin()

    def _begin(self) -> None:
        while self._free and self._waiting:
            self._free -= 1
            call = self._waiting.popleft()
            call.over = self._over
            self._loop.after_delay(call.begin)

    def _over(self) -> None:
        self._free += 1
        self._begin()


class WorkEvent:
    """An event for which pool work waits; ``threading.Event`` where no simulation runs."""

    def __init__(self) -> None:
        self._open = False
        self._waiting: list[_Call] = []

    def is_set(self) -> bool:
        """Return whether the gate is open."""
        return self._open

    def set(self) -> None:
        """Set the event and resume all that wait."""
        self._open = True
        waiting, self._waiting = self._waiting, []
        for call in waiting:
            call._loop.call_soon(call.go_on)

    def clear(self) -> None:
        """Close the gate."""
        self._open = False

    def wait(self) -> None:
        """Suspend the calling pool work until the gate is open."""
        call = getcurrent()
        if not isinstance(call, _Call):
            raise RuntimeError("only pool work of a simulation can wait at a gate")
        while not self._open:
            self._waiting.append(call)
            call.wait()
