"""The address of the API, and how it is protected.

Light on imports: it is needed before the program is loaded (see ``controller.daemon.start``).
"""

from __future__ import annotations

import ipaddress
import socket
import stat
from dataclasses import dataclass
from pathlib import Path

from base.addresses import split_address
from controller.base.addresses import is_loopback
from controller.base.errors import ServiceError
from controller.daemon.start import when_released


@dataclass(slots=True, frozen=True)
class PeopleOptions:
    """TLS files, proxies, and whether requests need tokens."""

    cert: Path | None = None
    key: Path | None = None
    public_urls: tuple[str, ...] = ()
    """Where browsers find the console besides the certificate's names: behind a proxy."""
    proxies: tuple[str, ...] = ()
    """Addresses and networks whose ``X-Forwarded-For`` and ``-Proto`` are believed."""
    sinks: tuple[str, ...] = ()
    """Where events go: ``syslog://…``, ``https://…``."""
    open: bool = False
    """No tokens: every user of this machine is an admin."""

    @property
    def tls(self) -> bool:
        """Whether the API is served over TLS."""
        return self.cert is not None


def api_socket(address: str, options: PeopleOptions) -> socket.socket:
    """Bind the API's address; beyond loopback only with tokens and TLS. ServiceError."""
    what = f"address/{address}"
    try:
        host, port = split_address(address)
    except ValueError as error:
        raise ServiceError("invalid", str(error), object=what, hint="e.g. 127.0.0.1:8470") from None
    _check(host, what, options)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    api = socket.socket(family, socket.SOCK_STREAM)
    api.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        when_released(lambda: api.bind((host, port)))
    except OSError as error:
        api.close()
        raise ServiceError(
            "failed",
            f"cannot listen on {address}: {error.strerror}",
            object=what,
            hint="is another controller running?",
        ) from error
    return api


def _check(host: str, what: str, options: PeopleOptions) -> None:
    if (options.cert is None) != (options.key is None):
        raise ServiceError(
            "invalid", "TLS needs a certificate and a key", hint="give --tls-cert and --tls-key"
        )
    if options.key is not None:
        _check_private(options.key)
    if is_loopback(host):
        return
    if options.open:
        raise ServiceError(
            "forbidden",
            f"without tokens the API listens on loopback only, not on {host}",
            object=what,
            hint="omit --insecure-no-auth",
        )
    if not options.tls:
        raise ServiceError(
            "forbidden",
            f"without TLS the API listens on loopback only, not on {host}",
            object=what,
            hint="give --tls-cert and --tls-key, or use 127.0.0.1 and a tunnel (ssh -L)",
        )


def _check_private(key: Path) -> None:
    try:
        mode = stat.S_IMODE(key.stat().st_mode)
    except OSError as error:
        raise ServiceError(
            "invalid", f"{key} cannot be read: {error.strerror}", object=f"file/{key}"
        ) from error
    if mode & 0o077:
        raise ServiceError(
            "invalid",
            f"others can read the private key {key}",
            object=f"file/{key}",
            hint=f"chmod 600 {key}",
        )


def proxy_network(text: str) -> str:
    """Return what ``--trusted-proxy`` names: an address or a network. ServiceError."""
    try:
        return str(ipaddress.ip_network(text))
    except ValueError as error:
        raise ServiceError(
            "invalid",
            f"{text!r} is not the address of a proxy: {error}",
            object="trusted-proxy",
            hint="for example 10.1.2.3 or 10.1.2.0/24",
        ) from None
