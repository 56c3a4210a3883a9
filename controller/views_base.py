"""What all views share: names, the bases of requests and views, pages."""

from __future__ import annotations

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints, ValidationInfo, model_validator

from controller.texts import unsound_at

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,63}$")]
JobState = Literal[
    "pending", "starting", "running", "pausing", "paused", "completed", "failed", "cancelled"
]
Severity = Literal["info", "warning", "error"]
Item = TypeVar("Item")


class View(BaseModel):
    """Base of everything shown; written and read by the names of the REST schema."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)


STORED = {"stored": True}
"""Validation context of what the store kept: an older version may have accepted such a text."""


class Request(BaseModel):
    """Base of everything accepted; no text of it holds a NUL or a lone surrogate."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, serialize_by_alias=True)

    @model_validator(mode="before")
    @classmethod
    def _texts_are_sound(cls, value: Any, info: ValidationInfo) -> Any:
        if info.context is STORED:
            return value
        if (where := unsound_at(value)) is not None:
            raise ValueError(f"{where or 'a text'} holds a NUL or an unpaired surrogate")
        return value


class Page(View, Generic[Item]):
    """A list and the epoch it was read at."""

    items: list[Item]
    epoch: int
    next: str | None = None
    """Cursor of the page that follows; None on the last one."""
