"""An event loop in virtual time: one thread, no sockets, and by seed another order every time."""

from __future__ import annotations

import asyncio
import errno
import selectors
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from random import Random
from threading import get_ident
from typing import Any

from base import clock as process_clock
from testbed.simulated.anyio_work import without_threads
from testbed.simulated.calls import without_sockets
from testbed.simulated.clock import VirtualClock
from testbed.simulated.lives import Life, Ready
from testbed.simulated.locks import without_blocking
from testbed.simulated.streams import Address, SimulatedStream, StreamListener, connect
from testbed.simulated.work import SimulatedPools

LONGEST_DELAY_S = 0.02
"""Longest delay of pool work until it begins, or hands over its result, where a seed is given."""
_OWN = ("anon_inode:inotify", "anon_inode:[pidfd]")
"""Descriptors that the kernel makes ready by what this process does: it changes a file, or ends a
child and waits for it."""
LOOK_AGAIN_S = 0.1
"""Longest jump while a task waits for something to happen: it may have happened already."""
REAL_LOOK_S = 0.005
"""How often ``settled`` returns in real time."""

_Look = tuple["asyncio.Task[Any] | None", "asyncio.Future[None]"]


class RealTimeError(Exception):
    """Something waits for the real world, which virtual time does not cover."""

    def __init__(self, what: str) -> None:
        super().__init__(f"{what} in virtual time: the test needs the mark real_time")


