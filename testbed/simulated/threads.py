"""Threads of a simulation that a program starts itself, and what they wait for.

Each thread is pool work without a limit. A wait outside of it would stop the loop, so it is refused
where nothing else could end it.
"""

from __future__ import annotations

import asyncio
import errno
import select
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent

from testbed.simulated.work import WorkEvent, _Call

if TYPE_CHECKING:
    from testbed.simulated.loop import VirtualLoop
    from testbed.simulated.streams import SimulatedStream

SOCKET_BYTES = 208 << 10
"""Bytes that a socket accepts before the other end reads, and that it keeps of what came."""


def _loop() -> VirtualLoop:
    call = getcurrent()
    return call._loop if isinstance(call, _Call) else asyncio.get_running_loop()  # type: ignore[return-value]


class Thread:
    """Stands in for ``threading.Thread``."""

    def __init__(
        self,
        *,
        target: Callable[..., object],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
        name: str = "",
        daemon: bool = True,
    ) -> None:
        del name, daemon
        self._target = target
        self._args = args
        self._kwargs = kwargs or {}
        self._over = WorkEvent()

    def start(self) -> None:
        """Begin to run."""
        _loop().run_in_executor(None, self._run)

    def _run(self) -> None:
        try:
            self._target(*self._args, **self._kwargs)
        finally:
            self._over.set()

    def join(self) -> None:
        """Wait for its end."""
        if not self._over.is_set():
            self._over.wait()


class _Waiting:
    """What threads wait for; each change is followed by ``_changed``."""

    def __init__(self) -> None:
        self._gates: list[WorkEvent] = []
        """One for each thread that waits."""

    def _changed(self) -> None:
        gates, self._gates = self._gates, []
        for gate in gates:
            gate.set()

    def _wait(self, ready: Callable[[], object], limit_s: float | None = None) -> bool:
        """Wait until ``ready``; False after ``limit_s`` seconds."""
        if ready():
            return True
        late: list[bool] = []

        def give_up() -> None:
            late.append(True)
            self._changed()

        timer = None if limit_s is None else _loop().call_later(limit_s, give_up)
        while not ready() and not late:
            self._gates.append(gate := WorkEvent())
            gate.wait()
        if timer is not None:
            timer.cancel()
        return bool(ready())


class SimulatedQueue(_Waiting):
    """Stands in for ``queue.Queue`` and ``SimpleQueue``; it is never full."""

    def __init__(self, maxsize: int = 0) -> None:
        super().__init__()
        self.maxsize = maxsize
        self._items: deque[Any] = deque()

    def put(self, item: Any) -> None:
        """Add an item."""
        self._items.append(item)
        self._changed()

    def get(self) -> Any:
        """Wait for an item and remove it."""
        self._wait(lambda: self._items)
        return self._items.popleft()

    def empty(self) -> bool:
        """Return whether nothing waits."""
        return not self._items

    def qsize(self) -> int:
        """Return how many items wait."""
        return len(self._items)


class Semaphore(_Waiting):
    """Stands in for ``threading.Semaphore``; the loop itself never waits for a turn."""

    def __init__(self, value: int = 1) -> None:
        super().__init__()
        self._left = value

    def acquire(self) -> bool:
        """Acquire a turn."""
        if isinstance(getcurrent(), _Call):
            self._wait(lambda: self._left > 0)
        self._left -= 1
        return True

    def release(self) -> None:
        """Give a turn back."""
        self._left += 1
        self._changed()


