"""What all views share: names, the bases of requests and views, pages."""

from __future__ import annotations

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, StringConstraints

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9-]{1,63}$")]
JobState = Literal[
    "pending", "starting", "running", "pausing", "paused", "completed", "failed", "cancelled"
]
Severity = Literal["info", "warning", "error"]
Item = TypeVar("Item")


class View(BaseModel):
    """Base of everything shown; written and read by the names of the REST schema."""

    model_config = ConfigDict(populate_by_name=True, serialize_by_alias=True)


class Request(BaseModel):
    """Base of everything accepted."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True, serialize_by_alias=True)


class Page(View, Generic[Item]):
    """A list and the epoch it was read at."""

    items: list[Item]
    epoch: int
    next: str | None = None
    """Cursor of the page that follows; None on the last one."""
