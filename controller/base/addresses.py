"""Classifies network addresses."""

from __future__ import annotations

import ipaddress
from functools import lru_cache


@lru_cache(maxsize=4096)
def network_of(address: str) -> str:
    """Return what counts as one sender: an IPv4 address, or the /64 of an IPv6 address.

    A single host can use all addresses of a /64.
    """
    try:
        parsed = ipaddress.ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(parsed, ipaddress.IPv4Address):
        return str(parsed)
    if parsed.ipv4_mapped is not None:
        return str(parsed.ipv4_mapped)
    return str(ipaddress.ip_network((parsed, 64), strict=False))


def is_loopback(host: str) -> bool:
    """Whether ``host`` is this machine under any of its loopback addresses."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
