"""Network addresses as people write them: ``HOST:PORT``, an IPv6 host in brackets."""

from __future__ import annotations

import ipaddress
import re

_HOST = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,251}[A-Za-z0-9.])?")
_NUMERIC = re.compile(r"[0-9.]+")
_PORT = re.compile(r"0|[1-9][0-9]{0,4}")


def split_address(address: str, *, lowest: int = 0) -> tuple[str, int]:
    """Split ``host:port`` or ``[IPv6]:port`` (RFC 3986); the host comes without brackets.

    Port 0 means any free port where a program listens; ``lowest`` is 1 elsewhere. ValueError
    explains what is wrong and how to write it.
    """
    host, _, port = address.rpartition(":")
    shown = f"{address[:300]!r}"
    if not host or _PORT.fullmatch(port) is None:
        raise ValueError(f"{shown} is not of the form host:port, or [IPv6 address]:port")
    if not lowest <= int(port) <= 65535:
        raise ValueError(f"{shown} is not of the form host:port: ports are {lowest} to 65535")
    if host.startswith("[") and host.endswith("]"):
        return _ipv6(host[1:-1], shown), int(port)
    if ":" in host:
        raise ValueError(
            f"{shown} is not of the form host:port: put an IPv6 address in brackets, [::1]:{port}"
        )
    if _HOST.fullmatch(host) is None or (_NUMERIC.fullmatch(host) and not _is_ipv4(host)):
        raise ValueError(f"{shown} is not of the form host:port: {host[:300]!r} is not a host")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """Write an address as ``split_address`` reads it."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _ipv6(host: str, shown: str) -> str:
    try:
        ipaddress.IPv6Address(host)
    except ValueError as error:
        raise ValueError(f"{shown} is not of the form [IPv6 address]:port: {error}") from None
    return host


def _is_ipv4(host: str) -> bool:
    try:
        ipaddress.IPv4Address(host)
    except ValueError:
        return False
    return True
