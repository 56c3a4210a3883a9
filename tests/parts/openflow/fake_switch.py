"""An OpenFlow 1.3 switch that exists in memory only and speaks real OpenFlow over TCP."""

from __future__ import annotations

import asyncio
import ssl
import struct
from collections import Counter
from collections.abc import Callable
from contextlib import suppress

from controller.devices.openflow.rules.pipeline import PROBE_MAC
from controller.devices.openflow.rules.rule import FlowRule, RuleKey, match
from controller.devices.openflow.session import messages
from controller.devices.openflow.session.osken import ofproto as ofp
from controller.devices.openflow.session.osken import parser
from controller.devices.openflow.wire import arp
from controller.devices.openflow.wire.framing import take_frames

_BAD_MULTIPART = (ofp.OFPET_BAD_REQUEST, ofp.OFPBRC_BAD_MULTIPART)
_TABLE_FULL = (ofp.OFPET_FLOW_MOD_FAILED, ofp.OFPFMFC_TABLE_FULL)


class _Far:
    """What os-ken's decoders ask of a datapath."""

    ofproto = ofp
    ofproto_parser = parser


def message(kind: int, xid: int = 0, body: bytes = b"", version: int = ofp.OFP_VERSION) -> bytes:
    """Frame ``body``."""
    return struct.pack("!BBHI", version, kind, 8 + len(body), xid) + body


class FakeSwitch:
    """One switch. Its tables survive reconnects, as those of a real one do."""

    def __init__(self, dpid: int, ports: tuple[int, ...] = (1, 2)) -> None:
        self.dpid = dpid
        self.ports = ports
        self.rules: dict[RuleKey, tuple[FlowRule, bytes]] = {}
        self.groups: dict[int, bytes] = {}
        self.seen: Counter[int] = Counter()
        self.refuse: Callable[[FlowRule], bool] = lambda rule: False
        self.description = b""
        """The body of its answer to what it is; none: it refuses to say."""
        self.features = b""
        """The features of its tables; none: it refuses to say."""
        self.barriers = True
        self.answers = True
        self.neighbours: dict[int, tuple[str, str]] = {}
        self.auxiliary = 0
        self._writer: asyncio.StreamWriter | None = None
        self._task: asyncio.Task[None] | None = None

    async def connect(self, address: tuple[str, int], tls: ssl.SSLContext | None = None) -> None:
        """Call the controller, over TLS with ``tls``. OSError when that is refused."""
        reader, self._writer = await asyncio.open_connection(*address, ssl=tls)
        self._writer.write(message(ofp.OFPT_HELLO))
        self._task = asyncio.create_task(self._serve(reader))

    async def closed(self) -> None:
        """Wait until the controller has hung up."""
        assert self._task is not None
        await self._task

    def has_left(self) -> bool:
        """Say whether the connection is over."""
        return self._task is None or self._task.done()

    async def disconnect(self) -> None:
        """Hang up."""
        assert self._writer is not None
        self._writer.close()
        with suppress(OSError):
            await self._writer.wait_closed()
        await self.closed()

    def send(self, data: bytes) -> None:
        """Send raw bytes."""
        assert self._writer is not None
        self._writer.write(data)

    def port_status(self, port: int, *, up: bool) -> None:
        """Tell that a port changed."""
        self.send(message(ofp.OFPT_PORT_STATUS, 0, struct.pack("!B7x", 2) + _port(port, up)))

    def packet_in(self, port: int, frame: bytes) -> None:
        """Send a frame to the controller as if it had come in at ``port``."""
        oxm = struct.pack("!HBBI", 0x8000, 0, 4, port)
        fields = struct.pack("!HH", 1, 4 + len(oxm)) + oxm + bytes(4)
        head = struct.pack("!IHBBQ", ofp.OFP_NO_BUFFER, len(frame), 1, 0, 0)
        self.send(message(ofp.OFPT_PACKET_IN, 0, head + fields + bytes(2) + frame))

    async def _serve(self, reader: asyncio.StreamReader) -> None:
        buffer = bytearray()
        with suppress(OSError):
            while data := await reader.read(1 << 16):
                buffer += data
                for frame in take_frames(buffer):
                    if self.answers:
                        self._received(frame)

    def _received(self, frame: bytes) -> None:
        kind, xid = frame[1], int.from_bytes(frame[4:8])
        self.seen[kind] += 1
        match kind:
            case ofp.OFPT_ECHO_REQUEST:
                self.send(message(ofp.OFPT_ECHO_REPLY, xid))
            case ofp.OFPT_FEATURES_REQUEST:
                body = struct.pack("!QIBB2xII", self.dpid, 0, 3, self.auxiliary, 0, 0)
                self.send(message(ofp.OFPT_FEATURES_REPLY, xid, body))
            case ofp.OFPT_MULTIPART_REQUEST:
                self.multipart(xid, int.from_bytes(frame[8:10]))
            case ofp.OFPT_FLOW_MOD:
                self._flow_mod(frame, xid)
            case ofp.OFPT_GROUP_MOD:
                self._group_mod(frame)
            case ofp.OFPT_PACKET_OUT:
                self._packet_out(frame)
            case ofp.OFPT_BARRIER_REQUEST if self.barriers:
                self.send(message(ofp.OFPT_BARRIER_REPLY, xid))

    def multipart(self, xid: int, what: int) -> None:
        told = {ofp.OFPMP_DESC: self.description, ofp.OFPMP_TABLE_FEATURES: self.features}
        if what in told:
            if not (body := told[what]):
                self.send(message(ofp.OFPT_ERROR, xid, struct.pack("!HH", *_BAD_MULTIPART)))
            else:
                self.send(
                    message(ofp.OFPT_MULTIPART_REPLY, xid, struct.pack("!HH4x", what, 0) + body)
                )
            return
        pieces = {
            ofp.OFPMP_PORT_DESC: [_port(port, True) for port in self.ports],
            ofp.OFPMP_FLOW: [flow_stats(rule, rest) for rule, rest in self.rules.values()],
            ofp.OFPMP_GROUP_DESC: [_group_desc(n, rest) for n, rest in self.groups.items()],
            ofp.OFPMP_PORT_STATS: [_port_stats(port) for port in (*self.ports, ofp.OFPP_LOCAL)],
        }[what]
        half = len(pieces) // 2
        for more, part in ((1, pieces[:half]), (0, pieces[half:])):
            body = struct.pack("!HH4x", what, more) + b"".join(part)
            self.send(message(ofp.OFPT_MULTIPART_REPLY, xid, body))

    def _flow_mod(self, frame: bytes, xid: int) -> None:
        mod = parser.OFPFlowMod.parser(_Far, 4, ofp.OFPT_FLOW_MOD, len(frame), xid, frame)
        rule = messages.read_rule(mod)
        if self.refuse(rule):
            self.send(message(ofp.OFPT_ERROR, xid, struct.pack("!HH", *_TABLE_FULL) + frame[:64]))
        elif mod.command == ofp.OFPFC_ADD:
            self.rules[rule.key] = (rule, frame[48:])
        elif mod.command == ofp.OFPFC_DELETE_STRICT:
            self.rules.pop(rule.key, None)
        else:
            raise AssertionError("lightloom never deletes loosely")

    def _group_mod(self, frame: bytes) -> None:
        command, _, group = struct.unpack_from("!HBxI", frame, 8)
        if command == ofp.OFPGC_DELETE:
            self.groups.pop(group, None)
        else:
            self.groups[group] = frame[16:]

    def _packet_out(self, frame: bytes) -> None:
        (port,) = struct.unpack_from("!I", frame, 28)  # of the first action, an output
        if port in self.neighbours:
            self.packet_in(port, arp_reply(*self.neighbours[port]))


