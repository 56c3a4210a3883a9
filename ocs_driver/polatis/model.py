"""What a Polatis' model name tells about its ports. Pure."""

from __future__ import annotations

import re

from ocs_driver.ports import MatrixPorts, parse_size

_SIZE = re.compile(r"(?<![0-9])(\d{1,4}x(?:\d{1,4}|CC))(?![0-9])", re.IGNORECASE)


def numbering(model: str, size: str = "") -> MatrixPorts:
    """Return how the ports are numbered; the model name (``OST-48xCC``) knows best. OcsError."""
    match = _SIZE.search(model)
    return parse_size(match[1] if match else size)
