"""Reads and checks the TLS credentials of one daemon: its certificate, key and authority.

A daemon whose certificate its peers would refuse reports that at its own start, where an
operator sees it, and not only by failed connections.
"""

from __future__ import annotations

import stat
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import serialization

from pki.authority import CA_FILE, CERT_FILE, KEY_FILE
from pki.errors import TrustError


@dataclass(slots=True, frozen=True)
class Credentials:
    """PEM texts of one daemon. The key never shows in a representation."""

    name: str
    """The DNS name in the certificate, which identifies the daemon."""
    directory: Path
    ca: bytes
    certificate: bytes
    key: bytes
    expires: datetime

    def __repr__(self) -> str:
        return f"Credentials({self.name!r}, {str(self.directory)!r}, key=***)"

    @classmethod
    def load(cls, directory: Path, name: str, *, now: datetime) -> Credentials:
        """Read ``ca.pem``, ``cert.pem`` and ``key.pem`` and check that ``name`` can use them.

        Raises TrustError when a file is missing, others can read the key, or the certificate
        has expired, belongs to another authority or key, or has another name.
        """
        ca_pem, cert_pem, key_pem = (
            _read(directory / file) for file in (CA_FILE, CERT_FILE, KEY_FILE)
        )
        key_path, cert_path = directory / KEY_FILE, directory / CERT_FILE
        if stat.S_IMODE(key_path.stat().st_mode) & 0o077:
            raise TrustError(
                "forbidden",
                "others can read this key",
                object=str(key_path),
                hint=f"chmod 600 {key_path}",
            )
        try:
            authority = x509.load_pem_x509_certificate(ca_pem)
            certificate = x509.load_pem_x509_certificate(cert_pem)
            key = serialization.load_pem_private_key(key_pem, None)
        except (ValueError, TypeError) as error:
            raise TrustError(
                "invalid", f"cannot be read: {error}", object=str(directory), hint=_AGAIN
            ) from error
        if key.public_key() != certificate.public_key():
            raise TrustError(
                "invalid",
                "does not match key.pem in the same directory",
                object=str(cert_path),
                hint=_AGAIN,
            )
        _check_chain(certificate, authority, cert_path)
        _check_dates(authority, directory / CA_FILE, now)
        _check_dates(certificate, cert_path, now)
        if name not in _dns_names(certificate):
            raise TrustError(
                "invalid",
                f"names {', '.join(_dns_names(certificate)) or 'no host'}, not {name}",
                object=str(cert_path),
                hint=_AGAIN,
            )
        return cls(name, directory, ca_pem, cert_pem, key_pem, certificate.not_valid_after_utc)


_AGAIN = "issue it again: lightloom pki issue"


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except FileNotFoundError:
        raise TrustError(
            "not_found",
            "no such file",
            object=str(path),
            hint="create it: lightloom pki issue agent SERVER | aggregator NAME | controller",
        ) from None
    except OSError as error:
        raise TrustError("failed", f"cannot be read: {error.strerror}", object=str(path)) from error


def _check_chain(certificate: x509.Certificate, authority: x509.Certificate, path: Path) -> None:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        raise TrustError(
            "invalid",
            "was not issued by the authority in ca.pem",
            object=str(path),
            hint="copy cert.pem, key.pem and ca.pem of one `lightloom pki issue` together",
        ) from None


def _check_dates(certificate: x509.Certificate, path: Path, now: datetime) -> None:
    if now > certificate.not_valid_after_utc:
        raise TrustError(
            "invalid",
            f"expired on {certificate.not_valid_after_utc:%Y-%m-%d %H:%M} UTC",
            object=str(path),
            hint=_AGAIN,
        )
    if now < certificate.not_valid_before_utc:
        raise TrustError(
            "invalid",
            f"is valid from {certificate.not_valid_before_utc:%Y-%m-%d %H:%M} UTC on",
            object=str(path),
            hint="check this machine's clock",
        )


def _dns_names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName)
    except x509.ExtensionNotFound:
        return []
    return names.value.get_values_for_type(x509.DNSName)
