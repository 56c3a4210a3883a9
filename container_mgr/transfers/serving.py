"""Gives parts to other agents: one thread accepts, one thread per connection answers.

A hostile peer can at worst end its own connection: frames, times and connections are bounded, and
of the connections that have proved nothing yet the oldest gives way to a new one.
"""

from __future__ import annotations

import os
import selectors
import socket
import ssl
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

import structlog

from agentlink.checkpoints import HoldingKind
from base import clock
from container_mgr.checkpoints.values import HeldPart, PartPlace
from container_mgr.transfers import parts, sockets, wire
from container_mgr.transfers.channel import Channel
from container_mgr.transfers.gate import Pacer, SendGate
from container_mgr.transfers.parts import DamagedPartError, PartStream
from container_mgr.transfers.threads import Held
from container_mgr.transfers.wire import AskBytes, AskCheck, AskPart, PeerSession, WireError
from container_mgr.values import AgentError
from pki import agent_name

MAX_CONNECTIONS = 256
MAX_OF_JOB = 32
MAX_HALF_OPEN = 16
"""Connections of one rank's listener that have not proved the key."""
RATE, BURST = 100, 256
"""Connections a second of one rank's listener, and how many at once. More wait in the kernel."""
_LEAST_CHUNK = 16 << 10
_CHUNKS_PER_S = 20
_PAUSE_S = 0.2

_log = structlog.get_logger("container_mgr.transfers")


@dataclass(slots=True, eq=False)
class PartListener:
    """A socket that accepts. ``folder`` empty: the management network, TLS, any job."""

    socket: socket.socket
    folder: str
    gate: SendGate
    half_open: list[Channel] = field(default_factory=list)
    channels: set[Channel] = field(default_factory=set)
    closed: bool = False
    pacer: Pacer = field(default_factory=lambda: Pacer(RATE, BURST))


