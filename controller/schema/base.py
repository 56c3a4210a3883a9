"""What all views share: names, the bases of requests and views, pages."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints, model_validator

from controller.base.texts import fewer_parts, unsound_at
from sitefile import names

Name = Annotated[str, StringConstraints(pattern=f"^{names.NAME}$")]
JobState = Literal[
    "pending", "starting", "running", "pausing", "paused", "completed", "failed", "cancelled"
]
Severity = Literal["info", "warning", "error"]
Item = TypeVar("Item")


class View(BaseModel):
    """Base of everything shown; written and read by the names of the REST schema."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)


MOST_FIELDS = 100


class Request(BaseModel):
    """Base of everything accepted; no text of it holds a NUL or a lone surrogate.

    A body of a megabyte of empty lists would take seconds to find wrong, item by item: one of
    more parts than the request may have is refused before any of them is looked at.
    """

    most_parts: ClassVar[int] = 1000
    """Texts, numbers, lists and objects in it, all levels together."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, serialize_by_alias=True)

    @model_validator(mode="before")
    @classmethod
    def _bounded_and_sound(cls, value: Any) -> Any:
        if isinstance(value, dict) and len(value) > MOST_FIELDS:
            raise ValueError(f"there are more than {MOST_FIELDS} fields")
        if not fewer_parts(value, cls.most_parts):
            raise ValueError(f"there are more than {cls.most_parts} parts in it")
        if (where := unsound_at(value)) is not None:
            raise ValueError(f"{where or 'a text'} holds a NUL or an unpaired surrogate")
        return value


class Page(View, Generic[Item]):
    """A list and the epoch it was read at."""

    items: list[Item]
    epoch: int
    next: str | None = None
    """Cursor of the page that follows; None on the last one."""
