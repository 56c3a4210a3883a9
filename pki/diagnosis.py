"""Why a TLS connection is refused, in words an operator can act on.

gRPC tells a client little of a handshake that failed, and nothing when it was the server
that did not like the client (in TLS 1.3 that comes after the client's handshake is over).
So the connection is made once more with Python's own TLS, whose errors say it.
"""

from __future__ import annotations

import socket
import ssl

from pki.credentials import Credentials

_HUNG_UP = "it hangs up on our certificate: is that of the same authority, and not expired?"
_ALERTS = {
    "UNKNOWN_CA": "it does not believe our authority",
    "BAD_CERTIFICATE": "it does not accept our certificate",
    "CERTIFICATE_EXPIRED": "it says that our certificate has expired",
    "CERTIFICATE_UNKNOWN": "it does not accept our certificate",
    "CERTIFICATE_REQUIRED": "it wants a certificate and we showed none",
    "WRONG_VERSION_NUMBER": "it does not speak TLS",
    "UNEXPECTED_EOF": "it hung up during the handshake: does it speak TLS?",
}


def why_refused(
    host: str, port: int, credentials: Credentials, name: str, *, timeout_s: float = 3.0
) -> str | None:
    """Connect to the daemon ``name`` and return what is wrong, None when TLS is fine. Blocks."""
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
        return None  # nobody there: that is not a matter of trust


def _afterwards(secure: ssl.SSLSocket) -> str | None:
    """A server's refusal of our certificate arrives where its first words would.

    An HTTP/2 server speaks first; gRPC's hangs up without a word when it refuses.
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
