"""Which values a job may give to a variable that lightloom would set. Pure."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass


@dataclass(slots=True, frozen=True)
class Rule:
    """What is wrong with a value, in words; empty when nothing is."""

    wrong: Callable[[str], str]


def number(low: int, high: int) -> Rule:
    """Whole decimal numbers from ``low`` to ``high``."""

    def wrong(value: str) -> str:
        fine = value.isascii() and value.isdecimal() and low <= int(value[:12]) <= high
        return "" if fine else f"{value[:40]!r} is no whole number from {low} to {high}"

    return Rule(wrong)


def anything() -> Rule:
    """Whatever the framework makes of it."""
    return Rule(lambda value: "")
