"""Fields of documents that the catalogue of readings declares."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import Field

from controller.schema.visibility import Visibility
from readings.reading import Reading, Unit

Readings = dict[str, int | float | list[str]]
"""Readings of an object by name; those that nothing reports are left out."""


def fields(readings: Iterable[Reading], shown: Visibility = Visibility.ALL) -> dict[str, Any]:
    """Return the annotations of fields for readings, with their mark; null is not reported."""
    return {reading.name: Annotated[_field(reading), shown] for reading in readings}


def lines(names: Iterable[str], *, optional: bool) -> dict[str, Any]:
    """Return the annotations of fields for readings over time, each null where it is unknown."""
    line = list[float | None]
    return {
        name: Annotated[line | None, Field(default=None)] if optional else line for name in names
    }


def _field(reading: Reading) -> Any:
    if reading.unit is Unit.WORDS:
        return Annotated[list[str], Field(default_factory=list)]
    return Annotated[(int if reading.whole else float) | None, Field(default=None)]
