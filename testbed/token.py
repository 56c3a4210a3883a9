"""Finds the racks that run on this machine, and the token of a local controller.

It has few imports, because every online command uses it when no URL or no token is given.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RACKS = Path("/run/lightloom")
"""Parent folder of the run directories of emulated racks."""
INSTALLED = Path("/var/lib/lightloom/controller")
"""State directory of a controller that was started without ``--state-dir``."""
FILE = "admin.token"
LANES = Path("/run/ll-lanes")
"""Parent folder of the records of lanes (``testbed.lanes``), which hold racks of their own."""
VARIABLE = "LIGHTLOOM_LANE"
"""Names the lane whose rack is meant."""


def local_token(
    url: str, racks: Path = RACKS, installed: Path = INSTALLED, lanes: Path = LANES
) -> str | None:
    """Return the admin's token of the controller at ``url``, None when none is readable.

    A rack's record names the URL that it serves. The files have mode 0600, so only the user
    who started the controller can read them.
    """
    for rack in (*_here(racks), *_in_lanes(lanes)):
        if rack.url == url:
            return rack_token(rack.run_dir)
    return _read(installed / FILE)


def running_racks(racks: Path = RACKS, lanes: Path = LANES) -> list[str]:
    """Return the URLs of the racks whose controller runs, those in lanes last."""
    found = []
    for rack in (*_here(racks), *_in_lanes(lanes)):
        try:
            pids = [int(p["pid"]) for p in rack.content["processes"] if p["name"] == "controller"]
        except (KeyError, TypeError, ValueError):
            continue
        if rack.url and any((rack.proc / str(pid)).exists() for pid in pids):
            found.append(rack.url)
    return found


def lane_url(name: str, lanes: Path = LANES) -> str | None:
    """Return the URL at which this machine reaches the rack in lane ``name``."""
    for rack in _in_lanes(lanes):
        if rack.lane == name and rack.url:
            return rack.url
    return None


def token_file(run_dir: Path) -> Path:
    """Return the file of the admin's token of the rack in ``run_dir``."""
    return run_dir / "controller" / FILE


def rack_token(run_dir: Path) -> str | None:
    """Return the admin's token of the rack in ``run_dir``."""
    return _read(token_file(run_dir))


@dataclass(slots=True, frozen=True)
class _Rack:
    """A rack's record, and where this process finds what it names."""

    url: str
    run_dir: Path
    content: dict[str, Any]
    proc: Path = Path("/proc")
    lane: str = ""


def _here(racks: Path) -> list[_Rack]:
    return [
        _Rack(str(content.get("url", "")), record.parent, content)
        for record in _records(racks)
        if (content := _content(record))
    ]


def _in_lanes(lanes: Path) -> list[_Rack]:
    """Return the racks in lanes, seen through the root folder of each lane's first process."""
    found = []
    for record in _glob(lanes, "*/lane.json"):
        lane = _content(record)
        root = Path("/proc") / str(lane.get("first", "none")) / "root"
        ports = lane.get("ports")
        for rack in _here(root / str(RACKS).lstrip("/")):
            inner = rack.url.rpartition(":")[2]
            outer = ports.get(inner) if isinstance(ports, dict) else None
            url = f"http://127.0.0.1:{outer}" if outer else ""
            found.append(_Rack(url, rack.run_dir, rack.content, root / "proc", record.parent.name))
    return found


def _records(racks: Path) -> list[Path]:
    return _glob(racks, "*/rack.json")


def _glob(folder: Path, pattern: str) -> list[Path]:
    try:
        return sorted(folder.glob(pattern))
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
