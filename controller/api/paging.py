"""Cuts lists into pages: ``limit`` items after ``cursor``, the last item of the previous page.

A page continues after that item at its present position, so an item that remains is shown once.
If the item is gone, the client starts again: a conflict, not a gap.
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
"""Of one page, also without a limit: a page is made and sent as a whole."""
MOST_BYTES = 2 * 2**20
"""Of one page's large texts: a job's command and variables take up to 128 KiB."""
Limit = Annotated[
    int | None, Query(ge=1, le=10_000, description="at most this many, and at most 1,000")
]
Cursor = Annotated[
    str | None, Query(max_length=400, description="`next` of the previous page: continue after it")
]


@dataclass(slots=True, frozen=True)
class PageSlice:
    """One page of a list: its items, and the cursor of the next page."""

    items: slice
    next: str | None


def cut(names: Sequence[str], limit: int | None, cursor: str | None) -> PageSlice:
    """Return one page of a list, by its items' names, before their views are made.

    ServiceError ``conflict`` if the item of the cursor is gone.
    """
    start = 0
    if cursor is not None:
        last = _decoded(cursor)
        start = next((i for i, name in enumerate(names, 1) if name == last), -1)
        if start < 0:
            raise ServiceError(
                "conflict",
                "the cursor is not valid any more: the item that this page follows is gone",
                object="cursor",
                hint="read the list from its beginning; pass `next` unchanged",
            )
    end = start + min(limit or MOST_ITEMS, MOST_ITEMS)
    more = start < end < len(names)
    return PageSlice(slice(start, end), encode(names[end - 1]) if more else None)


def light(
    part: PageSlice, items: Sequence[Item], key: Callable[[Item], str], weigh: Callable[[Item], int]
) -> tuple[list[Item], str | None]:
    """Return as many items of a page as fit into ``MOST_BYTES``, and the cursor after them.

    ``weigh`` returns the bytes of an item. The first item is always returned.
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
    """Return one page of views that are made already. ServiceError as with ``cut``."""
    part = cut([key(item) for item in items], limit, cursor)
    return Page(items=list(items[part.items]), epoch=epoch, next=part.next)


def encode(last: str) -> str:
    """Return the cursor that continues after the item named ``last``."""
    return base64.urlsafe_b64encode(last.encode()).decode()


def _decoded(cursor: str) -> str:
    try:
        return base64.b64decode(cursor.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        return ""  # no item has this name: treated like an item that is gone
