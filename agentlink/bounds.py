"""What may stand in a message between controller and agent: names, numbers and lengths. Pure.

A bound is a function that takes what was read and returns what is used. It stands in the
annotation of a value's field, where :mod:`agentlink.codec` finds it. It raises :class:`Refused` for
what must not be believed or done.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

NAME = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
"""Of an endpoint or a volume."""
MAX_JOB_NAME = 41
"""With it a container's name, ``ll-<job>-<rank>-<epoch>``, stays within 63 characters."""
JOB = re.compile(rf"[a-z0-9]([a-z0-9-]{{0,{MAX_JOB_NAME - 2}}}[a-z0-9])?")
JOB_RULE = f"with a-z, 0-9 and - inside, at most {MAX_JOB_NAME} characters"
MAX_OWNER = 80
"""Characters of an owner: a project, or a project and its job with a dot between them."""
FOLDER = re.compile(r"[a-z0-9-]{1,63}\.[0-9a-f]{8}")
"""Of a job's checkpoints."""
TEXT_CHARS = 1000
"""Most of a text that an agent sends."""
MOST_FIGURE = 1e15
"""Seconds or bytes: more than any of the figures of ranks can be."""
LAST_TIME = 2.0**33
"""In the year 2242."""
NEWER = "is the controller newer than the agent?"

_MOST_BYTES = 2**60
"""More than any file system holds."""
_MOST_CALLS = 2**53
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


def require(ok: object, message: str, hint: str = "") -> None:
    """Raise Refused unless ``ok``."""
    if not ok:
        raise Refused(message, hint)


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


def cut(characters: int) -> Callable[[str], str]:
    """Return a bound that cuts texts."""
    return lambda text: text[:characters]


def at_most(number: int) -> Callable[[int], int]:
    """Return a bound that lowers numbers."""
    return lambda found: min(found, number)


def among(otherwise: str, *choices: str) -> Callable[[str], str]:
    """Return a bound that replaces other words by ``otherwise``."""
    known = frozenset(choices)
    return lambda word: word if word in known else otherwise


def one_of(*choices: str) -> Callable[[str], str]:
    """Return a bound that refuses other words."""
    known = {word: word for word in choices}

    def bound(word: str) -> str:
        found = known.get(word)
        require(found, "the word is unknown")
        return found or ""

    return bound


def span(value: float) -> float:
    """Return a time span in seconds. Raises Refused."""
    require(0 <= value <= MOST_FIGURE, "no time span")
    return value


def span_or_none(value: float) -> float | None:
    """Return a time span in seconds; an impossible one counts as not reported."""
    return value if 0 <= value <= MOST_FIGURE else None


def size_or_none(value: int) -> int | None:
    """Return a number of bytes or files; an impossible one counts as not reported."""
    return value if value <= _MOST_BYTES else None


def possible_size(value: int) -> int:
    """Return a number of bytes. Raises Refused."""
    require(value <= _MOST_BYTES, "too many bytes")
    return value


def possible_calls(value: int) -> int:
    """Return a number of calls. Raises Refused."""
    require(value <= _MOST_CALLS, "too many calls")
    return value


def finite_or_none(value: float) -> float | None:
    """Return a number; an infinite one counts as not reported."""
    return value if math.isfinite(value) else None


def fraction_or_none(value: float) -> float | None:
    """Return a number, 0 to 1; an infinite one counts as not reported."""
    return min(1.0, max(0.0, value)) if math.isfinite(value) else None


def time_or_none(value: float) -> float | None:
    """Return a time in seconds since 1970; an impossible one counts as not reported."""
    return value if 0 <= value <= LAST_TIME else None


def past(value: float, now: float) -> float | None:
    """Return a time of the past; a later one counts as ``now``, none (0) as unknown."""
    return min(value, now) if 0 < value <= LAST_TIME else None


def short(text: str) -> str:
    """Return a text that an agent may send. Raises Refused."""
    require(len(text) <= TEXT_CHARS, "the text is too long")
    return text


def named_or_empty(text: str) -> str:
    """Return the name of an endpoint; empty for what is none."""
    return text if NAME.fullmatch(text) else ""


def endpoint_name(text: str) -> str:
    """Return the name of an endpoint. Raises Refused."""
    require(NAME.fullmatch(text), f"{text[:80]!r} is not an endpoint name")
    return text


def server_name(text: str) -> str:
    """Return the name of a server. Raises Refused."""
    require(_SERVER.fullmatch(text), f"{text[:80]!r} is no server")
    return text


def operation_name(text: str) -> str:
    """Return the name of a recorded operation. Raises Refused."""
    require(_OPERATION.fullmatch(text), "no operation")
    return sys.intern(text)


def job_name(text: str) -> str:
    """Return the name of a job. Raises Refused."""
    require(JOB.fullmatch(text), "no job")
    return text


def owns(owner: str) -> bool:
    """Return whether ``owner`` can own a directory of a volume."""
    return len(owner) <= MAX_OWNER and _OWNER.fullmatch(owner) is not None


def owner_name(text: str) -> str:
    """Return the owner of a directory of a volume. Raises Refused."""
    require(owns(text), "no owner")
    return text


Text = Annotated[str, cut(TEXT_CHARS)]
Word = Annotated[str, cut(64)]
EndpointName = Annotated[str, endpoint_name]
ServerName = Annotated[str, server_name]
