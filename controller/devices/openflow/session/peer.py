"""The peer of an OpenFlow connection, and whether it is what the site file pins. Pure."""

from __future__ import annotations

import ipaddress
import json
import re
from dataclasses import dataclass

from base.addresses import join_address
from pki.names import aggregator_name
from sitefile.model import AggregatorCable

NAMES = 64
"""Names of one certificate that are kept."""
_DNS_NAME = re.compile(r"[A-Za-z0-9._-]{1,253}")
RECORD_BYTES = 1 << 15
"""More than a packed ``Peer`` takes."""


@dataclass(slots=True, frozen=True)
class Certificate:
    """The proven identity of a peer: DNS names, and the SHA-256 of the whole certificate."""

    names: tuple[str, ...]
    fingerprint: str
    """64 lower-case hexadecimal digits."""

    @classmethod
    def of(cls, names: tuple[str, ...], fingerprint: str) -> Certificate:
        """Make one of bounded size; drop names that are not host names."""
        kept = [name for name in names if _DNS_NAME.fullmatch(name)]
        return cls(tuple(kept[:NAMES]), fingerprint)

    def __str__(self) -> str:
        shown = [*self.names[:2], "…"] if len(self.names) > 2 else self.names
        names = ", ".join(shown) or "without a name"
        return f"certificate {names} (SHA-256 {self.fingerprint[:16]}…)"


@dataclass(slots=True, frozen=True)
class Peer:
    """Address of the other end; ``certificate`` is None for a plain TCP connection."""

    host: str
    port: int
    certificate: Certificate | None = None

    def pack(self) -> bytes:
        """Return it as bytes, fewer than ``RECORD_BYTES``."""
        shown = self.certificate
        proven = [list(shown.names), shown.fingerprint] if shown else None
        return json.dumps([self.host, self.port, proven]).encode()

    @classmethod
    def unpack(cls, data: bytes) -> Peer:
        """Return the peer that ``pack`` made the bytes of."""
        host, port, proven = json.loads(data)
        shown = Certificate(tuple(proven[0]), proven[1]) if proven else None
        return cls(host, port, shown)

    def __str__(self) -> str:
        return f"{join_address(self.host, self.port)}, {self.certificate or 'without TLS'}"


def pinned(cable: AggregatorCable) -> str:
    """Return what the site file pins an aggregator to, as text; empty when not pinned."""
    parts = []
    if cable.tls:
        known = cable.fingerprint
        parts.append(f"SHA-256 {known[:16]}…" if known else f"certificate {_name_of(cable)}")
    if cable.address is not None:
        parts.append(f"address {cable.address}")
    return " and ".join(parts)


def is_pinned(cable: AggregatorCable, peer: Peer) -> bool:
    """Whether ``peer`` is what the site file pins ``cable`` to.

    A peer without TLS is never an aggregator with TLS. A fingerprint replaces the name.
    """
    if cable.address is not None and not _same_address(cable.address, peer.host):
        return False
    if not cable.tls:
        return True
    if peer.certificate is None:
        return False
    if cable.fingerprint is not None:
        return peer.certificate.fingerprint == cable.fingerprint
    return _name_of(cable) in peer.certificate.names


def _name_of(cable: AggregatorCable) -> str:
    return cable.certificate or aggregator_name(cable.name)


def _same_address(pin: str, host: str) -> bool:
    try:
        seen = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = seen.ipv4_mapped if isinstance(seen, ipaddress.IPv6Address) else None
    return (mapped or seen) == ipaddress.ip_address(pin)
