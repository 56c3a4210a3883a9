"""Connections in memory: bytes arrive in order, after whatever else is ready."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from testbed.simulated.loop import VirtualLoop

Address = tuple[str, int]


class _Socket:
    """What libraries ask of the socket below a connection."""

    family = socket.AF_INET

    def __init__(self, peer: Address, own: Address) -> None:
        self._peer = peer
        self._own = own

    def getpeername(self) -> Address:
        return self._peer

    def getsockname(self) -> Address:
        return self._own

    def fileno(self) -> int:
        return -1

    def getsockopt(self, *_: object) -> bytes:
        raise OSError("this connection exists in memory only")

    def setsockopt(self, *_: object) -> None:
        """Ignore the option: none changes a connection in memory."""


class SimulatedStream(asyncio.Transport):
    """One end of a connection."""

    def __init__(self, loop: VirtualLoop, protocol: Any, peer: Address, own: Address) -> None:
        below = _Socket(peer, own)
        super().__init__({"peername": peer, "sockname": own, "socket": below})
        self._loop = loop
        self._protocol = protocol
        self._inbox: deque[Callable[[], None]] = deque()
        self._paused = False
        self._closing = False
        self._gone = False
        self.peer: SimulatedStream | None = None

    def schedule(self, event: Callable[[], None]) -> None:
        """Add an event of this end; events happen in order."""
        self._inbox.append(event)
        self._loop.call_soon(self._next)

    def _next(self) -> None:
        if self._inbox and not self._paused:
            self._inbox.popleft()()

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send ``data``, unless this end is closed."""
        if not self._closing and self.peer is not None and data:
            sent, peer = bytes(data), self.peer
            peer.schedule(lambda: peer._deliver(sent))

    def _deliver(self, data: bytes) -> None:
        if not self._gone:
            self._protocol.data_received(data)

    def can_write_eof(self) -> bool:
        """Return true."""
        return True

    def write_eof(self) -> None:
        """Send the other end that nothing follows."""
        if not self._closing and self.peer is not None:
            peer = self.peer
            peer.schedule(peer._end)

    def _end(self) -> None:
        if not self._gone and not self._protocol.eof_received():
            self.close()

    def close(self) -> None:
        """Close both ends, after what was sent; what this end has not read is dropped."""
        if not self._closing:
            self._closing = True
            self._inbox.clear()
            self._paused = False
            self.schedule(self._lose)
            if self.peer is not None:
                self.peer.schedule(self.peer._lose)

    abort = close

    def _lose(self) -> None:
        if not self._gone:
            self._gone = self._closing = True
            self._protocol.connection_lost(None)

    def is_closing(self) -> bool:
        """Return whether this end closes or is closed."""
        return self._closing

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Ignore limits: nothing is buffered."""

    def get_write_buffer_size(self) -> int:
        """Return 0: nothing is buffered."""
        return 0

    def is_reading(self) -> bool:
        """Return whether data are delivered."""
        return not self._paused

    def pause_reading(self) -> None:
        """Keep what arrives until ``resume_reading``."""
        self._paused = True

    def resume_reading(self) -> None:
        """Deliver what was kept."""
        self._paused = False
        for _ in range(len(self._inbox)):  # a collection of garbage may close a stream
            self._loop.call_soon(self._next)

    def set_protocol(self, protocol: Any) -> None:
        """Deliver to ``protocol`` from now on."""
        self._protocol = protocol

    def get_protocol(self) -> Any:
        """Return the protocol."""
        return self._protocol


class StreamListener:
    """Stands in for asyncio's server, and for its socket."""

    def __init__(self, loop: VirtualLoop, address: Address) -> None:
        self._loop = loop
        self._address = address
        self.sockets = (self,)

    def getsockname(self) -> Address:
        """Return where it listens."""
        return self._address

    def is_serving(self) -> bool:
        """Return whether it accepts connections."""
        return self._address in self._loop.listeners

    def close(self) -> None:
        """Refuse further connections."""
        self._loop.listeners.pop(self._address, None)

    async def wait_closed(self) -> None:
        """Return at once: nothing is left to close."""

    async def start_serving(self) -> None:
        """Return at once: it has been serving since it was made."""

    async def __aenter__(self) -> StreamListener:
        return self

    async def __aexit__(self, *_: object) -> None:
        self.close()


def connect(
    loop: VirtualLoop, ours: Any, theirs: Any, here: Address, there: Address
) -> tuple[SimulatedStream, SimulatedStream]:
    """Connect two protocols, whose ends are ``here`` and ``there``."""
    near, far = SimulatedStream(loop, ours, there, here), SimulatedStream(loop, theirs, here, there)
    near.peer, far.peer = far, near
    ours.connection_made(near)
    theirs.connection_made(far)
    return near, far
