"""Parses the rows of Polatis TL1 responses. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from ocs_driver.base import Pair
from ocs_driver.errors import OcsBadReply, OcsError

_PATCH = re.compile(r"\s*(\d{1,6})\s*,\s*(\d{1,6})\b", re.ASCII)
_POWER = re.compile(r"\s*(\d{1,6})\s*:\s*([+-]?\d{1,6}(?:\.\d{1,9})?)?", re.ASCII)
_SERIAL = re.compile(r"\bSN=([^,:\s]+)")


def parse_type(rows: Sequence[str]) -> tuple[str, str, str]:
    """Parse ``Polatis,<model>,<type>,<version>``: vendor, model, version. Raises OcsError."""
    parts = [part.strip() for part in (rows or ("",))[0].split(",")]
    if len(parts) < 4:
        raise OcsError("wrong_dialect", (rows or ("no response",))[0][:60], "not a Polatis switch")
    return parts[0], parts[1], parts[3]


def parse_serial(rows: Sequence[str]) -> str:
    """Parse the serial number from an inventory. Raises OcsBadReply when absent."""
    for row in rows:
        match = _SERIAL.search(row)
        if match is not None:
            return match[1].strip('\\"')
    raise OcsBadReply("RTRV-INV", "the inventory has no serial number (SN=)")


def parse_patch(rows: Sequence[str]) -> list[Pair]:
    """Parse rows such as ``1,25``. Raises OcsBadReply for any other row."""
    found = [_matching(_PATCH, row, "a pair of ports such as 1,25") for row in rows]
    return [Pair(str(int(m[1])), str(int(m[2]))) for m in found]


def parse_power(rows: Sequence[str]) -> Mapping[str, float]:
    """Parse rows such as ``1:-12.34`` into dBm by port, without those that have no reading.

    Raises OcsBadReply for any other row.
    """
    found = [_matching(_POWER, row, "a port's power such as 1:-12.34") for row in rows]
    return {str(int(m[1])): float(m[2]) for m in found if m[2]}


def _matching(pattern: re.Pattern[str], row: str, like: str) -> re.Match[str]:
    match = pattern.match(row)
    if match is None:
        raise OcsBadReply(row[:60] or "an empty row", f"this is not {like}")
    return match