class Socket(_Waiting):
    """A connected socket in memory for threads that block on it; the protocol of a stream."""

    def __init__(self, accepted: Callable[[Socket], None]) -> None:
        super().__init__()
        self._accepted = accepted
        self._stream: SimulatedStream
        self._heard = bytearray()
        self._under_way = 0
        """Bytes that the other end has not read yet."""
        self._ended = False
        """The other end sends no more."""
        self._broken = False
        self._limit_s: float | None = None

    def connection_made(self, stream: SimulatedStream) -> None:
        """Begin, as the protocol of ``stream``."""
        self._stream = stream
        self._accepted(self)

    def data_received(self, data: bytes) -> None:
        """Keep what came until it is read."""
        self._heard += data
        if len(self._heard) >= SOCKET_BYTES:
            self._stream.pause_reading()
        self._changed()

    def eof_received(self) -> bool:
        """Note that the other end sends no more; this one still may."""
        self._ended = True
        self._changed()
        return True

    def connection_lost(self, _: Exception | None) -> None:
        """Note that the other end has hung up."""
        self._ended = self._broken = True
        self._changed()

    def readable(self) -> bool:
        """Return whether ``recv`` returns at once."""
        return bool(self._heard) or self._ended

    def recv(self, most: int) -> bytes:
        """Wait for bytes and return them; empty at the end."""
        if not self._wait(self.readable, self._limit_s):
            raise TimeoutError("timed out")
        taken = bytes(self._heard[:most])
        del self._heard[:most]
        if not self._stream.is_reading() and len(self._heard) < SOCKET_BYTES:
            self._stream.resume_reading()
        return taken

    def write(self, data: bytes) -> int:
        """Send what there is room for and return how much that was; OSError without any room."""
        if self._broken:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        room = SOCKET_BYTES - self._under_way
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable")
        sent = data[:room]
        self._under_way += len(sent)
        self._stream.write(sent)
        if self._stream.peer is not None:
            self._stream.peer.schedule(lambda: self._taken(len(sent)))
        return len(sent)

    def _taken(self, count: int) -> None:
        self._under_way -= count
        self._changed()

    def sendall(self, data: bytes) -> None:
        """Send all, as fast as the other end reads it."""
        rest = bytes(data)
        while rest:
            room = self._wait(lambda: self._broken or self._under_way < SOCKET_BYTES, self._limit_s)
            if not room:
                raise TimeoutError("timed out")
            rest = rest[self.write(rest) :]

    def shutdown(self, how: int) -> None:
        """End the connection at once, in both directions. OSError when it has ended."""
        del how
        if self._broken:
            raise OSError(errno.ENOTCONN, "Transport endpoint is not connected")
        self._hang_up()

    def close(self) -> None:
        """End the connection."""
        if not self._broken:
            self._hang_up()

    def _hang_up(self) -> None:
        self._ended = self._broken = True
        self._stream.resume_reading()
        self._stream.close()
        self._changed()

    def settimeout(self, limit_s: float | None) -> None:
        """Wait at most so long."""
        self._limit_s = limit_s

    def setsockopt(self, *_: object) -> None:
        """Ignore the option: none changes a connection in memory."""

    def fileno(self) -> Socket:
        """Return itself, for a ``write`` that stands in for ``os.write``."""
        return self


class Poll:
    """Stands in for ``select.poll`` of one socket."""

    def register(self, socket: Socket, events: int) -> None:
        """Wait for bytes of ``socket``, whatever else is asked for."""
        del events
        self._socket = socket

    def poll(self, limit_ms: float) -> list[tuple[Socket, int]]:
        """Wait until there is something to read, or for ``limit_ms``."""
        socket = self._socket
        ready = socket._wait(socket.readable, limit_ms / 1000)
        return [(socket, select.POLLIN)] if ready else []


class ThreadListener(_Waiting):
    """A listening socket in memory, whose ``accept`` blocks the calling thread."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__()
        self._loop = _loop()
        self._come: deque[Socket] = deque()
        self._shut = False
        self._address = (host, port or next(self._loop._ports))
        if self._address in self._loop.listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self._loop.listeners[self._address] = lambda: Socket(self._accepted)

    def _accepted(self, socket: Socket) -> None:
        self._come.append(socket)
        self._changed()

    def accept(self) -> tuple[Socket, Any]:
        """Wait for a connection; return it with the peer's address."""
        self._wait(lambda: self._come or self._shut)
        if self._shut:
            raise OSError(errno.EINVAL, "Invalid argument")
        socket = self._come.popleft()
        return socket, socket._stream.get_extra_info("peername")

    def getsockname(self) -> tuple[str, int]:
        """Return where it listens."""
        return self._address

    def shutdown(self, how: int) -> None:
        """Wake who waits in ``accept``."""
        del how
        self._shut = True
        self._changed()

    def close(self) -> None:
        """Refuse further connections, and end those that were not accepted."""
        self._loop.listeners.pop(self._address, None)
        for socket in self._come:
            socket.close()
