"""Lists in pieces: ``limit`` items after ``cursor``, which names the last item of the page before.

A page goes on after that item wherever it stands now, so an item that stays is shown once. When
it is gone, the list is begun again: that is a conflict, not a gap.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import Query

from controller.base.errors import ServiceError
from controller.schema.base import Page, View

Item = TypeVar("Item", bound=View)
MOST_ITEMS = 1000
"""Of one page, also when no limit is asked for: what a page holds is made and sent at once."""
MOST_BYTES = 2 * 2**20
"""Of one page's large texts: a job's command and variables take up to 128 KiB."""
Limit = Annotated[
    int | None, Query(ge=1, le=10_000, description="at most this many, and at most 1,000")
]
Cursor = Annotated[
    str | None, Query(max_length=400, description="`next` of the page before: go on after it")
]


@dataclass(slots=True, frozen=True)
class Part:
    """One page of a list: which of its items, and the cursor of the page that follows."""

    items: slice
    next: str | None


def cut(names: Sequence[str], limit: int | None, cursor: str | None) -> Part:
    """Return one page of a list, by its items' names, before anything is made of them.

    ServiceError ``conflict`` for a cursor that leads nowhere.
    """
    start = 0
    if cursor is not None:
        last = _decoded(cursor)
        start = next((i for i, name in enumerate(names, 1) if name == last), -1)
        if start < 0:
            raise ServiceError(
                "conflict",
                "the cursor leads nowhere: the item that this page follows is gone",
                object="cursor",
                hint="read the list from its beginning; use `next` unchanged",
            )
    end = start + min(limit or MOST_ITEMS, MOST_ITEMS)
    more = start < end < len(names)
    return Part(slice(start, end), encode(names[end - 1]) if more else None)


def light(
    part: Part, items: Sequence[Item], key: Callable[[Item], str], weigh: Callable[[Item], int]
) -> tuple[list[Item], str | None]:
    """Return as many items of a page as are light enough together, and the cursor after them.

    ``weigh`` tells the bytes of an item that may be large. At least one is returned, if there is.
    """
    total = 0
    for number, item in enumerate(items):
        total += weigh(item)
        if total > MOST_BYTES and number:
            return list(items[:number]), encode(key(items[number - 1]))
    return list(items), part.next


def paged(
    items: Sequence[Item],
    epoch: int,
    limit: int | None,
    cursor: str | None,
    key: Callable[[Item], str],
) -> Page[Item]:
    """Return one page of what is made already. ServiceError as with ``cut``."""
    part = cut([key(item) for item in items], limit, cursor)
    return Page(items=list(items[part.items]), epoch=epoch, next=part.next)


def encode(last: str) -> str:
    """Return the cursor that goes on after the item called ``last``."""
    return base64.urlsafe_b64encode(last.encode()).decode()


def _decoded(cursor: str) -> str:
    try:
        return base64.b64decode(cursor.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        return ""  # no item is called so: it leads nowhere, like one that is gone
