"""The only module that imports os_ken: its codec as it is, its runtime corrected.

os-ken 4.2 with native threads has these defects, each with its correction and a regression test in
``tests/unit/controller/devices/openflow/session/test_osken.py``:

1. ``hub.TaskExit`` is ``Exception``, so any exception in a handler silently ends the application's
   event loop. It becomes a class that is never raised: os-ken then logs the exception and goes on.
2. ``hub.Event.wait(timeout)`` never times out. ``hub.Event`` becomes ``threading.Event``.
3. ``AppManager.run_apps`` cannot end and its threads are not daemons. ``Runtime`` starts and stops
   the applications itself, and all threads are daemons.
4. A closed connection leaves its sender thread behind. ``OpenFlowSession`` has a sender that ends
   with it.
5. ``OpenFlowController`` listens on 0.0.0.0, twice, and never checks that a peer is alive.
   ``Runtime`` serves one given socket, and ``OpenFlowSession`` sends echoes (``session.liveness``).
6. A second peer that announces a known datapath id displaces the first. ``Runtime`` refuses it, and
   any peer other than the one that the site file pins the id to.
7. Port statistics are parsed one port at a time, 10 us each. ``port_stats.reply_parser`` takes the
   whole body at once.
"""

from __future__ import annotations

import os
import random
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from queue import SimpleQueue
from typing import Any

import structlog
from os_ken.base.app_manager import AppManager, OSKenApp
from os_ken.controller import ofp_event, ofp_handler
from os_ken.controller.controller import Datapath
from os_ken.controller.handler import (
    CONFIG_DISPATCHER,
    DEAD_DISPATCHER,
    HANDSHAKE_DISPATCHER,
    MAIN_DISPATCHER,
    set_ev_cls,
    set_ev_handler,
)
from os_ken.lib import hub
from os_ken.ofproto import ofproto_parser
from os_ken.ofproto import ofproto_v1_3 as ofproto
from os_ken.ofproto import ofproto_v1_3_parser as parser

from base import clock
from controller.base.token_bucket import TokenBucket
from controller.devices.openflow.session.listen import Acceptor, Listener
from controller.devices.openflow.session.liveness import ECHO_INTERVAL_S, Alive, Liveness
from controller.devices.openflow.session.meter import CPU_BURST_S, CPU_SHARE, Handling, Meter
from controller.devices.openflow.session.peer import Peer, is_pinned, pinned
from controller.devices.openflow.wire import table_features
from controller.devices.openflow.wire.framing import BadFrameError, take_frames
from controller.devices.openflow.wire.port_stats import reply_parser
from sitefile.model import AggregatorCable

__all__ = [
    "DEAD_DISPATCHER",
    "MAIN_DISPATCHER",
    "OSKenApp",
    "OpenFlowSession",
    "Runtime",
    "ofp_event",
    "ofproto",
    "parser",
    "set_ev_cls",
]

HANDSHAKE_LIMIT_S = 10.0
SEND_LIMIT_S = 30.0
SEND_QUEUE_BYTES = 64 << 20
MALFORMED_LIMIT = 16
PORTS_LIMIT = 1 << 13
"""Ports of one aggregator; one with more is refused."""
REQUESTS_LIMIT = 1024
"""Remembered requests of one session without an answer."""
HANDSHAKES_LIMIT = 64
"""Connections in their handshake at once, besides one for each aggregator of the site."""
PAUSE_SLICE_S = 0.2
_RECV_BYTES = 1 << 16
_LAST_ANSWERS = (ofproto.OFPT_BARRIER_REPLY, ofproto.OFPT_ERROR)

Refused = Callable[[int, Peer, str], None]
"""Datapath id, the peer that claimed it, and why it was refused."""

log = structlog.get_logger(__name__)


parser._MSG_PARSERS[ofproto.OFPT_MULTIPART_REPLY] = reply_parser(
    parser.OFPPortStatsReply,
    table_features.reply_parser(parser.OFPTableFeaturesStatsReply, parser.OFPMultipartReply.parser),
)


class _NeverRaised(BaseException):
    """Stands in for ``hub.TaskExit``."""


def _spawn(target: Callable[..., object], *args: Any, **kwargs: Any) -> threading.Thread:
    thread: threading.Thread = hub.HubThread(target, args, kwargs)
    thread.daemon = True
    thread.start()
    return thread


hub.TaskExit = _NeverRaised
hub.Event = threading.Event
hub.spawn = _spawn


class ProtocolError(Exception):
    """The peer violates OpenFlow 1.3; its session is closed."""


