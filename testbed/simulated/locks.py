"""Locks of a simulation: pool work that waits for one is suspended, as a thread would be.

Pool work that holds a lock does not yield to others by reading the clock, so the loop itself seldom
finds a lock held; where it does, that is an error, as nothing could release the lock.
"""

from __future__ import annotations

import threading
from _thread import allocate_lock
from collections.abc import Iterator
from contextlib import contextmanager
from threading import get_ident
from typing import Any
from unittest.mock import patch

from greenlet import getcurrent

from testbed.simulated.work import WorkEvent, _Call


class SimulatedLock:
    """Stands in for ``threading.Lock``; between real threads it is one."""

    def __init__(self) -> None:
        self._lock = allocate_lock()
        self._holder: _Call | None = None
        self._thread = 0
        self._gates: list[WorkEvent] = []

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock; pool work waits without a limit."""
        call = getcurrent()
        if not isinstance(call, _Call):
            if not self._lock.acquire(False):
                if blocking and self._holder is not None and self._thread == get_ident():
                    raise RuntimeError("the loop waits for a lock that suspended work holds")
                if not self._lock.acquire(blocking, timeout):
                    return False
            self._thread = get_ident()
            return True
        while not self._lock.acquire(False):
            if not blocking:
                return False
            self._gates.append(gate := WorkEvent())
            gate.wait()
        self._holder, self._thread = call, get_ident()
        call.holds += 1
        return True

    def release(self) -> None:
        """Give the lock back."""
        holder, self._holder = self._holder, None
        self._lock.release()
        if holder is not None:
            holder.holds -= 1
        gates, self._gates = self._gates, []
        for gate in gates:
            gate.set()

    def locked(self) -> bool:
        """Return whether the lock is held."""
        return self._lock.locked()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]


class RLock:
    """Stands in for ``threading.RLock``."""

    def __init__(self) -> None:
        self._lock = SimulatedLock()
        self._owner: Any = None
        self._count = 0

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Acquire the lock, or acquire it once more."""
        me = _me()
        if self._owner != me:
            if not self._lock.acquire(blocking, timeout):
                return False
            self._owner = me
        self._count += 1
        return True

    def release(self) -> None:
        """Give the lock back, once."""
        if self._owner != _me():
            raise RuntimeError("cannot release un-acquired lock")
        self._count -= 1
        if not self._count:
            self._owner = None
            self._lock.release()

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()

    def _is_owned(self) -> bool:
        return bool(self._owner == _me())

    def _release_save(self) -> tuple[int, Any]:
        saved = self._count, self._owner
        self._count, self._owner = 0, None
        self._lock.release()
        return saved

    def _acquire_restore(self, saved: tuple[int, Any]) -> None:
        self._lock.acquire()
        self._count, self._owner = saved

    def _at_fork_reinit(self) -> None:
        self.__init__()  # type: ignore[misc]


def _me() -> Any:
    """Return who asks: pool work, or a thread."""
    call = getcurrent()
    return call if isinstance(call, _Call) else get_ident()


@contextmanager
def without_blocking() -> Iterator[None]:
    """Make locks of the simulation for a while."""
    with patch.object(threading, "Lock", SimulatedLock), patch.object(threading, "RLock", RLock):
        yield
