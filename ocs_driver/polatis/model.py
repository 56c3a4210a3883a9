"""Derives the port numbering from the model name of a Polatis switch. Pure."""

from __future__ import annotations

import re

from ocs_driver.ports import MatrixPorts, parse_size

_SIZE = re.compile(r"(?<![0-9])(\d{1,4}x(?:\d{1,4}|CC))(?![0-9])", re.IGNORECASE)


def numbering(model: str, size: str = "") -> MatrixPorts:
    """Return the port numbering, preferably by model name (``OST-48xCC``). Raises OcsError."""
    match = _SIZE.search(model)
    return parse_size(match[1] if match else size)