class OpenFlowSession(Datapath):  # type: ignore[misc]  # os_ken has no types
    """The connection of one peer: os-ken's datapath with a receiver and a sender that end together.

    ``send_msg`` may be called from any thread and never blocks.
    """

    def __init__(
        self,
        sock: socket.socket,
        peer: Peer,
        over: Callable[[OpenFlowSession], None] = lambda session: None,
    ) -> None:
        """``over`` is called once at the session's end, before the application is notified."""
        self.peer = peer
        self._over = over
        self._lock = threading.RLock()
        self._outbox: SimpleQueue[tuple[bytes, bool] | None] = SimpleQueue()
        self._queued_bytes = 0
        self._malformed = 0
        self._liveness = Liveness()
        self._meter = Meter()
        self._asked: dict[int, None] = {}
        """Transaction ids of open requests, oldest first."""
        super().__init__(sock, (peer.host, peer.port))
        self.xid = random.getrandbits(31)  # only has to differ between sessions
        sock.settimeout(SEND_LIMIT_S)

    def set_state(self, state: str) -> None:
        """Move to ``state``; a dead session stays dead, and its death is reported once."""
        with self._lock:
            if self.state != DEAD_DISPATCHER:
                if state == DEAD_DISPATCHER:
                    self._over(self)
                super().set_state(state)

    def set_xid(self, msg: Any) -> int:
        """Give ``msg`` the next transaction id and return it."""
        with self._lock:
            return int(super().set_xid(msg))

    def take_xids(self, count: int) -> list[int]:
        """Return the next ``count`` transaction ids."""
        with self._lock:
            first = int(self.xid)
            self.xid = (first + count) & ofproto.MAX_XID
            return [(first + 1 + n) & ofproto.MAX_XID for n in range(count)]

    def send_msg(self, msg: Any, close_socket: bool = False) -> bool:
        """Queue ``msg``; False when the session is over."""
        if msg.xid is None:
            self.set_xid(msg)
        if isinstance(msg, parser.OFPBarrierRequest):
            self._liveness.barrier_sent(msg.xid, clock.monotonic())
        if isinstance(msg, parser.OFPBarrierRequest | parser.OFPMultipartRequest):
            with self._lock:
                self._asked[msg.xid] = None
                if len(self._asked) > REQUESTS_LIMIT:
                    del self._asked[next(iter(self._asked))]
        return bool(super().send_msg(msg, close_socket))

    def send(self, buf: bytes, close_socket: bool = False) -> bool:
        """Write bytes, or queue them; with 64 MiB in the queue the session is closed.

        Bytes that the socket takes at once need no sender: waking it costs more than writing.
        """
        with self._lock:
            if self.state == DEAD_DISPATCHER:
                return False
            if self._queued_bytes + len(buf) <= SEND_QUEUE_BYTES:
                rest = buf if self._queued_bytes or close_socket else buf[self._written(buf) :]
                if rest or close_socket:
                    self._queued_bytes += len(rest)
                    self._outbox.put((bytes(rest), close_socket))
                return True
        log.warning("openflow_send_queue_full", peer=str(self.peer))
        self.close()
        return False

    def _written(self, buf: bytes) -> int:
        """Return how many bytes the socket took at once; 0 on an error, which the sender finds."""
        try:
            return os.write(self.socket.fileno(), buf)
        except OSError:
            return 0

    def close(self) -> None:
        """End the session. Both threads notice at once; idempotent, from any thread."""
        self.set_state(DEAD_DISPATCHER)
        self._outbox.put(None)
        try:
            # Wakes the receiver from poll() and the sender from sendall(); close() would not.
            self.socket.shutdown(socket.SHUT_RDWR)
        except OSError:
            return

    def serve(self) -> None:
        """Run the session on the calling thread until it ends."""
        sender = hub.spawn(self._send_loop)
        try:
            self.send_msg(self.ofproto_parser.OFPHello(self))
            self._recv_loop()
        except (ProtocolError, BadFrameError) as error:
            log.warning("openflow_protocol_error", peer=str(self.peer), error=str(error))
        except OSError as error:
            log.info("openflow_connection_lost", peer=str(self.peer), error=str(error))
        finally:
            self.close()
            sender.join()
            self.socket.close()
            self.is_active = False

    def _send_loop(self) -> None:
        while (item := self._outbox.get()) is not None:
            data, last = item
            try:
                self.socket.sendall(data)
            except OSError as error:
                log.info("openflow_send_failed", peer=str(self.peer), error=str(error))
                last = True
            with self._lock:
                self._queued_bytes -= len(data)
            if last:
                self.close()
                return

    def _recv_loop(self) -> None:
        poller = select.poll()
        poller.register(self.socket, select.POLLIN)
        born = clock.monotonic()
        work = TokenBucket(CPU_SHARE, CPU_BURST_S)
        buffer = bytearray()
        while self.state != DEAD_DISPATCHER:
            if self.state != MAIN_DISPATCHER and clock.monotonic() - born > HANDSHAKE_LIMIT_S:
                raise ProtocolError("handshake takes too long")
            if not poller.poll(ECHO_INTERVAL_S * 1000):
                self._quiet()
                continue
            data = self.socket.recv(_RECV_BYTES)
            if not data:
                return
            self._liveness.heard()
            buffer += data
            began = time.thread_time()
            for frame in take_frames(buffer):
                if self._is_wanted(frame):
                    self._received(frame)
            pause_s = work.spend(clock.monotonic(), time.thread_time() - began)
            if pause_s:  # without reading, so TCP slows the peer
                self._wait_or_end(pause_s)

    def _wait_or_end(self, pause_s: float) -> None:
        """Wait for ``pause_s`` seconds, or until the session is over."""
        until = clock.monotonic() + pause_s
        while self.state != DEAD_DISPATCHER and (left := until - clock.monotonic()) > 0:
            clock.sleep(min(left, PAUSE_SLICE_S))

    def _is_wanted(self, frame: bytes) -> bool:
        """Whether to decode a message. ProtocolError when there are too many of a kind."""
        kind, xid = frame[1], int.from_bytes(frame[4:8])
        handling = self._meter.judge(kind, asked=xid in self._asked, now=clock.monotonic())
        if handling is Handling.END:
            raise ProtocolError(f"too many messages of type {kind}")
        more = int.from_bytes(frame[10:12]) & ofproto.OFPMPF_REPLY_MORE
        if kind in _LAST_ANSWERS or (kind == ofproto.OFPT_MULTIPART_REPLY and not more):
            with self._lock:
                self._asked.pop(xid, None)
        return handling is Handling.DECODE

    def _quiet(self) -> None:
        if self._liveness.quiet(clock.monotonic()) is Alive.NO:
            log.warning("openflow_aggregator_silent", dpid=self.id, peer=str(self.peer))
            self.close()
        else:
            self.send_msg(self.ofproto_parser.OFPEchoRequest(self))

    def _received(self, frame: bytes) -> None:
        version, kind, length, xid = ofproto_parser.header(frame)
        if self.state != HANDSHAKE_DISPATCHER and version != ofproto.OFP_VERSION:
            raise ProtocolError(f"version {version:#x} after the handshake")
        try:
            msg = ofproto_parser.msg(self, version, kind, length, xid, frame)
            event = ofp_event.ofp_msg_to_ev(msg) if msg else None
        except Exception as error:  # os_ken's decoders raise any exception on a malformed message
            log.warning("openflow_malformed", peer=str(self.peer), type=kind, error=repr(error))
            event = None
        if event is None:
            self._malformed += 1
            if self.state != MAIN_DISPATCHER or self._malformed > MALFORMED_LIMIT:
                raise ProtocolError("malformed messages")
            return
        if isinstance(event.msg, parser.OFPBarrierReply | parser.OFPErrorMsg):
            self._liveness.barrier_done(xid)
        state = self.state
        self.ofp_brick.send_event_to_observers(event, state)
        for handler in list(self.ofp_brick.get_handlers(event, state)):
            try:
                handler(event)
            except Exception:
                log.exception("openflow_handler_failed", event_class=type(event).__name__)


