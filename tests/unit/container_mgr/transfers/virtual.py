"""Transfers in virtual time: their threads are of the simulation, their sockets in memory.

TLS is what two ends say of themselves: it names servers and encrypts nothing.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import errno
import os
import select
import selectors
import socket
import ssl
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from container_mgr.transfers import channel, pulling, serving, sockets, threads
from pki import Credentials
from testbed.simulated.loop import VirtualLoop
from testbed.simulated.threads import SOCKET_BYTES, Thread, _loop, _Waiting
from testbed.simulated.work import WorkEvent


class Number(int):
    """A descriptor of no file, which knows its socket."""

    socket: End


class End(_Waiting):
    """One end of a connection; it never blocks."""

    def __init__(self, *_: object) -> None:
        super().__init__()
        self.peer: End | None = None
        self.credentials: Credentials | None = None
        """Shown where TLS is spoken."""
        self._heard = bytearray()
        self._ended = False

    def connect_ex(self, address: tuple[str, int]) -> int:
        accept = _loop().listeners.get(address)
        if accept is None:
            return errno.ECONNREFUSED
        self.join(accept())
        return 0

    def join(self, other: End) -> None:
        """Connect the two ends."""
        self.peer, other.peer = other, self

    def recv_into(self, view: memoryview) -> int:
        if not self._heard and not self._ended:
            raise BlockingIOError(errno.EAGAIN, "nothing has come")
        block = self._heard[: len(view)]
        view[: len(block)] = block
        del self._heard[: len(block)]
        if self.peer is not None:
            self.peer._changed()
        return len(block)

    def recv(self, most: int) -> bytes:
        block = bytearray(most)
        return bytes(block[: self.recv_into(memoryview(block))])

    def send(self, data: bytes | memoryview) -> int:
        peer = self.peer
        if peer is None or peer._ended or self._ended:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        room = SOCKET_BYTES - len(peer._heard)
        if room <= 0:
            raise BlockingIOError(errno.EAGAIN, "the other end does not read")
        peer._heard += data[:room]
        peer._changed()
        return min(room, len(data))

    def ready(self, events: int) -> int:
        """Return which of ``events`` would not block."""
        full = self.peer is not None and len(self.peer._heard) >= SOCKET_BYTES
        now = select.POLLIN * bool(self._heard or self._ended) | select.POLLOUT * (not full)
        return now & events

    def shutdown(self, _how: int) -> None:
        for one in (self, self.peer):
            if one is not None:
                one._ended = True
                one._changed()

    def close(self) -> None:
        self.shutdown(socket.SHUT_RDWR)

    def fileno(self) -> Number:
        number = Number(-1)
        number.socket = self
        return number

    def setblocking(self, _blocking: bool) -> None:
        """Never block in any case."""

    def setsockopt(self, *_: object) -> None:
        """Take any option."""

    def getsockopt(self, *_: object) -> Any:
        raise OSError(errno.EOPNOTSUPP, "no kernel knows this connection")


class TlsEnd(End):
    """An end that shows its agent's name, and knows the other's after a handshake."""

    def __init__(self, plain: End, mine: Credentials, wanted: str | None) -> None:
        super().__init__()
        self.credentials = mine
        self._wanted = wanted
        self._met = False
        self._heard = plain._heard
        self._ended = plain._ended
        assert plain.peer is not None
        self.join(plain.peer)
        plain._changed()

    def do_handshake(self) -> None:
        peer = self.peer
        if peer is None or (self._ended and not self._heard):
            raise ssl.SSLEOFError("the connection has ended")
        if peer.credentials is None:
            raise ssl.SSLWantReadError
        if self._wanted is not None and peer.credentials.name != self._wanted:
            raise ssl.SSLCertVerificationError(f"not {self._wanted}")
        self._met = True

    def getpeercert(self) -> dict[str, Any]:
        assert self.peer is not None
        assert self.peer.credentials is not None
        return {"subjectAltName": (("DNS", self.peer.credentials.name),)}

    def join(self, other: End) -> None:
        super().join(other)
        other._changed()

    def ready(self, events: int) -> int:
        if self._met:
            return super().ready(events)
        shown = self._ended or (self.peer is not None and self.peer.credentials is not None)
        return events if shown else 0


class Context:
    """Stands in for the TLS of one agent."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def wrap_socket(self, plain: End, *, server_hostname: str | None, **_: object) -> TlsEnd:
        return TlsEnd(plain, self._credentials, server_hostname)


