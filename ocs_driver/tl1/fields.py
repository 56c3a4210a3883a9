"""Parses payload rows of TL1 responses: ``AID:positional,...:KEY=value,KEY=value``. Pure.

Firmware adds fields, and values may be empty or quoted, so rows are read by key and
never by position; unknown fields are kept and ignored.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ocs_driver.errors import OcsBadReply


@dataclass(slots=True, frozen=True)
class ReplyRow:
    """One payload row: its identifier, values without a key, and values by key."""

    aid: str
    positional: tuple[str, ...]
    values: Mapping[str, str]

    def get(self, key: str, default: str = "") -> str:
        """Return the value of ``key``, or ``default`` when absent."""
        return self.values.get(key, default)

    def need(self, key: str) -> str:
        """Return the value of a key that each row of the list has. Raises OcsBadReply."""
        if key not in self.values:
            raise OcsBadReply(self.aid[:60] or "a row", f"the row has no {key}")
        return self.values[key]


def split(text: str, separator: str) -> list[str]:
    r"""Split at ``separator`` outside quotes; quotes may be written ``"`` or ``\"``."""
    if '"' not in text:
        return text.split(separator)
    parts: list[str] = []
    start = 0
    quoted = False
    for index, char in enumerate(text):
        if char == '"':
            quoted = not quoted
        elif char == separator and not quoted:
            parts.append(text[start:index])
            start = index + 1
    if quoted:
        # Unbalanced quotes have no meaning here: an extra value is better than a lost row.
        return text.split(separator)
    parts.append(text[start:])
    return parts


def unquote(text: str) -> str:
    r"""Return ``text`` without one surrounding pair of ``"`` or ``\"``."""
    value = text.strip()
    if '"' not in value:
        return value
    for mark in ('\\"', '"'):
        if value.startswith(mark) and value.endswith(mark) and len(value) >= 2 * len(mark):
            return value[len(mark) : -len(mark)]
    return value


def parse_row(row: str) -> ReplyRow:
    """Parse one payload row (without its outer quotes)."""
    aid, *blocks = split(row, ":")
    positional: list[str] = []
    values: dict[str, str] = {}
    longer: dict[str, list[str]] = {}
    for block in blocks:
        last = ""
        for piece in split(block, ","):
            key, equals, value = piece.partition("=")
            if equals:
                last = key.strip().upper()
                values[last] = value
                longer.pop(last, None)
            elif last and piece.strip():
                # An unquoted comma inside a value: "LABEL=rack 1, left,INPWR=NONE".
                longer.setdefault(last, [values[last]]).append(piece)
            elif not last:
                positional.append(unquote(piece))
    values |= {key: ",".join(pieces) for key, pieces in longer.items()}
    read = {key: unquote(value) for key, value in values.items()}
    return ReplyRow(unquote(aid), tuple(positional), read)
