"""What an annotation says of a job's field besides its type: limits, and how people write it.

In texts ``{default}`` stands for the field's default.

Without marks a field has its own name everywhere. The command line loads this module at its start.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import NoneType
from typing import Annotated, Any, TypeVar, get_args, get_origin

Mark = TypeVar("Mark")


@dataclass(slots=True, frozen=True, kw_only=True)
class ValueLimits:
    """What a value must keep; None does not limit."""

    ge: float | None = None
    gt: float | None = None
    le: float | None = None
    min_length: int | None = None
    max_length: int | None = None
    pattern: str | None = None


@dataclass(slots=True, frozen=True)
class Named:
    """A text by a pattern of ``sitefile.names``, in a request and in a file."""

    pattern: str
    in_file: str = ""
    """The same if empty."""


@dataclass(slots=True, frozen=True)
class ValueCheck:
    """Raises ValueError for a value of a request that cannot be."""

    check: Callable[[Any], object]


@dataclass(slots=True, frozen=True)
class Option:
    """An option of ``submit``."""

    help: str = ""
    """What the job file says of the field if empty."""
    flag: str = ""
    """Its names and its metavar, where they are not made from the field's: ``-n --count N``."""
    key: str = ""
    """Its name among the options of ``submit``, where that is not the field's."""
    kind: Any = None
    """How it is written, where not by the field's own type."""
    ge: float | None = None
    """The lower limit that the help shows, where that is not the field's own."""


@dataclass(slots=True, frozen=True)
class InFile:
    """A key of the job file."""

    text: str | None = None
    key: str = ""
    """Where it is not the field's name; ``limits.cpu`` lies in the section ``limits``."""
    limits: ValueLimits | None = None
    """Where they differ from a request's limits."""
    inline: bool = False
    """The schema lists the words of the choice in place."""


@dataclass(slots=True, frozen=True)
class Absent:
    """The field is missing on purpose, on the command line or in the job file."""

    place: type[Option | InFile]
    why: str


def marks(annotation: Any, kind: type[Mark]) -> list[Mark]:
    """Return the marks of one kind on an annotation, or on what is optional or repeated in it."""
    found = [mark for mark in getattr(annotation, "__metadata__", ()) if isinstance(mark, kind)]
    inner = get_args(annotation)[:1] if found or get_origin(annotation) else ()
    return found or [mark for part in inner for mark in marks(part, kind)]


def core(annotation: Any) -> Any:
    """Return a type without marks and without None."""
    while get_origin(annotation) is Annotated:
        annotation = get_args(annotation)[0]
    some = [one for one in get_args(annotation) if one is not NoneType]
    return core(some[0]) if NoneType in get_args(annotation) else annotation


def absent(annotation: Any, place: type[Any]) -> bool:
    """Return whether a field is missing there on purpose."""
    return any(mark.place is place for mark in marks(annotation, Absent))
