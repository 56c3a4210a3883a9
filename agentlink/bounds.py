"""What may stand in a message between controller and agent: names, numbers and lengths. Pure.

A bound is a function from what was read to what is used. It stands in the annotation of a value's
field, where :mod:`agentlink.codec` finds it. It raises :class:`Refused` for what must not be
trusted or done.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""The name of an endpoint or a volume."""
MAX_JOB_NAME = 41
"""With it a container's name, ``ll-<job>-<rank>-<epoch>``, stays within 63 characters."""
JOB = re.compile(rf"[a-z0-9]([a-z0-9-]{{0,{MAX_JOB_NAME - 2}}}[a-z0-9])?")
JOB_RULE = f"with a-z, 0-9 and - inside, at most {MAX_JOB_NAME} characters"
MAX_OWNER = 80
"""Characters of an owner: a project, or a project and its job with a dot between them."""
FOLDER = re.compile(r"[a-z0-9-]{1,63}\.[0-9a-f]{8}")
"""The name of a job's folder of checkpoints."""
TEXT_CHARS = 1000
"""Most of a text that an agent sends."""
NEWER = "is the controller newer than the agent?"

_WORD_CHARS = 64
_MOST_BYTES = 2**60
"""More than any file system holds."""
_MOST_CALLS = 2**53
_MOST_FIGURE = 1e15
"""Seconds or bytes: more than any of the figures of ranks can be."""
_LAST_TIME = 2.0**33
"""In the year 2242."""
_OWNER = re.compile(rf"{NAME.pattern}(\.{NAME.pattern})?")
_OPERATION = re.compile(r"[a-z][a-z0-9_]{0,31}")
_SERVER = re.compile(r"[a-z0-9-]{1,63}")
_T = TypeVar("_T")


class Refused(ValueError):  # noqa: N818 - not always a fault of ours
    """A message has a value that the contract does not allow."""

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.obj: str | None = None
        """The name that the value itself has; None if it has none."""


def require(ok: object, message: str) -> None:
    """Raise Refused unless ``ok``."""
    if not ok:
        raise Refused(message)


@dataclass(slots=True, frozen=True, kw_only=True)
class Field:
    """How a field stands in its message, where that is not by its own name alone."""

    name: str = ""
    """Its name there, with a dot before the field of an inner message; empty if it is the same."""
    missing: str = ""
    """Why a message without it is refused; empty if it may be absent."""
    otherwise: object = None
    """What a choice that is not known counts as; None refuses it."""
    unknown: str = ""
    """Why a choice that is not known is refused; ``{}`` stands for it."""
    flat: bool = False
    """The fields of the inner value stand in the message of the outer one."""
    names: bool = False
    """It is the name of its value, which refusals state as their object."""


@dataclass(slots=True, frozen=True)
class Most:
    """A longer list is refused."""

    entries: int
    what: str

    def __call__(self, found: Sequence[_T]) -> Sequence[_T]:
        """Return the list. Raises Refused."""
        many = f"{len(found)} {self.what}; at most {self.entries} in one list"
        require(len(found) <= self.entries, many)
        return found


@dataclass(slots=True, frozen=True)
class First:
    """Only the first entries of a list are read, and impossible ones are left out."""

    entries: int


def only(possible: Callable[[_T], object], why: str) -> Callable[[_T], _T]:
    """Return a bound that refuses impossible values; ``{}`` in ``why`` stands for one."""

    def bound(found: _T) -> _T:
        if not possible(found):
            raise Refused(why.format(repr(found[:80]) if isinstance(found, str) else found))
        return found

    return bound


def or_none(possible: Callable[[_T], object]) -> Callable[[_T], _T | None]:
    """Return a bound by which an impossible value counts as not reported."""
    return lambda found: found if possible(found) else None


def among(otherwise: str, *choices: str) -> Callable[[str], str]:
    """Return a bound that replaces other words by ``otherwise``."""
    known = frozenset(choices)
    return lambda word: word if word in known else otherwise


def cut(characters: int) -> Callable[[str], str]:
    """Return a bound that cuts texts."""
    return lambda text: text[:characters]


def at_most(number: int) -> Callable[[int], int]:
    """Return a bound that lowers numbers."""
    return lambda found: min(found, number)


def is_span(value: float) -> bool:
    """Return whether a number can be a time span in seconds, or bytes of a rank."""
    return 0 <= value <= _MOST_FIGURE


def is_time(value: float) -> bool:
    """Return whether a number can be a time in seconds since 1970."""
    return 0 <= value <= _LAST_TIME


def past(value: float, now: float) -> float | None:
    """Return a time of the past; a later one counts as ``now``, none (0) as unknown."""
    return min(value, now) if value and is_time(value) else None


def owns(owner: str) -> bool:
    """Return whether ``owner`` can own a directory of a volume."""
    return len(owner) <= MAX_OWNER and _OWNER.fullmatch(owner) is not None


def _is_size(value: int) -> bool:
    return value <= _MOST_BYTES


endpoint_name = only(NAME.fullmatch, "{} is not an endpoint name")

Text = Annotated[str, cut(TEXT_CHARS)]
Word = Annotated[str, cut(_WORD_CHARS)]
EndpointName = Annotated[str, endpoint_name]
ServerName = Annotated[str, only(_SERVER.fullmatch, "invalid server {}")]
JobName = Annotated[str, only(JOB.fullmatch, "invalid job {}")]
OwnerName = Annotated[str, only(owns, "invalid owner {}")]
OperationName = Annotated[str, only(_OPERATION.fullmatch, "invalid operation {}"), sys.intern]
Size = Annotated[int, only(_is_size, "{} is too much")]
SizeOrNone = Annotated[int, or_none(_is_size)]
Calls = Annotated[int, only(lambda calls: calls <= _MOST_CALLS, "{} is too many")]
Span = Annotated[float, only(is_span, "invalid time span {}")]
SpanOrNone = Annotated[float, or_none(is_span)]
TimeOrNone = Annotated[float, or_none(is_time)]
