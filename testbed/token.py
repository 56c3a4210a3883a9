"""Finds the token of a controller on this machine, for users who may read it.

It has few imports, because every online command uses it when no token is given.
"""

from __future__ import annotations

import json
from pathlib import Path

RACKS = Path("/run/lightloom")
"""Parent folder of the run directories of emulated racks."""
INSTALLED = Path("/var/lib/lightloom/controller")
"""State directory of a controller that was started without ``--state-dir``."""
FILE = "admin.token"


def local_token(url: str, racks: Path = RACKS, installed: Path = INSTALLED) -> str | None:
    """Return the admin's token of the controller at ``url``, None when none is readable.

    A rack's record names the URL that it serves. The files have mode 0600, so only the user
    who started the controller can read them.
    """
    try:
        records = sorted(racks.glob("*/rack.json"))
    except OSError:
        records = []
    for record in records:
        if _url(record) == url:
            return rack_token(record.parent)
    return _read(installed / FILE)


def token_file(run_dir: Path) -> Path:
    """Return the file of the admin's token of the rack in ``run_dir``."""
    return run_dir / "controller" / FILE


def rack_token(run_dir: Path) -> str | None:
    """Return the admin's token of the rack in ``run_dir``."""
    return _read(token_file(run_dir))


def _url(record: Path) -> str:
    try:
        return str(json.loads(record.read_text(encoding="utf-8"))["url"])
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