def foreign_rule() -> tuple[FlowRule, bytes]:
    """A rule of another controller: drop all IPv6."""
    fields = parser.OFPMatch(eth_type=0x86DD)
    buffer = bytearray()
    fields.serialize(buffer, 0)
    return FlowRule(2, 5, match(eth_type=0x86DD), (), 7), bytes(buffer)


def arp_reply(ip: str, mac: str) -> bytes:
    """What the owner of ``ip`` answers to our probe."""
    frame = bytearray(arp.probe_frame(ip, PROBE_MAC))
    owner = bytes.fromhex(mac.replace(":", ""))
    asker = frame[6:12]
    frame[0:12] = asker + owner
    target = bytes(frame[38:42])
    frame[20:22] = b"\0\2"
    frame[22:42] = owner + target + asker + bytes(4)
    return bytes(frame)


def _port(number: int, up: bool) -> bytes:
    state = 0 if up else ofp.OFPPS_LINK_DOWN
    name = f"p{number}".encode()
    return struct.pack("!I4x6s2x16sII24x", number, b"\2\0\0\0\0\1", name, 0, state)


def flow_stats(rule: FlowRule, rest: bytes) -> bytes:
    head = struct.pack(
        "!BxIIHHHH4xQQQ", rule.table, 1, 0, rule.priority, 0, 0, 0, rule.cookie, 0, 0
    )
    return struct.pack("!H", 2 + len(head) + len(rest)) + head + rest


def _group_desc(group: int, buckets: bytes) -> bytes:
    return struct.pack("!HBxI", 8 + len(buckets), ofp.OFPGT_SELECT, group) + buckets


def _port_stats(port: int) -> bytes:
    traffic = [port * unit if port < 100 else 0 for unit in (10, 20, 1000, 2000)]
    return struct.pack("!I4x12QII", port, *traffic, *[0] * 8, 3, 500_000_000)
