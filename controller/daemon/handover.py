"""The controller's side of ``controller.daemon.relay``: takes over aggregators' connections."""

from __future__ import annotations

import socket
from typing import Any

from controller.devices.openflow.session.peer import RECORD_BYTES, Peer


class HandoverListener:
    """Replaces the listening socket: ``accept`` returns what the relay hands over.

    ``address`` is where the relay listens.
    """

    def __init__(self, control: socket.socket, address: tuple[str, int]) -> None:
        self._control = control
        self._address = address

    def accept(self) -> tuple[socket.socket, Peer]:
        """Wait for a connection; return it and its peer. OSError after ``shutdown``."""
        record, files, _, _ = socket.recv_fds(self._control, RECORD_BYTES, 1)
        if not files:
            raise ConnectionAbortedError("the relay hands over no more connections")
        return _LocalSocket(fileno=files[0]), Peer.unpack(record)

    def getsockname(self) -> tuple[str, int]:
        """Return the address that aggregators connect to."""
        return self._address

    def shutdown(self, how: int) -> None:
        """Wake a thread that waits in ``accept``."""
        self._control.shutdown(how)

    def close(self) -> None:
        """Close this process's end."""
        self._control.close()


class _LocalSocket(socket.socket):
    """A local socket for code that expects TCP: os-ken sets TCP_NODELAY on it."""

    def setsockopt(self, level: int, *arguments: Any) -> None:
        """Set an option; ignore TCP's, which the relay sets on the aggregator's connection."""
        if level != socket.IPPROTO_TCP:
            super().setsockopt(level, *arguments)
