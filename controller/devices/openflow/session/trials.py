"""Rules and groups that are tried on a switch, to learn what it takes. Pure.

No frame of ours fits a trial rule: it names a MAC that no NIC has, in the lowest priority above a
miss, and whatever fits it is dropped. After a crash in between, the next greeting removes trial
rules as surplus.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from controller.devices.openflow.rules.pipeline import (
    ADMIT,
    FORWARD,
    NEIGHBOUR,
    ROCE_QUEUE,
    ROCE_UDP_PORT,
)
from controller.devices.openflow.rules.rule import (
    ENDPOINT_MASK,
    EPOCH_BITS,
    MatchValue,
    pack_cookie,
)
from controller.devices.openflow.session.messages import NoDatapath, encoded
from controller.devices.openflow.session.osken import ofproto, parser
from controller.devices.openflow.wire.table_features import TableFeatures
from controller.devices.profile import Outcome, TableFacts, Trial

SCRATCH_PRIORITY = 1
"""No rule of a program has it."""
SCRATCH_COOKIE = pack_cookie((1 << EPOCH_BITS) - 2, ENDPOINT_MASK)
SCRATCH_GROUPS = (0xFFF1, 0xFFF2)
WIDTHS = (64, 32, 24, 16, 12, 8)
"""Widths of metadata that are tried, in bits."""

_MAC = "02:6c:6c:74:72:{:02x}"
_IP = "192.0.2.1"
_LOCAL_EXPERIMENT = 0x88B5
"""An ethertype that IEEE 802 leaves to experiments."""
_LONGEST = 100
_PATTERN = 0xA5C3_96B4_D287_E1F1


@dataclass(slots=True, frozen=True)
class TrialMessage:
    """One message that tries something, what removes it, and how it is recognised."""

    name: str
    add: bytes
    remove: bytes
    look: tuple[Any, ...]
    """As ``looks`` sees what is read back."""


def attempts(port: int) -> tuple[TrialMessage, ...]:
    """Return the trials of rules; ``port`` is one of the switch's."""
    mac, ip = _MAC.format(0), _IP
    at: dict[str, MatchValue] = {"in_port": port, "eth_src": mac}
    untagged: dict[str, MatchValue] = {**at, "vlan_vid": 0}
    drop: list[Any] = []
    to_forward = [
        _apply(parser.OFPActionSetField(eth_dst=mac)),
        parser.OFPInstructionGotoTable(FORWARD),
    ]
    udp: dict[str, MatchValue] = {"eth_type": 0x0800, "ip_proto": 17, "udp_dst": ROCE_UDP_PORT}
    return (
        _rule("admit_ipv4", ADMIT, drop, **untagged, eth_type=0x0800, ipv4_src=ip),
        _rule("admit_arp", ADMIT, drop, **untagged, eth_type=0x0806, arp_spa=ip, arp_sha=mac),
        _rule("probed", ADMIT, drop, **at, eth_dst=mac, eth_type=0x0806, arp_op=2, arp_spa=ip),
        _rule("neighbour", NEIGHBOUR, to_forward, eth_type=0x0806, arp_op=1, arp_tpa=ip),
        _rule(
            "roce",
            FORWARD,
            [_apply(parser.OFPActionSetField(ip_dscp=26))],
            **udp,
            eth_dst=_MAC.format(1),
        ),
        _rule(
            "queue",
            FORWARD,
            [_apply(parser.OFPActionSetQueue(ROCE_QUEUE))],
            **udp,
            eth_dst=_MAC.format(2),
        ),
        *(attempt for width in WIDTHS for attempt in _of_width(width)),
    )


def group_attempts(port: int) -> tuple[TrialMessage, ...]:
    """Return the trials of groups."""
    plain, watch = SCRATCH_GROUPS
    return (
        _group("group", plain, port, ofproto.OFPP_ANY),
        _group("group_watch", watch, port, port),
    )


def read_trial(
    attempt: TrialMessage, refusal: str | None, found: Iterable[tuple[Any, ...]]
) -> Trial:
    """Judge one attempt by its refusal and by what was read back."""
    outcome: Outcome = "altered"
    if refusal is not None:
        outcome = "unknown" if "FULL" in refusal or "OUT_OF_GROUPS" in refusal else "refused"
    elif attempt.look in found:
        outcome = "same"
    return Trial(name=attempt.name, outcome=outcome, detail=refusal or "")


def width_of(trials: Mapping[str, Outcome]) -> int | None:
    """Return the widest metadata that was written and matched; None when that is unknown."""
    for width in WIDTHS:
        pair = {trials[f"write_{width}"], trials[f"match_{width}"]}
        if pair == {"same"}:
            return width
        if "unknown" in pair:
            return None
    return 0


