"""Plain words of YAML that resemble numbers, and how fields read them."""

from __future__ import annotations

import re
from dataclasses import dataclass

_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}\Z")


@dataclass(slots=True, frozen=True)
class Unclear:
    """A plain word that is a number to some readers of YAML, and not to all the same one.

    ``0022`` is 18 or 22, ``1:30`` is 90 or text, ``1_000`` is 1000 or text. No field of a model
    accepts one, except through ``exact_text`` or ``hexadecimal``.
    """

    text: str

    @property
    def problem(self) -> str:
        """What is wrong with it, for a person."""
        return f"{self.text!r:.80} is a number to some readers of YAML, and not the same to all"

    fix = (
        "put it in quotes where it is text; write a number in decimal, without leading zeros, "
        "+, '_' or ':'"
    )


def exact_text(value: object) -> object:
    """Return the text of an unclear word, for fields whose text often resembles a number."""
    return value.text if isinstance(value, Unclear) else value


def hexadecimal(value: object) -> object:
    """Return the number of a word such as ``0x1f``, for fields that people write so."""
    if isinstance(value, Unclear) and _HEX.match(value.text):
        return int(value.text, 16)
    return value
