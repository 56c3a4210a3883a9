"""Finds the racks that run on this machine, and the token of a local controller.

It has few imports, because every online command uses it when no URL or no token is given.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
    for record in _records(racks):
        if str(_content(record).get("url", "")) == url:
            return rack_token(record.parent)
    return _read(installed / FILE)


def running_racks(racks: Path = RACKS) -> list[str]:
    """Return the URLs of the racks whose controller runs."""
    found = []
    for record in _records(racks):
        content = _content(record)
        try:
            pids = [int(p["pid"]) for p in content["processes"] if p["name"] == "controller"]
        except (KeyError, TypeError, ValueError):
            continue
        if content.get("url") and any(Path(f"/proc/{pid}").exists() for pid in pids):
            found.append(str(content["url"]))
    return found


def token_file(run_dir: Path) -> Path:
    """Return the file of the admin's token of the rack in ``run_dir``."""
    return run_dir / "controller" / FILE


def rack_token(run_dir: Path) -> str | None:
    """Return the admin's token of the rack in ``run_dir``."""
    return _read(token_file(run_dir))


def _records(racks: Path) -> list[Path]:
    try:
        return sorted(racks.glob("*/rack.json"))
    except OSError:
        return []


def _content(record: Path) -> dict[str, Any]:
    try:
        content = json.loads(record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return content if isinstance(content, dict) else {}


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="ascii").strip() or None
    except (OSError, UnicodeDecodeError):
        return None
