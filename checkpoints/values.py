"""What the parts of this package share: where a rank runs, and which paths are clean."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

MAX_PATH = 1024
"""Bytes of a path, in UTF-8."""
MAX_DEPTH = 16
MAX_STEP = 2**63 - 1
MAX_RANKS = 65_536
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Scheme(StrEnum):
    """How a part is protected."""

    SINGLE = "single"
    PARTNER = "partner"
    XOR = "xor"


class Apart(StrEnum):
    """What a part and its copy must not share."""

    SERVER = "server"
    AGGREGATOR = "aggregator"
    """Neither the aggregator nor the server: memory dies with the server in both cases."""


@dataclass(slots=True, frozen=True, order=True)
class Place:
    """An endpoint, the server that holds its files, and the aggregator it is homed on."""

    endpoint: str
    server: str
    aggregator: str = ""
    """Empty when the endpoint is dark."""


Places = Mapping[str, Place]
"""By name of endpoint, dead endpoints included: their server may still hold files."""


def are_apart(one: Place, other: Place, apart: Apart) -> bool:
    """Return whether no single failure of a server (or aggregator) destroys both places."""
    if one.server == other.server:
        return False
    if apart is Apart.SERVER:
        return True
    return bool(one.aggregator) and bool(other.aggregator) and one.aggregator != other.aggregator


def path_fault(path: str) -> str:
    """Return why a relative path cannot be trusted; empty when it can.

    Clean is a path of plain components in UTF-8 without control characters, at most
    ``MAX_DEPTH`` components and ``MAX_PATH`` bytes, never ``.``, ``..`` or absolute.
    """
    try:
        encoded = path.encode()
    except UnicodeEncodeError:
        return "the name is not UTF-8"
    if not encoded or len(encoded) > MAX_PATH:
        return f"the name has {len(encoded)} bytes; 1 to {MAX_PATH} are accepted"
    if _CONTROL.search(path):
        return "the name has control characters"
    components = path.split("/")
    if len(components) > MAX_DEPTH:
        return f"the name is deeper than {MAX_DEPTH} folders"
    if any(component in {"", ".", ".."} for component in components):
        return "the name leaves its folder"
    return ""