class _Jump(selectors.SelectSelector):
    """Advances the clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.jump: Callable[[float | None], None] = lambda timeout: None

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0) if len(self.get_map()) > 1 else []
        if not ready and timeout != 0:
            self.jump(timeout)
        return ready


class VirtualLoop(asyncio.SelectorEventLoop):
    """Runs a simulation; with a seed, draws the order of all that is ready at the same time."""

    def __init__(self, clock: VirtualClock, seed: int | None = None) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)
        self._jump.jump = self._idle
        self.clock = clock
        self.random = None if seed is None else Random(seed)  # noqa: S311  # an order
        """What draws; None keeps asyncio's order."""
        self.lives: list[Life] = []
        """Programs that may die; only where a seed is given."""
        if seed is not None:
            self._ready = Ready()
        self._thread = get_ident()
        self._workers = SimulatedPools(self)
        clock.work = self._workers
        self.listeners: dict[Address, Callable[[], Any]] = {}
        self._ports = count(40_000)
        self._looking: list[_Look] = []
        """Watchers that check when nothing is ready any more."""
        self._later: list[_Look] = []
        """Watchers that have checked at this moment, and check again after the next jump."""
        self._looked: set[asyncio.Task[Any] | None] = set()
        self._intruder: RealTimeError | None = None

    def time(self) -> float:
        """Return steady seconds."""
        return self.clock.now

    def close(self) -> None:
        """End what is suspended."""
        if not self.is_closed():
            self._workers.close()
            self.clock.work = None
        super().close()

    async def settled(self) -> None:
        """Return when nothing is ready: once for each moment and task, then after a jump."""
        task, waiter = asyncio.current_task(), self.create_future()
        (self._later if task in self._looked else self._looking).append((task, waiter))
        await waiter

    def busy(self) -> bool:
        """Return whether something is ready, or a timer is due."""
        if self._ready:
            return True
        scheduled = self._scheduled  # type: ignore[attr-defined]
        return bool(scheduled) and scheduled[0]._when <= self.clock.now

    def after_delay(
        self, callback: Callable[[], object], longest_s: float = LONGEST_DELAY_S
    ) -> None:
        """Call ``callback`` after a delay by seed; without a seed, next."""
        if self.random is None:
            self.call_soon(callback)
        else:
            self.call_later(self.random.random() ** 4 * longest_s, callback)

    def _idle(self, timeout: float | None) -> None:
        """Advance the clock, since nothing is ready."""
        if self._intruder is not None:
            raise self._intruder
        looking, self._looking = self._looking, []
        for task, waiter in looking:
            if not waiter.done():
                self._looked.add(task)
                waiter.set_result(None)
        if looking:
            return
        if timeout is None:
            raise RuntimeError("everything waits and no timer is set")
        self._looking, self._later = self._later, []
        self._looked.clear()
        self.clock.advance(min(timeout, LOOK_AGAIN_S) if self._looking else timeout)

    def _run_once(self) -> None:
        if self.random is not None:
            ready = self._ready
            if len(ready) > 1:
                drawn = list(ready)
                self.random.shuffle(drawn)
                ready.clear()
                ready.extend(drawn)
        super()._run_once()  # type: ignore[misc]

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Call ``func`` on this thread, as one of the executor's threads would."""
        return self._workers.run(executor, func, args)

    def call_soon_threadsafe(  # type: ignore[override]
        self, callback: Callable[..., Any], *args: Any, context: Any = None
    ) -> asyncio.Handle:
        """Call ``callback`` next; only this simulation's own work may ask for it."""
        if get_ident() != self._thread:
            self._intruder = RealTimeError("a thread calls the loop")
            raise self._intruder
        return self.call_soon(callback, *args, context=context)

    async def create_connection(
        self,
        protocol_factory: Callable[[], Any],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: Any = None,
        sock: Any = None,
        **options: Any,
    ) -> tuple[SimulatedStream, Any]:
        """Connect in memory. ConnectionRefusedError where nothing listens."""
        del options
        if ssl or sock or host is None or port is None:
            raise RealTimeError("a connection of a real socket, or with TLS,")
        here, there = (host, next(self._ports)), (host, port)
        refusal = ConnectionRefusedError(errno.ECONNREFUSED, f"Connect call failed {there}")
        return await self._connect(protocol_factory, here, there, refusal)

    async def create_server(  # type: ignore[override]
        self,
        protocol_factory: Callable[[], Any],
        host: str | None = None,
        port: int | None = None,
        *,
        ssl: Any = None,
        sock: Any = None,
        **options: Any,
    ) -> StreamListener:
        """Listen in memory. OSError where something listens already."""
        del options
        if ssl or sock or not isinstance(host, str) or port is None:
            raise RealTimeError("a server on a real socket, or with TLS,")
        address = (host, port or next(self._ports))
        if address in self.listeners:
            raise OSError(errno.EADDRINUSE, f"error while attempting to bind on address {address}")
        self.listeners[address] = protocol_factory
        return StreamListener(self, address)

    async def create_unix_connection(
        self, protocol_factory: Callable[[], Any], path: Any = None, **options: Any
    ) -> tuple[SimulatedStream, Any]:
        """Connect in memory. FileNotFoundError where nothing listens."""
        if options.get("ssl") or options.get("sock") or path is None:
            raise RealTimeError("a connection of a real socket, or with TLS,")
        refusal = FileNotFoundError(errno.ENOENT, "No such file or directory")
        return await self._connect(protocol_factory, ("", 0), (str(path), 0), refusal)

    async def create_unix_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], path: Any = None, **options: Any
    ) -> StreamListener:
        """Listen in memory, at a socket that shows in the file system."""
        if options.get("ssl") or options.get("sock") or path is None:
            raise RealTimeError("a server on a real socket, or with TLS,")
        with socket.socket(socket.AF_UNIX) as shown:
            shown.bind(str(path))
        address = (str(path), 0)
        self.listeners[address] = protocol_factory
        return StreamListener(self, address)

    async def _connect(
        self, protocol_factory: Callable[[], Any], here: Address, there: Address, refusal: OSError
    ) -> tuple[SimulatedStream, Any]:
        await asyncio.sleep(0)
        accept = self.listeners.get(there)
        if accept is None:
            raise refusal
        ours = protocol_factory()
        near, _ = connect(self, ours, accept(), here, there)
        return near, ours

    def _add_reader(self, fd: Any, callback: Any, *args: Any) -> Any:
        if fd != self._ssock.fileno() and not _is_own(fd):  # type: ignore[attr-defined]
            raise RealTimeError("a file descriptor is read")
        return super()._add_reader(fd, callback, *args)  # type: ignore[misc]

    def _add_writer(self, fd: Any, callback: Any, *args: Any) -> Any:
        raise RealTimeError("a file descriptor is written")

    async def subprocess_exec(self, *args: Any, **options: Any) -> Any:
        """Refuse: a child process lives in real time."""
        raise RealTimeError("a child process")

    subprocess_shell = subprocess_exec


def _is_own(fd: Any) -> bool:
    number = fd if isinstance(fd, int) else fd.fileno()
    return str(Path(f"/proc/self/fd/{number}").readlink()) in _OWN


async def settled() -> None:
    """Return when something more has happened, which is all that a test can wait for."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualLoop):
        await loop.settled()
    else:
        await asyncio.sleep(REAL_LOOK_S)


async def answered(longest_s: float = LONGEST_DELAY_S) -> None:
    """Return when a device that is asked now answers: at once, or after a delay by seed."""
    loop = asyncio.get_running_loop()
    if isinstance(loop, VirtualLoop) and loop.random is not None:
        waiter = loop.create_future()

        def answer() -> None:
            if not waiter.done():
                waiter.set_result(None)

        loop.after_delay(answer, longest_s)
        await waiter


class VirtualPolicy(asyncio.DefaultEventLoopPolicy):
    """Makes virtual loops wherever the process's clock is virtual."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        """Return a loop by the clock of the process."""
        clock = process_clock.current()
        return VirtualLoop(clock) if isinstance(clock, VirtualClock) else super().new_event_loop()


@contextmanager
def simulation() -> Iterator[VirtualClock]:
    """Give this process a virtual clock for a while; loops made meanwhile run by it."""
    clock = VirtualClock()
    with process_clock.replaced(clock), without_threads(), without_sockets(), without_blocking():
        yield clock