class _Register:
    """The session of each datapath id. The first holder keeps an id until its session has ended.

    Only the peer that the site file pins an id to can hold it.
    """

    def __init__(self, known: Mapping[int, AggregatorCable]) -> None:
        self._known = known
        self._lock = threading.Lock()
        self._holders: dict[int, OpenFlowSession] = {}

    def refusal(self, dpid: int, session: OpenFlowSession) -> str | None:
        """Give ``dpid`` to ``session``, or return why it is refused."""
        cable = self._known.get(dpid)
        if cable is None:
            return "unknown datapath id"
        if not is_pinned(cable, session.peer):
            return f"the datapath id is pinned to {pinned(cable)}"
        with self._lock:
            if session.id is not None:
                return "a session has one datapath id"
            holder = self._holders.setdefault(dpid, session)
            if holder is not session:
                return f"the datapath id is in use by {holder.peer}"
            return None

    def release(self, session: OpenFlowSession) -> None:
        """Free what ``session`` held."""
        with self._lock:
            for dpid in [d for d, holder in self._holders.items() if holder is session]:
                del self._holders[dpid]


class Handshake(ofp_handler.OFPHandler):  # type: ignore[misc]  # os_ken has no types
    """os-ken's handshake without its own listener, and with a check of datapath ids."""

    def __init__(self, register: _Register, refused: Refused) -> None:
        super().__init__()
        self._register = register
        self._refused = refused

    def start(self) -> None:
        """Start the event loop only; OFPHandler would also listen on 0.0.0.0."""
        OSKenApp.start(self)

    @set_ev_handler(ofp_event.EventOFPSwitchFeatures, CONFIG_DISPATCHER)  # type: ignore[untyped-decorator]
    def switch_features_handler(self, ev: Any) -> None:
        """Accept a peer by its datapath id; refuse unknown ids and duplicates."""
        msg = ev.msg
        session: OpenFlowSession = msg.datapath
        if session.id == msg.datapath_id:
            return  # accepted already: one of the two answers was for an earlier controller
        refusal = "auxiliary connection" if msg.auxiliary_id else None
        refusal = refusal or self._register.refusal(msg.datapath_id, session)
        if refusal:
            log.warning(
                "openflow_peer_refused",
                reason=refusal,
                dpid=f"{msg.datapath_id:#x}",
                peer=str(session.peer),
            )
            session.close()
            self._refused(msg.datapath_id, session.peer, refusal)
            return
        super().switch_features_handler(ev)

    @set_ev_handler(ofp_event.EventOFPPortDescStatsReply, CONFIG_DISPATCHER)  # type: ignore[untyped-decorator]
    def multipart_reply_handler(self, ev: Any) -> None:
        """Take the ports of an accepted peer; earlier answers were for an earlier controller."""
        session: OpenFlowSession = ev.msg.datapath
        if session.id is None:
            return
        super().multipart_reply_handler(ev)
        if len(session.ports) > PORTS_LIMIT:
            log.warning("openflow_too_many_ports", peer=str(session.peer))
            session.close()


