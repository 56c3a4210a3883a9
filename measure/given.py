"""Reads settings as people give them: a list, one value, or a text such as ``4k,64k,1m``."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from base.figures import figure
from measure.envelope import Json
from measure.kinds import SettingsError

T = TypeVar("T", int, float, str)

MOST_VALUES = 64
"""Values of one list."""
_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(i?)b?(?:/s)?", re.ASCII | re.IGNORECASE)
_STEPS = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def size(text: str, *, base: int = 1024) -> int:
    """Return the bytes of ``64k``, ``1MiB`` or ``4096``; ``base`` is the value of a bare ``k``.

    Raises ValueError.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None or len(text) > 32:
        raise ValueError(f"{text[:32]!r} is not a size")
    factor = float(1024 if match[3] else base) ** _STEPS[match[2].lower()]
    return round(float(match[1]) * factor)


@dataclass(slots=True, frozen=True)
class RequestSettings:
    """The settings of one request, by name."""

    values: Mapping[str, Json]

    def only(self, names: Sequence[str]) -> None:
        """Refuse (SettingsError) a setting that is not in ``names``."""
        for name in self.values:
            if name not in names:
                raise SettingsError(name, "unknown setting", f"the settings are {', '.join(names)}")

    def sizes(
        self, name: str, default: Sequence[int], low: int, high: int, *, base: int = 1024
    ) -> list[int]:
        """Return sizes in bytes, each within bounds, without repetitions.

        ``1k..4m`` is a range: each size is four times the one before, or ``1k..4m*2`` twice.
        """
        value = self.values.get(name)
        if isinstance(value, str) and ".." in value:
            return _range(name, value, low, high, base)
        return self._list(name, default, lambda value: _size(name, value, low, high, base))

    def size(self, name: str, default: int, low: int, high: int) -> int:
        """Return one size in bytes."""
        return self._one(name, default, lambda value: _size(name, value, low, high, 1024))

    def integers(self, name: str, default: Sequence[int], low: int, high: int) -> list[int]:
        """Return whole numbers, each within bounds, without repetitions."""
        return self._list(name, default, lambda value: _integer(name, value, low, high))

    def integer(self, name: str, default: int, low: int, high: int) -> int:
        """Return one whole number."""
        return self._one(name, default, lambda value: _integer(name, value, low, high))

    def number(self, name: str, default: float, low: float, high: float) -> float:
        """Return one number."""
        return self._one(name, default, lambda value: _number(name, value, low, high))

    def choices(self, name: str, default: Sequence[str], of: Sequence[str]) -> list[str]:
        """Return texts, each one ``of`` a few, without repetitions."""
        return self._list(name, default, lambda value: _choice(name, value, of))

    def choice(self, name: str, default: str, of: Sequence[str]) -> str:
        """Return one text ``of`` a few."""
        return self._one(name, default, lambda value: _choice(name, value, of))

    def text(self, name: str, pattern: str, what: str) -> str:
        """Return a text that matches, empty if it is absent."""
        value = self.values.get(name)
        if value is None or value == "":
            return ""
        if not isinstance(value, str) or len(value) > 512 or not re.fullmatch(pattern, value):
            raise SettingsError(name, f"{str(value)[:64]!r} is not {what}")
        return value

    def flag(self, name: str, *, default: bool) -> bool:
        """Return true or false."""
        value = self.values.get(name)
        if value is None:
            return default
        if isinstance(value, str):
            value = {"true": True, "yes": True, "false": False, "no": False}.get(value.lower())
        if isinstance(value, bool):
            return value
        if value in (0, 1):
            return bool(value)
        raise SettingsError(name, "it is neither true nor false")

    def _one(self, name: str, default: T, read: Callable[[Json], T]) -> T:
        value = self.values.get(name)
        return default if value is None else read(value)

    def _list(self, name: str, default: Sequence[T], read: Callable[[Json], T]) -> list[T]:
        value = self.values.get(name)
        if value is None or value == []:
            return list(default)
        if isinstance(value, str):
            value = [part.strip() for part in value.split(",") if part.strip()]
        elif isinstance(value, bool | int | float):
            value = [value]
        if not isinstance(value, Sequence) or not 0 < len(value) <= MOST_VALUES:
            raise SettingsError(name, f"it has no list of 1 to {MOST_VALUES} values")
        return list(dict.fromkeys(read(item) for item in value))


def _number(name: str, value: Json, low: float, high: float) -> float:
    try:
        number = math.nan if isinstance(value, bool) else float(value)
    except (TypeError, ValueError, OverflowError):
        number = math.nan
    if not low <= number <= high:
        raise SettingsError(
            name, f"{str(value)[:32]} is not a number from {figure(low, 6)} to {figure(high, 6)}"
        )
    return number


def _integer(name: str, value: Json, low: int, high: int) -> int:
    number = _number(name, value, low, high)
    if number != int(number):
        raise SettingsError(name, f"{str(value)[:32]} is not a whole number")
    return int(number)


def _size(name: str, value: Json, low: int, high: int, base: int) -> int:
    if isinstance(value, str):
        try:
            value = size(value, base=base)
        except ValueError as error:
            raise SettingsError(name, str(error), "write it as 64k, 1MiB or 4096") from None
    return _integer(name, value, low, high)


def _range(name: str, text: str, low: int, high: int, base: int) -> list[int]:
    first, _, rest = text.partition("..")
    last, star, factor = rest.partition("*")
    size, most = (_size(name, part, low, high, base) for part in (first, last))
    times = _integer(name, factor, 2, 2**20) if star else 4
    found = []
    while size <= most:
        found.append(size)
        size *= times
    if not found:
        raise SettingsError(name, f"{text[:32]!r} begins above its end")
    return found


def _choice(name: str, value: Json, of: Sequence[str]) -> str:
    if not isinstance(value, str) or value not in of:
        raise SettingsError(name, f"{str(value)[:32]!r} is not one of {', '.join(of)}")
    return value
