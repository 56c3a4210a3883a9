"""TLS towards aggregators: the controller's certificate, the accepted ones, and the bytes.

A ``Secured`` decrypts bytes from the wire and encrypts bytes for it. It owns no socket and never
blocks, so one thread serves all connections (``controller.daemon.relay``).
"""

from __future__ import annotations

import hashlib
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from base.addresses import split_address
from controller.base.addresses import is_loopback
from controller.base.errors import ErrorCode, ServiceError
from controller.devices.openflow.session.peer import Certificate
from pki import CONTROLLER, Credentials, TrustError
from sitefile.model import CabledSite

CLIENT_HELLO = 0x16
"""First byte of a TLS connection (RFC 8446 5.1); OpenFlow begins with its version, 1 to 6."""
HANDSHAKE_BYTES = 1 << 16
"""Longest handshake; OpenSSL itself would accept 100 KiB of certificates."""
_RECORD_BYTES = 1 << 14


@dataclass(slots=True, frozen=True)
class Speech:
    """How aggregators of a site connect: over TLS if there is a ``context``, and plainly."""

    context: ssl.SSLContext | None = None
    plain: bool = True


class TlsRefusedError(Exception):
    """The peer violates TLS, shows no certificate of our authority, or has closed TLS."""


class Secured:
    """The controller's end of one TLS connection. TlsRefusedError ends it."""

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._tls = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._handshake_bytes = 0
        self.certificate: Certificate | None = None
        """The peer's proven identity, once the handshake is over."""

    def decrypt(self, data: bytes) -> bytes:
        """Decrypt bytes off the wire."""
        self._incoming.write(data)
        said = bytearray()
        try:
            if self.certificate is None:
                self._handshake_bytes += len(data)
                if self._handshake_bytes > HANDSHAKE_BYTES:
                    raise TlsRefusedError("the handshake is too long")
                self._tls.do_handshake()
                self.certificate = self._shown()
            while piece := self._tls.read(_RECORD_BYTES):
                said += piece
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLZeroReturnError:
            raise TlsRefusedError("it has closed the TLS session") from None
        except ssl.SSLError as error:
            raise TlsRefusedError(_reason(error)) from None
        return bytes(said)

    def encrypt(self, data: bytes | bytearray) -> None:
        """Encrypt bytes for the aggregator; ``outgoing`` returns them."""
        view = memoryview(data)
        try:
            while view:  # one record at a time
                view = view[self._tls.write(view) :]
        except ssl.SSLError as error:
            raise TlsRefusedError(_reason(error)) from None

    def outgoing(self) -> bytes:
        """Return the bytes for the wire since the last call, alerts included."""
        return self._outgoing.read()

    def _shown(self) -> Certificate:
        der = self._tls.getpeercert(binary_form=True) or b""
        fields: Mapping[str, Any] = self._tls.getpeercert() or {}
        found = fields.get("subjectAltName", ())
        names = tuple(str(value) for kind, value in found if kind == "DNS")
        return Certificate.of(names, hashlib.sha256(der).hexdigest())


def read_speech(site: CabledSite, directory: Path | None) -> Speech:
    """Read ``directory`` of ``lightloom pki issue controller`` for the aggregators. ServiceError.

    Without TLS an aggregator on another machine must be pinned to its address.
    """
    plain = [cable for cable in site.aggregators if not cable.tls]
    secure = [cable for cable in site.aggregators if cable.tls]
    if not is_loopback(split_address(site.openflow_listen)[0]):
        for cable in plain:
            if cable.address is None:
                raise ServiceError(
                    "forbidden",
                    "speaks OpenFlow without TLS and is not pinned to an address",
                    object=f"aggregator/{cable.name}",
                    hint="give its address in the site file, or use TLS",
                )
    if not secure:
        return Speech()
    if directory is None:
        raise ServiceError(
            "forbidden",
            "must speak OpenFlow over TLS, and the controller has no certificate for it",
            object=f"aggregator/{secure[0].name}",
            hint="lightloom pki issue controller --out DIR, then --openflow-tls DIR; or say"
            " `controller: {openflow: {tls: false}}` in the site file",
        )
    try:
        mine = Credentials.load(directory, CONTROLLER, now=datetime.now(UTC))
        return Speech(context_of(mine), plain=bool(plain))
    except TrustError as error:
        code: ErrorCode = "forbidden" if error.code == "forbidden" else "failed"
        raise ServiceError(code, error.message, object=error.object, hint=error.hint) from error
    except ssl.SSLError as error:
        raise ServiceError(
            "failed",
            f"cannot be used for TLS: {_reason(error)}",
            object=str(directory),
            hint="issue it again: lightloom pki issue controller",
        ) from error


def context_of(mine: Credentials) -> ssl.SSLContext:
    """Return the TLS settings of the OpenFlow port: peers must show a certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.verify_mode = ssl.CERT_REQUIRED
    context.options |= ssl.OP_NO_RENEGOTIATION
    context.num_tickets = 0  # every connection is verified, none is resumed
    context.load_verify_locations(cadata=mine.ca.decode())
    context.load_cert_chain(mine.directory / "cert.pem", mine.directory / "key.pem")
    return context


def _reason(error: ssl.SSLError) -> str:
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"its certificate is not accepted: {error.verify_message}"
    return (error.reason or "TLS error").replace("_", " ").lower()
