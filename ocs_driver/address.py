"""Parses the URL that names a switch: ``vendor+protocol://user@host:port``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import parse_qsl, unquote, urlsplit

from base.addresses import join_address, split_address
from ocs_driver.errors import OcsError
from ocs_driver.profile import SwitchProfile, load_profile

_OPTIONS = frozenset({"hostkey", "personality", "ports"})


@dataclass(slots=True, frozen=True)
class OcsAddress:
    """The parts of a switch's URL; ``port`` is None when the URL omits it (protocol default)."""

    scheme: str
    host: str
    port: int | None
    user: str
    options: Mapping[str, str] = field(default_factory=dict)
    """``personality``: file with measured behaviour; ``ports``: the site's port naming scheme;
    ``hostkey``: the switch's SSH key in base64."""
    state_dir: Path | None = None
    """Folder of the ledger of own circuits; None means the default folder."""
    older_state_dir: Path | None = None
    """Previous ledger folder: its files are moved to ``state_dir``."""

    @classmethod
    def parse(cls, url: str) -> OcsAddress:
        """Parse a URL. Raises OcsError when it is malformed or contains a password."""
        try:
            parts = urlsplit(url)
            port = parts.port
            if port is not None:
                split_address(parts.netloc.rpartition("@")[2], lowest=1)
        except ValueError as error:
            raise OcsError("bad_url", _without_userinfo(url), str(error)) from None
        shown = _without_userinfo(url)
        if parts.password is not None:
            raise OcsError(
                "password_in_url",
                shown,
                "give the password by reference (LIGHTLOOM_OCS_PASSWORD or the site file)",
            )
        if not parts.scheme or not parts.hostname:
            raise OcsError("bad_url", shown, "write it as vendor+protocol://user@host:port")
        options = dict(parse_qsl(parts.query))
        unknown = sorted(options.keys() - _OPTIONS)
        if unknown:
            known = ", ".join(sorted(_OPTIONS))
            raise OcsError("bad_url", shown, f"unknown option {unknown[0]}; known options: {known}")
        user = unquote(parts.username or "")
        return cls(parts.scheme.lower(), parts.hostname, port, user, options)

    def profile(self, default: SwitchProfile | None = None) -> SwitchProfile:
        """Return the profile from the URL's personality file, else the default. Raises OcsError."""
        file = self.options.get("personality")
        return load_profile(Path(file)) if file else default or SwitchProfile()

    def __str__(self) -> str:
        if self.port is not None:
            return f"{self.scheme}://{join_address(self.host, self.port)}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}"


def _without_userinfo(url: str) -> str:
    scheme, separator, rest = url.partition("://")
    return f"{scheme}{separator}{rest.rpartition('@')[2]}"