def is_scratch(stats: Any) -> bool:
    """Whether a flow-stats entry or group description is of a trial."""
    if hasattr(stats, "group_id"):
        return stats.group_id in SCRATCH_GROUPS
    return bool(stats.priority == SCRATCH_PRIORITY)


def looks(entry: Any) -> tuple[Any, ...]:
    """Return all that identifies a rule or group, of a message or of what was read back."""
    if hasattr(entry, "group_id"):
        buckets = tuple(
            (b.watch_port, tuple((a.type, getattr(a, "port", None)) for a in b.actions))
            for b in entry.buckets
        )
        return (entry.group_id, entry.type, buckets)
    matched = tuple(sorted((name, str(value)) for name, value in entry.match.items()))
    return (entry.table_id, entry.priority, entry.cookie, matched, _text(entry.instructions))


def description_of(said: Any) -> dict[str, str]:
    """Return what a switch says it is, printable and bounded."""
    named = {
        "manufacturer": said.mfr_desc,
        "hardware": said.hw_desc,
        "software": said.sw_desc,
        "serial": said.serial_num,
    }
    return {name: _printable(value) for name, value in named.items()}


def facts_of(features: TableFeatures) -> TableFacts:
    """Return what a switch says of one table."""
    return TableFacts(
        table=features.table,
        max_entries=features.max_entries,
        metadata_match=features.metadata_match,
        metadata_write=features.metadata_write,
        matches=tuple(sorted(features.matches)),
    )


def is_of_width(trial: Trial) -> bool:
    """Whether a trial only finds the width of metadata."""
    return trial.name.startswith(("write_", "match_"))


def _printable(value: bytes | str) -> str:
    text = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
    shown = "".join(c for c in text.rstrip("\0") if c.isprintable())
    return "" if shown in ("", "None") else shown[:_LONGEST]


def _text(parts: Iterable[Any]) -> str:
    return " ".join(str(part) for part in parts)


def _of_width(width: int) -> Iterator[TrialMessage]:
    mask = (1 << width) - 1
    value, mac = _PATTERN & mask, _MAC.format(0x10 + width)
    # Frames of this type miss in the next table.
    write = [
        parser.OFPInstructionWriteMetadata(value, mask),
        parser.OFPInstructionGotoTable(NEIGHBOUR),
    ]
    yield _rule(f"write_{width}", ADMIT, write, eth_src=mac, eth_type=_LOCAL_EXPERIMENT)
    matched = value if width == WIDTHS[0] else (value, mask)
    yield _rule(
        f"match_{width}",
        FORWARD,
        [],
        eth_dst=mac,
        eth_type=_LOCAL_EXPERIMENT,
        metadata=matched,
    )


def _apply(action: Any) -> Any:
    return parser.OFPInstructionActions(ofproto.OFPIT_APPLY_ACTIONS, [action])


def _rule(name: str, table: int, instructions: list[Any], **fields: MatchValue) -> TrialMessage:
    def packed(command: int, inside: list[Any]) -> bytes:
        return encoded(
            parser.OFPFlowMod(
                NoDatapath,
                cookie=SCRATCH_COOKIE,
                table_id=table,
                command=command,
                priority=SCRATCH_PRIORITY,
                out_port=ofproto.OFPP_ANY,
                out_group=ofproto.OFPG_ANY,
                match=parser.OFPMatch(**fields),
                instructions=inside,
            )
        )

    add = packed(ofproto.OFPFC_ADD, instructions)
    return _attempt(name, add, packed(ofproto.OFPFC_DELETE_STRICT, []), parser.OFPFlowMod.parser)


def _group(name: str, group: int, port: int, watch: int) -> TrialMessage:
    buckets = [parser.OFPBucket(weight=1, watch_port=watch, actions=[parser.OFPActionOutput(port)])]

    def packed(command: int, inside: list[Any]) -> bytes:
        return encoded(parser.OFPGroupMod(NoDatapath, command, ofproto.OFPGT_SELECT, group, inside))

    add = packed(ofproto.OFPGC_ADD, buckets)
    msg = parser.OFPGroupMod(NoDatapath, ofproto.OFPGC_ADD, ofproto.OFPGT_SELECT, group, buckets)
    return TrialMessage(name, add, packed(ofproto.OFPGC_DELETE, []), looks(msg))


def _attempt(name: str, add: bytes, remove: bytes, read: Callable[..., Any]) -> TrialMessage:
    # Decoded as an answer is, so that both are compared in one form.
    msg = read(NoDatapath, ofproto.OFP_VERSION, ofproto.OFPT_FLOW_MOD, len(add), 0, add)
    return TrialMessage(name, add, remove, looks(msg))
