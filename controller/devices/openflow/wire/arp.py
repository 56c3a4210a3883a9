"""ARP probes (RFC 5227 style) as bytes. Pure.

A probe asks "who has ``ip``?" with sender address 0.0.0.0, so that the receiver answers but makes
no neighbour entry: a probe leaves no trace in a container.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from ipaddress import IPv4Address

_ETHERNET = struct.Struct("!6s6sH")
_ARP = struct.Struct("!HHBBH6s4s6s4s")
_ETH_ARP, _ETH_IPV4, _HW_ETHERNET = 0x0806, 0x0800, 1
_REQUEST, _REPLY = 1, 2
_MIN_FRAME = 60
_BROADCAST = b"\xff" * 6


@dataclass(slots=True, frozen=True)
class ArpReply:
    """An answer: ``mac`` claims to own ``ip``."""

    ip: str
    mac: str


def probe_frame(ip: str, sender_mac: str) -> bytes:
    """Return the Ethernet frame of a probe for ``ip``, padded to the least frame length."""
    sender = _mac_bytes(sender_mac)
    target = IPv4Address(ip).packed
    body = _ARP.pack(_HW_ETHERNET, _ETH_IPV4, 6, 4, _REQUEST, sender, bytes(4), bytes(6), target)
    return (_ETHERNET.pack(_BROADCAST, sender, _ETH_ARP) + body).ljust(_MIN_FRAME, b"\0")


def parse_reply(frame: bytes) -> ArpReply | None:
    """Return the content of an ARP reply, or None for any other ``frame``."""
    if len(frame) < _ETHERNET.size + _ARP.size:
        return None
    if _ETHERNET.unpack_from(frame)[2] != _ETH_ARP:
        return None
    hardware, protocol, _, _, operation, mac, ip, _, _ = _ARP.unpack_from(frame, _ETHERNET.size)
    if (hardware, protocol, operation) != (_HW_ETHERNET, _ETH_IPV4, _REPLY):
        return None
    return ArpReply(str(IPv4Address(ip)), ":".join(f"{byte:02x}" for byte in mac))


def _mac_bytes(mac: str) -> bytes:
    return bytes.fromhex(mac.replace(":", ""))
