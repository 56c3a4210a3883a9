"""Listening TCP socket, in a network namespace if asked, and the loop that accepts on it."""

from __future__ import annotations

import errno
import os
import socket
import threading
from collections.abc import Callable
from typing import Any, Protocol

import structlog
from pyroute2 import netns as namespaces

from base import clock
from base.addresses import split_address
from controller.devices.openflow.session.peer import Peer

_BACKLOG = 64
_NO_ROOM = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}
_ROOM_PAUSE_S = 0.2

log = structlog.get_logger(__name__)

Connection = Callable[[socket.socket, Peer], None]


class Listener(Protocol):
    """The source of connections: a listening socket, or one that hands them over."""

    def accept(self) -> tuple[socket.socket, Any]:
        """Wait for a connection; return it, and its peer or the peer's address. OSError."""

    def getsockname(self) -> Any:
        """Return where it listens."""

    def shutdown(self, how: int, /) -> None:
        """Wake a thread that waits in ``accept``."""

    def close(self) -> None:
        """Close it."""


def listening_socket(address: str, netns: str | None = None) -> socket.socket:
    """Return a socket that listens on ``address``, made inside namespace ``netns`` if given.

    A socket stays in the namespace in which it was made, and each thread has its own namespace. So
    a short-lived thread enters the namespace; the rest of the process does not.
    Raises OSError (address in use, no such namespace, no permission).
    """
    if netns is None:
        return _bound(address)
    made: list[socket.socket] = []
    failed: list[BaseException] = []

    def inside() -> None:
        try:
            namespaces.setns(netns, flags=os.O_RDONLY)
            made.append(_bound(address))
        except BaseException as error:  # raised in the caller
            failed.append(error)

    thread = threading.Thread(target=inside, name=f"netns-{netns}", daemon=True)
    thread.start()
    thread.join()
    if failed:
        raise failed[0]
    return made[0]


class Acceptor:
    """Accepts connections on a daemon thread and passes each to ``connection``."""

    def __init__(self, listener: Listener, connection: Connection) -> None:
        self._listener = listener
        self._connection = connection
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="openflow-accept", daemon=True)

    @property
    def address(self) -> tuple[str, int]:
        """The bound host and port."""
        host, port = self._listener.getsockname()[:2]
        return str(host), int(port)

    def start(self) -> None:
        """Begin to accept."""
        self._thread.start()

    def stop(self) -> None:
        """Stop accepting and close the socket; established connections are not touched."""
        self._stopping.set()
        # close() alone does not wake a thread blocked in accept(); shutdown() does.
        self._listener.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._listener.close()

    def _loop(self) -> None:
        while not self._stopping.is_set():
            try:
                sock, address = self._listener.accept()
            except OSError as error:
                if self._stopping.is_set():
                    return
                log.warning("openflow_accept_failed", error=str(error))
                if error.errno in _NO_ROOM:
                    clock.sleep(_ROOM_PAUSE_S)
                continue
            peer = address if isinstance(address, Peer) else Peer(str(address[0]), int(address[1]))
            self._connection(sock, peer)


def _bound(address: str) -> socket.socket:
    host, port = split_address(address)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    sock = socket.socket(family, socket.SOCK_STREAM)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind((host, port))
        sock.listen(_BACKLOG)
    except OSError:
        sock.close()
        raise
    return sock
