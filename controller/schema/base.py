"""What all documents share: names, the bases of requests and views, pages."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Strict, StringConstraints, model_validator

from controller.base.texts import fewer_parts, unsound_at
from controller.schema.visibility import Plain
from sitefile import names

Name = Annotated[str, StringConstraints(pattern=f"^{names.NAME}$")]
Number = Annotated[float, Strict()]
"""A number that may be missing. `true` is refused; pydantic reads it as 1 otherwise."""
JobState = Literal[
    "pending",
    "waiting",
    "starting",
    "running",
    "pausing",
    "paused",
    "completed",
    "failed",
    "cancelled",
]
"""``pending`` in lightloom's queue, ``waiting`` in that of another engine."""
Severity = Literal["info", "warning", "error"]
Item = TypeVar("Item")


class View(BaseModel):
    """Base of all answers; written and read by the names of the REST schema."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)


MOST_FIELDS = 100


class RequestModel(BaseModel):
    """Base of all requests; no text may have a NUL or a lone surrogate.

    Validating a megabyte of empty lists item by item would take seconds: a body with more parts
    than its request may have is refused before that.
    """

    most_parts: ClassVar[int] = 1000
    """Limit of texts, numbers, lists and objects, all levels together."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, serialize_by_alias=True)

    @model_validator(mode="before")
    @classmethod
    def _bounded_and_sound(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MOST_FIELDS:
            raise ValueError(f"it has more than {MOST_FIELDS} fields")
        if not fewer_parts(value, cls.most_parts):
            raise ValueError(f"it has more than {cls.most_parts} parts")
        if (where := unsound_at(value)) is not None:
            raise ValueError(f"{where or 'a text'} holds a NUL or an unpaired surrogate")
        return value


class Page(View, Generic[Item]):
    """A list and the epoch at which it was read."""

    items: list[Item]
    epoch: int
    next: Plain | None = None
    """Cursor of the next page; None on the last one."""
