"""Creates a site's certificate authority, a key and a certificate in a directory.

Keys are ECDSA P-256 in files of mode 0600. Every file is written under a temporary name and
renamed, so a crash leaves either the old file or the new one.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from pki.errors import TrustError
from pki.names import CONTROLLER, agent_name, aggregator_name

CA_FILE = "ca.pem"
CA_KEY_FILE = "ca-key.pem"
CERT_FILE = "cert.pem"
KEY_FILE = "key.pem"

CA_DAYS = 3650
CERT_DAYS = 397
"""A year and a month: the limit of browsers, and long enough for one renewal per year."""
_BACKDATE = timedelta(minutes=5)
"""Margin for clock differences, so that a new certificate is valid immediately."""
_NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_CLIENT = (ExtendedKeyUsageOID.CLIENT_AUTH,)
_BOTH_ENDS = (ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH)


@dataclass(slots=True, frozen=True)
class Issued:
    """An issued certificate. ``expires`` is in UTC."""

    name: str
    directory: Path
    expires: datetime


class Authority:
    """Issues certificates that every holder of ``ca.pem`` trusts."""

    def __init__(self, key: ec.EllipticCurvePrivateKey, certificate: x509.Certificate) -> None:
        self._key = key
        self._certificate = certificate

    @classmethod
    def create(cls, directory: Path, site: str, *, now: datetime, days: int = CA_DAYS) -> Authority:
        """Create the authority of ``site``. Raises TrustError ``conflict`` when it exists."""
        if (directory / CA_KEY_FILE).exists():
            raise TrustError(
                "conflict",
                "the authority already exists",
                object=str(directory),
                hint="`lightloom pki issue` uses it; choose another directory for another site",
            )
        key = ec.generate_private_key(ec.SECP256R1())
        name = _common_name(f"lightloom {site}")
        certificate = (
            x509.CertificateBuilder()
            .subject_name(name)
            .issuer_name(name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _BACKDATE)
            .not_valid_after(now + timedelta(days=days))
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(sign_certificates=True), critical=True)
            .add_extension(
                x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False
            )
            .sign(key, hashes.SHA256())
        )
        _make(directory)
        # The key is last: its presence shows that an authority is complete.
        _write(directory / CA_FILE, certificate.public_bytes(serialization.Encoding.PEM))
        _write(directory / CA_KEY_FILE, _key_pem(key), mode=0o600)
        return cls(key, certificate)

    @classmethod
    def load(cls, directory: Path) -> Authority:
        """Read the authority in ``directory``. Raises TrustError without one."""
        try:
            key = serialization.load_pem_private_key((directory / CA_KEY_FILE).read_bytes(), None)
            certificate = x509.load_pem_x509_certificate((directory / CA_FILE).read_bytes())
        except FileNotFoundError:
            raise TrustError(
                "not_found",
                "no authority exists here",
                object=str(directory),
                hint=f"create one: lightloom pki init --dir {directory}",
            ) from None
        except (OSError, ValueError) as error:
            raise TrustError(
                "failed", f"the authority cannot be read: {error}", object=str(directory)
            ) from error
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TrustError("invalid", "is not an ECDSA key", object=str(directory / CA_KEY_FILE))
        return cls(key, certificate)

    def issue_agent(
        self, server: str, directory: Path, *, now: datetime, days: int = CERT_DAYS
    ) -> Issued:
        """Write the certificate of the agent of ``server``; replaces (renews) an old one."""
        _check_name(server, "server")
        return self._issue(agent_name(server), directory=directory, now=now, days=days)

    def issue_aggregators(
        self, aggregators: Sequence[str], directory: Path, *, now: datetime, days: int = CERT_DAYS
    ) -> Issued:
        """Write the certificate of a packet switch; replaces (renews) an old one.

        An Open vSwitch has one certificate for all its bridges, hence several ``aggregators``. The
        certificate is valid for clients only: a stolen one cannot impersonate a controller.
        """
        for aggregator in aggregators:
            _check_name(aggregator, "aggregator")
        names = [aggregator_name(aggregator) for aggregator in aggregators]
        return self._issue(*names, directory=directory, now=now, days=days, use=_CLIENT)

    def issue_controller(self, directory: Path, *, now: datetime, days: int = CERT_DAYS) -> Issued:
        """Write the certificate of the controller; replaces (renews) an old one."""
        return self._issue(CONTROLLER, directory=directory, now=now, days=days)

    def _issue(
        self,
        *names: str,
        directory: Path,
        now: datetime,
        days: int,
        use: Sequence[x509.ObjectIdentifier] = _BOTH_ENDS,
    ) -> Issued:
        key = ec.generate_private_key(ec.SECP256R1())
        expires = min(now + timedelta(days=days), self._certificate.not_valid_after_utc)
        authority_id = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        certificate = (
            x509.CertificateBuilder()
            .subject_name(_common_name(names[0]))
            .issuer_name(self._certificate.subject)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(min(now, expires) - _BACKDATE)
            .not_valid_after(expires)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(sign_certificates=False), critical=True)
            .add_extension(x509.ExtendedKeyUsage(use), critical=False)
            .add_extension(
                x509.SubjectAlternativeName([x509.DNSName(name) for name in names]), critical=False
            )
            .add_extension(authority_id, critical=False)
            .sign(self._key, hashes.SHA256())
        )
        _make(directory)
        _write(directory / KEY_FILE, _key_pem(key), mode=0o600)
        _write(directory / CERT_FILE, certificate.public_bytes(serialization.Encoding.PEM))
        _write(directory / CA_FILE, self._certificate.public_bytes(serialization.Encoding.PEM))
        return Issued(", ".join(names), directory, expires)


def _check_name(name: str, kind: str) -> None:
    if _NAME.fullmatch(name) is None:
        raise TrustError(
            "invalid",
            f"is not a valid {kind} name",
            object=name[:80],
            hint="use the name in the site file: a-z, 0-9 and -",
        )


def _common_name(text: str) -> x509.Name:
    return x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, text[:64])])


def _usage(*, sign_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=sign_certificates,
        crl_sign=sign_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise TrustError(
            "failed", f"cannot be created: {error.strerror}", object=str(directory)
        ) from error


def _write(path: Path, data: bytes, mode: int = 0o644) -> None:
    beside = path.with_name(f".{path.name}.new")
    try:
        beside.unlink(missing_ok=True)
        descriptor = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
        with os.fdopen(descriptor, "wb") as out:
            out.write(data)
            out.flush()
            os.fsync(out.fileno())  # otherwise a crash may leave the new name with an empty file
        beside.replace(path)
    except OSError as error:
        raise TrustError(
            "failed",
            f"cannot be written: {error.strerror}",
            object=str(path),
            hint="run as a user with write permission there, or use another directory",
        ) from error
