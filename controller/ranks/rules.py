"""Which values a job may give to a variable that lightloom would set. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Rule:
    """Checks a value; ``wrong`` returns what is wrong with it, empty for a valid one."""

    wrong: Callable[[str], str]


def number(low: int, high: int) -> Rule:
    """Accept whole decimal numbers from ``low`` to ``high``."""

    def wrong(value: str) -> str:
        fine = value.isascii() and value.isdecimal() and low <= int(value[:12]) <= high
        return "" if fine else f"{value[:40]!r} is not a whole number from {low} to {high}"

    return Rule(wrong)


def anything() -> Rule:
    """Accept any value; the framework interprets it."""
    return Rule(lambda value: "")
