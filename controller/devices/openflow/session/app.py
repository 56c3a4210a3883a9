"""The os-ken application: turns OpenFlow messages into values and delivers them.

Its handlers run on os-ken's event thread, counters on their session's. ``deliver`` must be quick
and thread-safe.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from base import clock
from controller.devices.openflow.session import osken
from controller.devices.openflow.session.osken import (
    DEAD_DISPATCHER,
    MAIN_DISPATCHER,
    OpenFlowSession,
    ofp_event,
    ofproto,
)
from controller.devices.openflow.session.peer import Peer
from controller.devices.openflow.wire import arp


@dataclass(slots=True, frozen=True)
class SessionUp:
    """A known aggregator finished its handshake; ``ports`` says which ports have carrier."""

    session: OpenFlowSession
    ports: dict[int, bool]


@dataclass(slots=True, frozen=True)
class SessionDown:
    """The session has ended."""

    session: OpenFlowSession


@dataclass(slots=True, frozen=True)
class Reply:
    """An answer (``msg``, an os-ken message) to the request ``xid``."""

    session: OpenFlowSession
    xid: int
    msg: Any


@dataclass(slots=True, frozen=True)
class Rejected:
    """The aggregator refused the request ``xid``."""

    session: OpenFlowSession
    xid: int
    reason: str


@dataclass(slots=True, frozen=True)
class PortChanged:
    """A port gained or lost its carrier."""

    session: OpenFlowSession
    port: int
    up: bool


@dataclass(slots=True, frozen=True)
class ProbeAnswered:
    """An ARP reply to our probe address came in at ``port``; ``time`` is monotonic, in seconds."""

    session: OpenFlowSession
    port: int
    reply: arp.ArpReply
    time: float


@dataclass(slots=True, frozen=True)
class ClaimRefused:
    """``peer`` announced the datapath id ``dpid`` and was refused."""

    dpid: int
    peer: Peer
    reason: str


Incoming = ClaimRefused | SessionUp | SessionDown | Reply | Rejected | PortChanged | ProbeAnswered
Deliver = Callable[[Incoming], None]


class AggregatorApp(osken.OSKenApp):  # type: ignore[misc]  # os_ken has no types
    """Listens to all aggregators."""

    OFP_VERSIONS = (ofproto.OFP_VERSION,)

    def __init__(self, deliver: Deliver) -> None:
        super().__init__()
        self._deliver = deliver
        self._up: set[OpenFlowSession] = set()

    def _send_event(self, ev: Any, state: Any) -> None:
        """Queue an event for the event thread; not counters, of which there are many each second.

        They change nothing here, so the session's own thread delivers them.
        """
        if isinstance(ev, ofp_event.EventOFPPortStatsReply) and state == MAIN_DISPATCHER:
            self.replied(ev)
        else:
            super()._send_event(ev, state)

    @osken.set_ev_cls(ofp_event.EventOFPStateChange, [MAIN_DISPATCHER, DEAD_DISPATCHER])  # type: ignore[untyped-decorator]
    def state_changed(self, ev: Any) -> None:
        """An aggregator is ready, or its session is over."""
        session = ev.datapath
        if ev.state == MAIN_DISPATCHER:
            self._up.add(session)
            # Copied at once, because the session's thread changes them on port messages.
            ports = {
                number: _has_carrier(port)
                for number, port in session.ports.copy().items()
                if number <= ofproto.OFPP_MAX
            }
            self._deliver(SessionUp(session, ports))
        elif session in self._up:
            self._up.discard(session)
            self._deliver(SessionDown(session))

    @osken.set_ev_cls(  # type: ignore[untyped-decorator]
        [
            ofp_event.EventOFPFlowStatsReply,
            ofp_event.EventOFPGroupDescStatsReply,
            ofp_event.EventOFPPortStatsReply,
            ofp_event.EventOFPBarrierReply,
            ofp_event.EventOFPDescStatsReply,
            ofp_event.EventOFPTableFeaturesStatsReply,
        ],
        MAIN_DISPATCHER,
    )
    def replied(self, ev: Any) -> None:
        """An answer to one of our requests."""
        self._deliver(Reply(ev.msg.datapath, ev.msg.xid, ev.msg))

    @osken.set_ev_cls(ofp_event.EventOFPErrorMsg, MAIN_DISPATCHER)  # type: ignore[untyped-decorator]
    def rejected(self, ev: Any) -> None:
        """A refusal of one of our requests."""
        msg = ev.msg
        kind = ofproto.ofp_error_type_to_str(msg.type)
        reason = ofproto.ofp_error_code_to_str(msg.type, msg.code)
        self._deliver(Rejected(msg.datapath, msg.xid, f"{kind} {reason}"))

    @osken.set_ev_cls(ofp_event.EventOFPPortStatus, MAIN_DISPATCHER)  # type: ignore[untyped-decorator]
    def port_changed(self, ev: Any) -> None:
        """A port came, went or changed."""
        msg = ev.msg
        up = msg.reason != ofproto.OFPPR_DELETE and _has_carrier(msg.desc)
        if msg.desc.port_no <= ofproto.OFPP_MAX:
            self._deliver(PortChanged(msg.datapath, msg.desc.port_no, up))

    @osken.set_ev_cls(ofp_event.EventOFPPacketIn, MAIN_DISPATCHER)  # type: ignore[untyped-decorator]
    def packet_in(self, ev: Any) -> None:
        """The answer to an ARP probe; the flow tables send no other frames."""
        msg = ev.msg
        now = clock.monotonic()
        reply = arp.parse_reply(bytes(msg.data))
        if reply is not None:
            self._deliver(ProbeAnswered(msg.datapath, msg.match["in_port"], reply, now))


def _has_carrier(port: Any) -> bool:
    down = port.state & ofproto.OFPPS_LINK_DOWN or port.config & ofproto.OFPPC_PORT_DOWN
    return not down
