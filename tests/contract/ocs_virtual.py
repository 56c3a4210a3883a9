"""Implements an event loop in virtual time: time jumps to the next timer, streams are in memory.

Seconds of a switch take microseconds, so that tens of thousands of fault scripts run in a minute.
Drivers and emulator run unchanged on it.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable
from itertools import count
from typing import Any

Address = tuple[str, int]


class _Jump(selectors.SelectSelector):
    """Advances the clock instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise RuntimeError("everything waits and no timer is set: the test hangs")
        self.now += timeout
        return []


class _Stream(asyncio.Transport):
    """One end of an in-memory connection."""

    def __init__(self, loop: VirtualLoop, protocol: Any, name: Address) -> None:
        super().__init__({"peername": name, "sockname": name})
        self._loop = loop
        self._protocol = protocol
        self._gone = False
        self.peer: _Stream | None = None

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self._gone and self.peer is not None:
            self._loop.call_soon(self.peer.deliver, bytes(data))

    def deliver(self, data: bytes) -> None:
        if not self._gone:
            self._protocol.data_received(data)

    def close(self) -> None:
        if not self._gone and self.peer is not None:
            self._loop.call_soon(self.peer.lose)
            self.lose()

    abort = close

    def lose(self) -> None:
        if not self._gone:
            self._gone = True
            self._loop.call_soon(self._protocol.connection_lost, None)
            if self.peer is not None:
                self._loop.call_soon(self.peer.lose)

    def is_closing(self) -> bool:
        return self._gone

    def get_write_buffer_size(self) -> int:
        return 0

    def pause_reading(self) -> None:
        raise NotImplementedError("no test sends that much")

    def resume_reading(self) -> None:
        return

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol


class _Listener:
    """Stands in for asyncio's server and socket."""

    def __init__(self, loop: VirtualLoop, address: Address) -> None:
        self._loop = loop
        self._address = address
        self._open = True
        self.sockets = (self,)

    def getsockname(self) -> Address:
        return self._address

    def is_serving(self) -> bool:
        return self._open

    def close(self) -> None:
        self._open = False
        self._loop.listeners.pop(self._address, None)

    async def wait_closed(self) -> None:
        return


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time; see ``run``."""

    def __init__(self) -> None:
        self._jump = _Jump()
        super().__init__(self._jump)
        self.listeners: dict[Address, Callable[[], Any]] = {}
        self._ports = count(40000)

    def time(self) -> float:
        return self._jump.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Any, func: Callable[..., Any], *args: Any
    ) -> asyncio.Future[Any]:
        """Execute the work immediately: virtual time does not wait for threads."""
        del executor
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done

    async def create_connection(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **options: Any
    ) -> tuple[Any, Any]:
        del options
        await asyncio.sleep(0)
        accept = self.listeners.get((host, port))
        if accept is None:
            raise ConnectionRefusedError(111, "Connection refused")
        ours, theirs = protocol_factory(), accept()
        near, far = _Stream(self, ours, (host, port)), _Stream(self, theirs, (host, 0))
        near.peer, far.peer = far, near
        ours.connection_made(near)
        theirs.connection_made(far)
        return near, ours

    async def create_server(  # type: ignore[override]
        self, protocol_factory: Callable[[], Any], host: str, port: int, **options: Any
    ) -> _Listener:
        del options
        address = (host, port or next(self._ports))
        self.listeners[address] = protocol_factory
        return _Listener(self, address)


def run(work: Any) -> Any:
    """Run a coroutine to its end on a new loop."""
    loop = VirtualLoop()
    asyncio.set_event_loop(loop)
    try:
        return loop.run_until_complete(work)
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        asyncio.set_event_loop(None)
        loop.close()
