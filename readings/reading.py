"""The declaration of a reading: a figure of an object, with its unit and bounds. Pure."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal

MOST_WORDS = 32
_WORD_CHARS = 64


class Object(StrEnum):
    """What a reading is of."""

    RANK = "rank"
    """A running rank: its GPU, or the share of a CPU that stands in for one."""
    GPU = "gpu"
    """A GPU on which a rank runs."""
    SERVER = "server"
    SWITCH = "switch"
    AGGREGATOR = "aggregator"
    PORT = "port"
    """A port of an aggregator."""


class Unit(StrEnum):
    """The unit of a reading, which decides how it is written for people."""

    RATIO = "ratio"
    BYTES = "B"
    CELSIUS = "°C"
    WATTS = "W"
    HERTZ = "Hz"
    BITS_PER_SECOND = "bit/s"
    COUNT = "count"
    NUMBER = "number"
    WORDS = "words"


Value = int | float | tuple[str, ...]
Values = Mapping[str, Value]
"""Readings of one object by name; one that the source does not give is absent."""
_WHOLE = frozenset({Unit.BYTES, Unit.HERTZ, Unit.BITS_PER_SECOND, Unit.COUNT})


@dataclass(frozen=True, kw_only=True)
class Reading:
    """A reading that an object can have; docs/architecture.md says what follows from it."""

    id: int
    """On the wire. Never used again for another reading."""
    name: str
    """In documents; it ends in the unit: ``temperature_c``."""
    of: Object
    unit: Unit
    help: str
    """What it is. With a ``metric`` it is the help of that family."""
    least: float = -sys.float_info.max
    most: float = sys.float_info.max
    """Values beyond count as not reported; a ratio is cut to 0 and 1."""
    lasts_s: float = 3.5
    """How long a value stands; rank and GPU have one limit for the whole sample."""
    metric: str = ""
    """The family in Prometheus; empty for none. Words are 1 while there are any."""
    labels: tuple[tuple[str, str], ...] = ()
    """What tells it from the other readings of its family."""
    counter: bool = False
    history: Literal["", "telemetry", "gpu"] = ""
    """The ring that keeps it, for ranks and GPUs; it is a column in the order of the catalogue."""
    of_job: Literal["", "max", "sum"] = ""
    """What ``top`` shows of a job's GPUs; empty leaves the reading out of ``top``."""
    column: str = ""
    """Its column in wide lists, left out where no object reports it; empty for none."""
    label: str = ""
    """Its row among an object's facts in the console; readings with one label share a row."""
    text: str = "{}"
    """How the value stands in that row."""

    @property
    def whole(self) -> bool:
        """Whether values are whole numbers."""
        return self.unit in _WHOLE

    @cached_property
    def accept(self) -> Callable[[Any], Value | None]:
        """What returns a value within the bounds, and None for one that cannot be."""
        match self.unit:
            case Unit.WORDS:
                return _words
            case Unit.RATIO:
                return _ratio
        least, most = self.least, self.most
        if self.whole:
            return lambda value: int(value) if least <= value <= most else None
        return lambda value: value if least <= value <= most else None


def _words(words: Sequence[str]) -> tuple[str, ...]:
    return tuple(word[:_WORD_CHARS] for word in words[:MOST_WORDS])


def _ratio(value: float) -> float | None:
    return min(1.0, max(0.0, value)) if math.isfinite(value) else None
