"""Reads parts of other agents. All of it blocks, in threads."""

from __future__ import annotations

import os
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from agentlink.checkpoints import Source
from base.addresses import split_address
from container_mgr.transfers import sockets, wire
from container_mgr.transfers.channel import Channel
from container_mgr.transfers.gate import SendGate
from container_mgr.transfers.wire import (
    AskBytes,
    AskCheck,
    AskPart,
    FrameKind,
    NotTrustedError,
    PartHead,
    PeerRefusalError,
    PeerSession,
    WireError,
)
from pki import agent_name

AHEAD = 4 << 20
"""Bytes that are asked for at once where the reader jumps."""
_TRIES = 4
"""How often in a row a connection may be lost without one byte that came."""
_AGAIN_S = 0.3


class PullError(Exception):
    """A part could not be had. ``endpoint`` did not have it whole, or no one did when empty."""

    def __init__(self, why: str, endpoint: str = "") -> None:
        super().__init__(why)
        self.why = why
        self.endpoint = endpoint


class EndedError(Exception):
    """Another request ended this transfer."""


class Stop:
    """Ends a transfer from another thread."""

    def __init__(self) -> None:
        self._event = threading.Event()
        self._lock = threading.Lock()
        self._channels: set[Channel] = set()

    def stop(self) -> None:
        """End the transfer: its thread gets EndedError."""
        self._event.set()
        with self._lock:
            channels = list(self._channels)
        for channel in channels:
            channel.abort()

    def check(self) -> None:
        """Raise EndedError once the transfer is to end."""
        if self._event.is_set():
            raise EndedError

    def sleep(self, seconds: float) -> None:
        """Wait; raises EndedError when the transfer is to end meanwhile."""
        if self._event.wait(seconds):
            raise EndedError

    @contextmanager
    def over(self, channel: Channel) -> Iterator[None]:
        """Abort ``channel`` when the transfer is to end while the body runs."""
        with self._lock:
            self._channels.add(channel)
        try:
            self.check()
            yield
        finally:
            with self._lock:
                self._channels.discard(channel)


class Dial(Protocol):
    """Opens a connection to who has a part."""

    def __call__(self, source: Source, stop: Stop) -> tuple[Channel, PeerSession]:
        """Return a session. Raises NotTrustedError, WireError, EndedError and OSError."""
        ...


@dataclass(slots=True, frozen=True)
class OverLight:
    """Dials over e0 from a rank's network namespace."""

    folder: str
    key: bytes
    namespace: str
    gate: SendGate

    def __call__(self, source: Source, stop: Stop) -> tuple[Channel, PeerSession]:
        """See :class:`Dial`."""
        channel = Channel(sockets.client_in(self.namespace), self.gate)
        return _greeted(channel, (source.address, wire.PORT), None, self, stop)


@dataclass(slots=True, frozen=True)
class OverManagement:
    """Dials over the management network, with TLS."""

    folder: str
    key: bytes
    tls: ssl.SSLContext

    def __call__(self, source: Source, stop: Stop) -> tuple[Channel, PeerSession]:
        """See :class:`Dial`."""
        try:
            host, port = split_address(source.address, lowest=1)
        except ValueError as error:
            raise OSError(str(error)) from None
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        channel = Channel(socket.socket(family, socket.SOCK_STREAM), SendGate())
        secure = (self.tls, agent_name(source.server))
        return _greeted(channel, (str(address[0]), int(address[1])), secure, self, stop)


def _greeted(
    channel: Channel,
    address: tuple[str, int],
    secure: tuple[ssl.SSLContext, str] | None,
    dial: OverLight | OverManagement,
    stop: Stop,
) -> tuple[Channel, PeerSession]:
    try:
        with stop.over(channel):
            deadline = channel.deadline(wire.HANDSHAKE_S)
            channel.connect(address, deadline)
            if secure is not None:
                channel.secure(*secure, deadline)
            return channel, wire.greet(channel, dial.folder, dial.key, os.urandom(32), deadline)
    except BaseException:
        channel.close()
        raise