class Serving:
    """All listeners of an agent, and their connections."""

    def __init__(self, held: Held, tls: ssl.SSLContext | None) -> None:
        self._held = held
        self._tls = tls
        self._lock = threading.Lock()
        self._jobs: Counter[str] = Counter()
        self._count = 0
        self._selector = selectors.DefaultSelector()
        self._ended = False
        ours, self._wake = socket.socketpair()
        ours.setblocking(False)
        self._wake.setblocking(False)
        self._selector.register(ours, selectors.EVENT_READ, None)
        self._changes: list[Callable[[], object]] = []
        self._resting: dict[PartListener, float] = {}
        """When those that had too many connections accept again; of the accepting thread."""
        threading.Thread(target=self._accept_forever, name="transfer-accept", daemon=True).start()

    def add(self, listener: PartListener) -> None:
        """Accept connections from now on."""
        listener.socket.setblocking(False)
        register = partial(self._selector.register, listener.socket)
        self._change(partial(register, selectors.EVENT_READ, listener))

    def remove(self, listener: PartListener) -> None:
        """Close a listener and its connections."""
        listener.closed = True
        self._change(partial(self._forget, listener))
        with self._lock:
            channels = list(listener.channels)
        for channel in channels:
            channel.abort()

    def close(self) -> None:
        """Close all."""
        self._ended = True
        self._change(bool)

    def _change(self, change: Callable[[], object]) -> None:
        with self._lock:
            self._changes.append(change)
        with suppress(BlockingIOError, OSError):
            self._wake.send(b"\0")

    def _forget(self, listener: PartListener) -> None:
        self._resting.pop(listener, None)
        with suppress(KeyError, ValueError):
            self._selector.unregister(listener.socket)
        listener.socket.close()

    def _accept_forever(self) -> None:
        while not self._ended:
            for found, _ in self._selector.select(self._wake_rested()):
                if found.data is None:
                    self._apply(found.fileobj)
                else:
                    self._accept(found.data)
        for found in list(self._selector.get_map().values()):
            if isinstance(found.data, PartListener):
                self.remove(found.data)
        self._apply(None)
        self._selector.close()
        self._wake.close()

    def _wake_rested(self) -> float | None:
        """Make listeners accept again when due; return the seconds to the next time."""
        now = clock.monotonic()
        for listener in [one for one, until in self._resting.items() if until <= now]:
            del self._resting[listener]
            if not listener.closed:
                self._selector.register(listener.socket, selectors.EVENT_READ, listener)
        return max(0.0, min(self._resting.values()) - now) if self._resting else None

    def _apply(self, ours: object) -> None:
        if isinstance(ours, socket.socket):
            with suppress(BlockingIOError):
                ours.recv(4096)
        with self._lock:
            changes, self._changes = self._changes, []
        for change in changes:
            try:
                change()
            except (OSError, ValueError, KeyError) as error:
                _log.error("listener not changed", reason=str(error))

    def _accept(self, listener: PartListener) -> None:
        try:
            one, _ = listener.socket.accept()
        except BlockingIOError:
            return
        except OSError as error:  # no descriptors are left, or the listener was closed
            _log.warning("connection not accepted", reason=str(error))
            clock.sleep(_PAUSE_S)
            return
        now = clock.monotonic()
        # The management network belongs to no rank.
        if listener.folder and (rest_s := listener.pacer.reserve(1, now)) > 0:
            self._selector.unregister(listener.socket)
            self._resting[listener] = now + rest_s
        channel = Channel(one, listener.gate)
        with self._lock:
            full = self._count >= MAX_CONNECTIONS
            most = MAX_HALF_OPEN if listener.folder else MAX_CONNECTIONS // 2
            oldest = listener.half_open[0] if len(listener.half_open) >= most else None
            if oldest is not None:
                listener.half_open.remove(oldest)
            if not full:
                self._count += 1
                listener.half_open.append(channel)
                listener.channels.add(channel)
        if oldest is not None:
            oldest.abort()
        if full:
            channel.close()
            return
        work = partial(self._serve, listener, channel, one)
        threading.Thread(target=work, name="transfer-serve", daemon=True).start()

    def _serve(self, listener: PartListener, channel: Channel, one: socket.socket) -> None:
        folder = ""
        try:
            folder, session = self._meet(listener, channel)
            with self._lock:
                if channel in listener.half_open:
                    listener.half_open.remove(channel)
                self._jobs[folder] += 1
                full = self._jobs[folder] > MAX_OF_JOB
            if full:
                raise WireError("the job has too many transfers")
            _Conversation(self._held, folder, session, one).run()
        except (OSError, WireError, AgentError) as error:
            _log.debug("transfer ended", folder=folder, reason=str(error))
        finally:
            channel.close()
            with self._lock:
                self._count -= 1
                listener.channels.discard(channel)
                if channel in listener.half_open:
                    listener.half_open.remove(channel)
                elif folder:
                    self._jobs[folder] -= 1
                    self._jobs += Counter()

    def _meet(self, listener: PartListener, channel: Channel) -> tuple[str, PeerSession]:
        deadline = channel.deadline(wire.HANDSHAKE_S)
        if not listener.folder:
            if self._tls is None:
                raise WireError("no TLS here")
            channel.secure(self._tls, None, deadline)
            if not any(name.endswith(agent_name("")) for name in channel.peer_names()):
                raise WireError("the peer's certificate is not an agent's")
        name, nonce = wire.hello(channel, deadline)
        known = self._held.folder(name) if listener.folder in ("", name) else None
        key = known.key if known is not None else os.urandom(32)
        return name, wire.prove(channel, name, key, (nonce, os.urandom(32)), deadline)


