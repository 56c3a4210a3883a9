"""Reads the agent's own configuration of volumes: a name for each directory that it offers.

Only this configuration has paths of the server. A request names a volume, so that not even a
captured controller can mount another directory.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

from container_mgr.values import AgentError
from container_mgr.volumes import rules

MAX_OFFERS = 64
"""Volumes of one agent; each has a thread."""
MAX_FILE_BYTES = 1 << 20
_SYSTEM = tuple(
    PurePosixPath(path)
    for path in (
        *("/bin", "/boot", "/dev", "/etc", "/lib", "/lib64", "/proc", "/root", "/sbin", "/sys"),
        *("/usr", "/var/lib/docker"),
    )
)


@dataclass(slots=True, frozen=True)
class Offer:
    """A directory of this server that ranks may mount by ``name``."""

    name: str
    path: Path
    writable: bool = False
    """Ranks may write; else every mount is read-only."""
    mount: bool = False
    """``path`` must be a mount point: without its file system it is an empty directory."""


def parse(text: str) -> Offer:
    """Read ``NAME=PATH[:OPTION[,OPTION]]`` with the options ro, rw and mount.

    Raises ValueError.
    """
    name, equals, rest = text.partition("=")
    path, colon, options = rest.partition(":")
    if not equals:
        raise ValueError(f"{text!r} is not NAME=PATH[:ro|rw][,mount]")
    words = options.split(",") if colon else []
    unknown = [word for word in words if word not in ("ro", "rw", "mount")]
    if unknown or ("ro" in words and "rw" in words) or len(set(words)) != len(words):
        raise ValueError(f"options {options!r} must be one of ro and rw, and mount")
    return _offer(name, path, writable="rw" in words, mount="mount" in words)


def read_file(path: Path) -> tuple[Offer, ...]:
    """Read a YAML file ``NAME: {path: PATH, mode: ro|rw, mount: true|false}``.

    Raises ValueError and OSError.
    """
    with path.open("rb") as file:
        text = file.read(MAX_FILE_BYTES + 1)
    if len(text) > MAX_FILE_BYTES:
        raise ValueError(f"{path} exceeds {MAX_FILE_BYTES} bytes")
    try:
        entries = yaml.safe_load(text) or {}
    except yaml.YAMLError as error:
        raise ValueError(f"{path} is not YAML: {error}") from error
    if not isinstance(entries, dict):
        raise ValueError(f"{path} must map names to volumes")
    return tuple(_entry(str(name), entry) for name, entry in entries.items())


def check(offers: Collection[Offer]) -> Mapping[str, Offer]:
    """Return the offers by name. Raises ValueError when two of them collide.

    A volume inside another one could be replaced by a job that writes to the outer one.
    """
    if len(offers) > MAX_OFFERS:
        raise ValueError(f"more than {MAX_OFFERS} volumes")
    for what, values in (
        ("name", [offer.name for offer in offers]),
        ("path", [str(offer.path) for offer in offers]),
    ):
        double = next((value for value in values if values.count(value) > 1), None)
        if double is not None:
            raise ValueError(f"two volumes have the {what} {double}")
    for outer, inner in pairwise(sorted(offers, key=lambda offer: offer.path.parts)):
        if inner.path.is_relative_to(outer.path):
            raise ValueError(f"volume {inner.name} lies inside volume {outer.name}")
    return {offer.name: offer for offer in offers}


def _entry(name: str, entry: Any) -> Offer:
    if not isinstance(entry, dict) or not isinstance(entry.get("path"), str):
        raise ValueError(f"volume {name!r} has no path")
    unknown = sorted(str(key) for key in entry.keys() - {"path", "mode", "mount"})
    mode, mount = entry.get("mode", "ro"), entry.get("mount", False)
    if unknown:
        raise ValueError(f"volume {name!r} has the unknown key {unknown[0]!r}")
    if mode not in ("ro", "rw") or not isinstance(mount, bool):
        raise ValueError(f"volume {name!r}: mode is ro or rw, mount is true or false")
    return _offer(name, entry["path"], writable=mode == "rw", mount=mount)


def _offer(name: str, path: str, *, writable: bool, mount: bool) -> Offer:
    try:
        rules.check_name(name, name)
    except AgentError as error:
        raise ValueError(f"{error.message}; {error.hint}") from error
    pure = PurePosixPath(path)
    normal = pure.is_absolute() and str(pure) == path and ".." not in pure.parts
    if not normal or path == "/" or path.startswith("//") or any(c in path for c in "\0\n,:"):
        raise ValueError(
            f"volume {name}: {path!r} is not an absolute, normal path without comma and colon"
        )
    if any(pure.is_relative_to(tree) or tree.is_relative_to(pure) for tree in _SYSTEM):
        raise ValueError(f"volume {name}: {path} holds parts of the server's system")
    return Offer(name, Path(path), writable=writable, mount=mount)