class Remote:
    """A part or parity of another agent; a ``checkpoints.schemes.Source``. For one thread.

    A connection that is lost is opened again; so a pause that resets it costs nothing. Raises
    PullError and EndedError.
    """

    def __init__(
        self,
        dial: Dial,
        source: Source,
        ask: AskPart,
        stop: Stop,
        *,
        pace: int = 0,
        ahead: int = wire.MAX_READ,
        on_bytes: Callable[[int], None] = lambda count: None,
    ) -> None:
        self.endpoint = source.endpoint
        self._source = source
        self._dial = dial
        self._ask = ask
        self._stop = stop
        self._pace = pace
        self._ahead = min(ahead, wire.MAX_READ)
        self._on_bytes = on_bytes
        self._channel: Channel | None = None
        self._session: PeerSession | None = None
        self._head: PartHead | None = None
        self._at = 0
        self._next = self._end = 0
        """Where the range that was asked for goes on, and where it ends."""
        self._chunk = 0
        self._deadline = 0.0
        self._failures = 0

    def head(self) -> PartHead:
        """Return the other agent's description of the part."""
        while self._head is None:
            with self._again():
                self._opened()
        return self._head

    def seek(self, offset: int, /) -> int:
        """Go to ``offset`` bytes from the start."""
        self._at = offset
        return offset

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; none at the end."""
        block = bytearray(size)
        got = self.read_into(memoryview(block))
        return bytes(memoryview(block)[:got])

    def read_into(self, view: memoryview) -> int:
        """Read into ``view`` and return how many bytes; 0 at the end."""
        left = self.head().manifest.bytes - self._at
        view = view[: max(0, left)]
        while view:
            with self._again():
                got = self._some(view)
                self._at += got
                self._failures = 0
                self._on_bytes(got)
                return got
        return 0

    def check(self) -> str:
        """Have the other agent read its part again; return what is wrong, empty for nothing."""
        self._end = self._next  # a range that was not read to its end needs another connection
        self.close()
        try:
            session = self._opened()
            deadline = session.channel.deadline(wire.CHECK_S)
            with self._stop.over(session.channel):
                session.send(*wire.dump_ask(AskCheck()), deadline)
                session.expect(FrameKind.CHECKED, wire.MAX_REQUEST, deadline)
        except PeerRefusalError as error:
            return str(error)
        except (OSError, WireError, PullError) as error:
            return f"cannot be read again: {error}"
        return ""

    def close(self) -> None:
        """Close the connection."""
        if self._channel is not None:
            self._channel.close()
        self._channel = self._session = None
        self._next = self._end = self._chunk = 0

    def _opened(self) -> PeerSession:
        if self._session is not None:
            return self._session
        self._stop.check()
        self._channel, session = self._dial(self._source, self._stop)
        with self._stop.over(session.channel):
            deadline = session.channel.deadline(wire.ANSWER_S)
            session.send(*wire.dump_ask(self._ask), deadline)
            head = wire.receive_head(session, deadline)
        if self._head is not None and head.manifest.digest != self._head.manifest.digest:
            raise PullError("the part was replaced while it was read", self._source.endpoint)
        self._head, self._session = head, session
        return session

    def _some(self, view: memoryview) -> int:
        session = self._opened()
        with self._stop.over(session.channel):
            if self._at != self._next or self._next == self._end:
                self._ask_from(session, self._at)
            if not self._chunk:
                self._chunk = session.chunk(self._end - self._next, self._deadline)
            count = min(len(view), self._chunk)
            count = session.channel.receive_some(view[:count], self._deadline)
            self._chunk -= count
            self._next += count
            return count

    def _ask_from(self, session: PeerSession, at: int) -> None:
        while self._next < self._end:  # what was requested and is no longer needed
            self._chunk = self._chunk or session.chunk(self._end - self._next, self._deadline)
            session.channel.receive(self._chunk, self._deadline)
            self._next += self._chunk
            self._chunk = 0
        length = min(self._ahead, self.head().manifest.bytes - at)
        self._deadline = session.channel.deadline(wire.patience(length, self._pace))
        session.send(*wire.dump_ask(AskBytes(at, length, self._pace)), self._deadline)
        session.expect(FrameKind.DATA, wire.MAX_REQUEST, self._deadline)
        self._next, self._end = at, at + length

    @contextmanager
    def _again(self) -> Iterator[None]:
        """Retry the body after a lost connection; else raise PullError."""
        endpoint = self._source.endpoint
        where = f"{endpoint} at {self._source.address}"
        try:
            yield
        except PeerRefusalError as error:
            raise PullError(f"{endpoint} answered: {error}", endpoint) from error
        except NotTrustedError as error:
            why = f"what answers for {where} is not an agent of this job: {error}"
            if isinstance(self._dial, OverLight):
                why += f"; a program of rank {self._source.rank} may use port {wire.PORT}"
            raise PullError(why, endpoint) from error
        except WireError as error:
            raise PullError(f"{where} does not keep to the protocol: {error}", endpoint) from error
        except ssl.SSLCertVerificationError as error:
            why = f"{where} is not the agent of {self._source.server}: {error.verify_message}"
            raise PullError(why, endpoint) from error
        except OSError as error:
            self.close()
            self._stop.check()
            self._failures += 1
            if self._failures >= _TRIES:
                why = f"{where} cannot be reached: {error.strerror or error}"
                raise PullError(why, endpoint) from error
            if self._failures > 1:
                self._stop.sleep(_AGAIN_S)