class _Conversation:
    """Answers the requests of one peer that has proved the key."""

    def __init__(self, held: Held, folder: str, session: PeerSession, one: socket.socket) -> None:
        self._held = held
        self._folder = folder
        self._session = session
        self._socket = one
        self._part: HeldPart | None = None
        self._stream: PartStream | None = None
        self._pace = 0
        self._pacer = Pacer(0, 0)

    def run(self) -> None:
        """Answer until the peer leaves. Raises OSError and WireError."""
        session = self._session
        try:
            while True:
                deadline = session.channel.deadline(wire.ANSWER_S)
                ask = wire.parse_ask(*session.receive(wire.MAX_REQUEST, deadline))
                match ask:
                    case AskPart():
                        self._send_head(ask)
                    case AskBytes():
                        self._send_bytes(ask)
                    case AskCheck():
                        self._check()
        finally:
            self._close()

    def _close(self) -> None:
        if self._stream is not None:
            self._stream.close()
        self._stream = self._part = None

    def _send_head(self, ask: AskPart) -> None:
        self._close()
        deadline = self._session.channel.deadline(wire.ANSWER_S)
        place = PartPlace(self._folder, ask.endpoint, HoldingKind.OWN, ask.rank, ask.key)
        part = self._held.any_of(place, *ask.kinds)
        if part is None:
            why = f"{ask.endpoint} does not hold rank {ask.rank}'s part of step {ask.key.step}"
            self._session.fail(why, deadline)
            return
        try:
            self._stream = PartStream(part.root, part.manifest)
        except OSError as error:
            self._withdraw(part, str(error.strerror))
            return
        self._part = part
        head = wire.PartHead(part.manifest, part.covers, part.manifests)
        wire.send_head(self._session, head, deadline)

    def _withdraw(self, part: HeldPart, why: str) -> None:
        self._held.damaged(part.place, why)
        deadline = self._session.channel.deadline(wire.ANSWER_S)
        self._session.fail(why, deadline, damaged=True)

    def _send_bytes(self, ask: AskBytes) -> None:
        session, stream, part = self._session, self._stream, self._part
        deadline = session.channel.deadline(wire.patience(ask.length, ask.pace))
        if stream is None or part is None or ask.offset + ask.length > stream.length:
            session.fail("no such bytes", deadline)
            return
        chunk = self._chunk(ask.pace)
        session.send(wire.FrameKind.DATA, b"{}", deadline)
        at, end = ask.offset, ask.offset + ask.length
        while at < end:
            try:
                descriptor, offset, left = stream.place(at)
                size = min(left, end - at, chunk)
                if os.fstat(descriptor).st_size < offset + size:
                    raise DamagedPartError("a file became shorter")
            except DamagedPartError as error:
                session.begin_chunk(0, deadline)
                self._withdraw(part, str(error))
                return
            clock.sleep(self._pacer.reserve(size, clock.monotonic()))
            session.begin_chunk(size, deadline)
            session.channel.send_file(descriptor, offset, size, deadline)
            at += size

    def _chunk(self, pace: int) -> int:
        if not pace:
            self._pace, self._pacer = 0, Pacer(0, 0)
            return wire.MAX_CHUNK
        pace = max(pace, wire.SLOWEST)
        chunk = min(max(pace // _CHUNKS_PER_S, _LEAST_CHUNK), wire.MAX_CHUNK)
        if pace != self._pace:
            self._pace, self._pacer = pace, Pacer(pace, chunk)
            with suppress(OSError):
                sockets.slow_down(self._socket, pace)
        return chunk

    def _check(self) -> None:
        part, channel = self._part, self._session.channel
        if part is None:
            self._session.fail("no part was asked for", channel.deadline(wire.ANSWER_S))
            return
        try:
            found = (
                parts.summary(damages)
                if (damages := parts.damages(part.root, part.manifest))
                else ""
            )
        except OSError as error:
            found = str(error.strerror)
        if found:
            self._withdraw(part, found)
        else:
            self._session.send(wire.FrameKind.CHECKED, b"{}", channel.deadline(wire.ANSWER_S))
