"""The controller's side of ``controller.daemon.relay``: aggregators' connections, handed over."""

from __future__ import annotations

import socket
from typing import Any

from controller.devices.openflow.session.peer import RECORD_BYTES, Peer


class HandedOver:
    """Stands in for the listening socket: ``accept`` yields what the front hands over.

    ``address`` is where the front listens.
    """

    def __init__(self, control: socket.socket, address: tuple[str, int]) -> None:
        self._control = control
        self._address = address

    def accept(self) -> tuple[socket.socket, Peer]:
        """Wait for a connection; return it and who is there. OSError when told to end."""
        record, files, _, _ = socket.recv_fds(self._control, RECORD_BYTES, 1)
        if not files:
            raise ConnectionAbortedError("the front hands over no more connections")
        return _Near(fileno=files[0]), Peer.unpack(record)

    def getsockname(self) -> tuple[str, int]:
        """Return where switches call."""
        return self._address

    def shutdown(self, how: int) -> None:
        """Wake who waits in ``accept``."""
        self._control.shutdown(how)

    def close(self) -> None:
        """Close this process's end."""
        self._control.close()


class _Near(socket.socket):
    """A local socket among code that believes it is TCP: os-ken sets TCP_NODELAY on it."""

    def setsockopt(self, level: int, *arguments: Any) -> None:
        """Set an option, if it is not one of TCP's; those are set on the switch's connection."""
        if level != socket.IPPROTO_TCP:
            super().setsockopt(level, *arguments)
