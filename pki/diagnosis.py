"""Explains why a TLS connection fails, in terms that an operator can act on.

gRPC gives a client little about a failed handshake, and nothing when the server refuses the
client (in TLS 1.3 that happens after the client's handshake). So this module repeats the
connection with Python's own TLS, whose errors give the reason.
"""

from __future__ import annotations

import socket
import ssl

from pki.credentials import Credentials

_HUNG_UP = (
    "it closes the connection on our certificate: is it of the same authority, and not expired?"
)
_ALERTS = {
    "UNKNOWN_CA": "it does not trust our authority",
    "BAD_CERTIFICATE": "it does not accept our certificate",
    "CERTIFICATE_EXPIRED": "it reports that our certificate has expired",
    "CERTIFICATE_UNKNOWN": "it does not accept our certificate",
    "CERTIFICATE_REQUIRED": "it requires a certificate and we sent none",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "UNEXPECTED_EOF": "it closed the connection during the handshake: does it speak TLS?",
}


def why_refused(
    host: str, port: int, credentials: Credentials, name: str, *, timeout_s: float = 3.0
) -> str | None:
    """Connect to the daemon ``name`` and return the TLS problem, or None. Blocks."""
    context = ssl.create_default_context(cadata=credentials.ca.decode())
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_alpn_protocols(["h2"])
    context.load_cert_chain(credentials.directory / "cert.pem", credentials.directory / "key.pem")
    try:
        with (
            socket.create_connection((host, port), timeout=timeout_s) as plain,
            context.wrap_socket(plain, server_hostname=name) as secure,
        ):
            return _afterwards(secure)
    except ssl.SSLCertVerificationError as error:
        return f"its certificate is refused: {error.verify_message}"
    except ssl.SSLError as error:
        return _words(error)
    except ConnectionResetError:
        return _ALERTS["UNEXPECTED_EOF"]
    except OSError:
        return None  # no daemon there: not a TLS problem


def _afterwards(secure: ssl.SSLSocket) -> str | None:
    """Return why the server refuses our certificate; the alert arrives in place of its first data.

    An HTTP/2 server sends first; gRPC's server closes the connection without data on refusal.
    """
    try:
        return None if secure.read(1) else _HUNG_UP
    except ssl.SSLError as error:
        return _words(error)
    except ConnectionResetError:
        return _HUNG_UP


def _words(error: ssl.SSLError) -> str:
    reason = error.reason or ""
    return next((text for mark, text in _ALERTS.items() if mark in reason), f"TLS: {reason}")