class Runtime:
    """os-ken's handshake and one application, served on one listening socket.

    os-ken keeps its applications in a table of the process, so one Runtime may run at a time.
    """

    def __init__(
        self,
        app: Callable[..., OSKenApp],
        arguments: Mapping[str, object],
        aggregators: Iterable[AggregatorCable],
        refused: Refused = lambda dpid, peer, why: None,
    ) -> None:
        """``refused`` is called, on os-ken's event thread, with every claim that is refused."""
        self._app = app
        self._arguments = arguments
        self._refused = refused
        known = {cable.dpid: cable for cable in aggregators}
        self._register = _Register(known)
        self._expected = len(known)
        self._manager = AppManager()
        self._acceptor: Acceptor | None = None
        self._lock = threading.Lock()
        self._sessions: dict[OpenFlowSession, threading.Thread] = {}

    def start(self, listener: Listener) -> tuple[str, int]:
        """Start the applications, serve ``listener`` and return its address."""
        for app in (
            self._manager.instantiate(Handshake, self._register, self._refused),
            self._manager.instantiate(self._app, **self._arguments),
        ):
            app.start()
        self._acceptor = Acceptor(listener, self._connected)
        self._acceptor.start()
        return self._acceptor.address

    def stop(self) -> None:
        """Stop listening, end every session and wait until all threads are gone."""
        if self._acceptor is not None:
            self._acceptor.stop()
            self._acceptor = None
        with self._lock:
            sessions = dict(self._sessions)
        for session in sessions:
            session.close()
        for thread in sessions.values():
            thread.join()
        self._manager.close()

    def _connected(self, sock: socket.socket, peer: Peer) -> None:
        with self._lock:
            unidentified = sum(1 for session in self._sessions if session.id is None)
            # The keeper hands all of the site's aggregators over to a new controller at once.
            if unidentified >= HANDSHAKES_LIMIT + self._expected:
                log.warning("openflow_too_many_handshakes", peer=str(peer))
                sock.close()
                return
            try:
                session = OpenFlowSession(sock, peer, self._register.release)
                self._sessions[session] = hub.spawn(self._serve, session)
            except (
                OSError,
                RuntimeError,
            ) as error:  # the peer is gone, or there is no room for a thread
                log.warning("openflow_connection_failed", peer=str(peer), error=str(error))
                sock.close()

    def _serve(self, session: OpenFlowSession) -> None:
        try:
            session.serve()
        finally:
            self._register.release(session)  # an id that it claimed while it ended
            with self._lock:
                self._sessions.pop(session, None)