class Poll:
    """Stands in for ``select.poll`` of one end."""

    def register(self, end: End, events: int) -> None:
        self._end, self._events = end, events

    def poll(self, limit_ms: float) -> list[tuple[End, int]]:
        end, events = self._end, self._events
        return [(end, events)] if end._wait(lambda: end.ready(events), limit_ms / 1000) else []


class Listening(End):
    """An end that accepts."""

    def __init__(self, host: str, port: int) -> None:
        super().__init__()
        loop = _loop()
        self._loop = loop
        self._come: deque[End] = deque()
        self._address = (host, port or next(loop._ports))
        loop.listeners[self._address] = self._connected

    def _connected(self) -> End:
        self._come.append(End())
        self._changed()
        return self._come[-1]

    def getsockname(self) -> tuple[str, int]:
        return self._address

    def accept(self) -> tuple[End, Any]:
        if not self._come:
            raise BlockingIOError(errno.EAGAIN, "nobody has come")
        return self._come.popleft(), ("", 0)

    def ready(self, events: int) -> int:
        return events if self._come else 0

    def close(self) -> None:
        self._loop.listeners.pop(self._address, None)


class Selector:
    """Stands in for a selector of ends that are read."""

    def __init__(self) -> None:
        self._keys: dict[End, selectors.SelectorKey] = {}

    def register(self, end: End, events: int, data: Any) -> None:
        self._keys[end] = selectors.SelectorKey(end, -1, events, data)  # type: ignore[arg-type]

    def unregister(self, end: End) -> None:
        del self._keys[end]

    def get_map(self) -> dict[End, selectors.SelectorKey]:
        return self._keys

    def select(self, limit_s: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for one of the ends, ``limit_s`` at most."""
        late: list[bool] = []
        while not late and not (found := [end for end in self._keys if end.ready(select.POLLIN)]):
            gate = WorkEvent()
            for end in self._keys:
                end._gates.append(gate)
            if limit_s is not None:
                _loop().call_later(limit_s, lambda gate=gate: (late.append(True), gate.set()))
            gate.wait()
        return [(self._keys[end], selectors.EVENT_READ) for end in found]

    def close(self) -> None:
        """Hold nothing."""


class Event(_Waiting):
    """Stands in for ``threading.Event``."""

    def __init__(self) -> None:
        super().__init__()
        self._set = False

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        self._changed()

    def wait(self, limit_s: float | None = None) -> bool:
        return self._wait(lambda: self._set, limit_s)


class Future(concurrent.futures.Future[Any]):
    """A future for whose result pool work waits."""

    def result(self, timeout: float | None = None) -> Any:
        waiting = _Waiting()
        self.add_done_callback(lambda _: waiting._changed())
        waiting._wait(self.done, timeout)
        return super().result(0)


def _pair() -> tuple[End, End]:
    ours, theirs = End(), End()
    ours.join(theirs)
    return ours, theirs


def _sendfile(to: Number, descriptor: int, offset: int, count: int) -> int:
    return to.socket.send(os.pread(descriptor, count, offset))


def _stand_in(real: Any, **changed: Any) -> Any:
    """Return a module with some names changed."""
    return SimpleNamespace(**{**vars(real), **changed})


@contextmanager
def transfers() -> Iterator[None]:
    """Let transfers that begin meanwhile run in virtual time, where the running loop does."""
    if not isinstance(asyncio.get_running_loop(), VirtualLoop):
        yield
        return
    thread: Callable[..., Thread] = Thread
    net = _stand_in(socket, socket=End, socketpair=_pair)
    with pytest.MonkeyPatch.context() as patch:
        for module in (serving, threads, pulling):
            patch.setattr(
                module, "threading", _stand_in(module.threading, Thread=thread, Event=Event)
            )
        patch.setattr(threads, "Future", Future)
        patch.setattr(serving, "socket", net)
        patch.setattr(serving, "selectors", _stand_in(selectors, DefaultSelector=Selector))
        patch.setattr(pulling, "socket", net)
        patch.setattr(channel, "socket", net)
        patch.setattr(channel, "select", _stand_in(select, poll=Poll))
        patch.setattr(channel, "ssl", _stand_in(ssl, SSLSocket=TlsEnd))
        patch.setattr(channel, "os", _stand_in(os, sendfile=_sendfile))
        patch.setattr(sockets, "server_context", Context)
        patch.setattr(sockets, "client_context", Context)
        patch.setattr(sockets, "listener", Listening)
        yield
