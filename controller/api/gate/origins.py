"""Accepts changes only from pages of the controller's own addresses.

A browser names the page of a request in ``Origin``. It is not enough that it agrees with ``Host``:
an attacker's name can resolve to this machine. The names in the controller's certificate and those
that the operator gave are trusted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from controller.base.addresses import is_loopback
from controller.base.errors import ServiceError

_PORTS = {"http": 80, "https": 443}


@dataclass(slots=True, frozen=True)
class Origins:
    """The addresses at which browsers reach this controller."""

    urls: frozenset[str] = frozenset()
    """Origins from the operator: ``https://ctl.example``, with or without a port."""
    names: frozenset[str] = frozenset()
    """Host names and addresses in the certificate; ``*.example`` stands for one label."""

    def own(self, origin: str, host: str) -> bool:
        """Whether ``origin``, in a request for ``host``, is one of the controller's pages."""
        parts = _split(origin)
        if parts is None:
            return False
        if _canonical(parts) in self.urls:
            return True
        if parts.netloc.lower() != host.lower():
            return False
        name = parts.hostname or ""
        return is_loopback(name) or (parts.scheme == "https" and self._certified(name))

    def known(self, host: str) -> bool:
        """Whether a request's ``Host`` is one of the controller's names."""
        parts = _split(f"//{host}")
        name = (parts.hostname or "") if parts is not None else ""
        given = (urlsplit(url).hostname for url in self.urls)
        return is_loopback(name) or self._certified(name) or name in given

    def _certified(self, name: str) -> bool:
        return name in self.names or f"*.{name.partition('.')[2]}" in self.names


def origin_of(url: str) -> str:
    """Return the origin that ``--public-url`` names. ServiceError ``invalid``."""
    parts = _split(url)
    found = _canonical(parts) if parts is not None else ""
    if parts is None or not found or parts.path not in ("", "/") or parts.query or "@" in url:
        raise ServiceError(
            "invalid",
            f"{url!r} is not a public URL",
            object="public-url",
            hint="https://HOST[:PORT]",
        )
    if parts.scheme != "https" and not is_loopback(parts.hostname or ""):
        raise ServiceError(
            "invalid",
            f"{url} would carry tokens in the clear",
            object="public-url",
            hint="serve TLS at the proxy, and give https://HOST[:PORT]",
        )
    return found


def certified_names(pem: bytes) -> frozenset[str]:
    """Return the names and addresses in a certificate's SubjectAltName. ValueError."""
    from cryptography import x509  # noqa: PLC0415 - start-up time

    certificate = x509.load_pem_x509_certificate(pem)
    try:
        found = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return frozenset()
    names = (name.lower().rstrip(".") for name in found.get_values_for_type(x509.DNSName))
    return frozenset(names) | {str(a) for a in found.get_values_for_type(x509.IPAddress)}


def origins_of(certificate: Path | None, urls: Iterable[str]) -> Origins:
    """Return the origins of a controller; ``urls`` are of ``origin_of``. OSError, ValueError."""
    names = certified_names(certificate.read_bytes()) if certificate is not None else frozenset()
    return Origins(frozenset(urls), names)


def _split(origin: str) -> SplitResult | None:
    try:
        parts = urlsplit(origin)
        _ = parts.port  # ValueError
    except ValueError:
        return None
    return parts


def _canonical(parts: SplitResult) -> str:
    """Return an origin as browsers write it: without the default port."""
    if parts.scheme not in _PORTS or not parts.hostname:
        return ""
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    port = "" if parts.port in (None, _PORTS[parts.scheme]) else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}"
