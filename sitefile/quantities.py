"""Sizes, rates and durations as people write them in files: ``200GiB``, ``500MB/s``, ``7d``."""

from __future__ import annotations

import re
from typing import Annotated

from pydantic import BeforeValidator, ByteSize, Field, WithJsonSchema

from sitefile.words import Unclear

_DURATION = re.compile(r"(?:(\d{1,6})d)?(?:(\d{1,6})h)?(?:(\d{1,6})m)?(?:(\d{1,9})s?)?")


def no_flag(value: object) -> object:
    """Refuse true and false, which Python counts as numbers, and unclear words. ValueError."""
    if isinstance(value, bool):
        raise ValueError("true and false are not numbers")
    if isinstance(value, Unclear):
        raise ValueError(value.problem)
    return value


def off_word(value: object) -> object:
    """Return ``off`` for what YAML 1.1 makes of that word: false."""
    return "off" if value is False else value


def _rate(value: object) -> object:
    """Strip ``/s`` from a rate: ``500MB/s`` equals ``500MB``."""
    return value.removesuffix("/s") if isinstance(value, str) else value


def _seconds(value: object) -> object:
    """Read a duration such as ``7d``, ``12h`` or ``1h30m``; a number is seconds. ValueError."""
    if not isinstance(value, str):
        return value
    found = _DURATION.fullmatch(value)
    if found is None or not value:
        raise ValueError("not a duration such as 7d, 12h or 1h30m")
    units = (86400, 3600, 60, 1)
    return float(sum(int(n or 0) * unit for n, unit in zip(found.groups(), units, strict=True)))


NUMBER = BeforeValidator(no_flag)
"""Check of every number; it stands behind its limits, so that the schema has these."""
Bytes = Annotated[ByteSize, BeforeValidator(no_flag), Field(gt=0)]
BytesPerSecond = Annotated[ByteSize, BeforeValidator(_rate), BeforeValidator(no_flag), Field(gt=0)]
Duration = Annotated[
    float,
    BeforeValidator(_seconds),
    BeforeValidator(no_flag),
    Field(gt=0, le=3650 * 86400.0, allow_inf_nan=False),
    WithJsonSchema({"type": ["string", "number"], "examples": ["7d", "12h", "1h30m", 600]}),
]
"""In seconds."""
