"""Where the token of a controller on this machine lies, for whoever may read it.

Light on purpose: every on-line verb asks here when nobody said who it is.
"""

from __future__ import annotations

import json
from pathlib import Path

RACKS = Path("/run/lightloom")
"""Folder of the run directories of emulated racks."""
INSTALLED = Path("/var/lib/lightloom/controller")
"""State directory of a controller that was started without ``--state-dir``."""
FILE = "admin.token"


def local_token(url: str, racks: Path = RACKS, installed: Path = INSTALLED) -> str | None:
    """Return the admin's token of the controller at ``url``, None when there is none to read.

    A rack's record says which URL it serves. The files have mode 0600, so this works for
    whoever started the controller and for nobody else.
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
    """Return where the admin's token of the rack in ``run_dir`` lies."""
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
