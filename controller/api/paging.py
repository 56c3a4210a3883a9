"""Lists in pieces: ``limit`` items after ``cursor``, which names the last item of the page before.

A page goes on after that item wherever it stands now, so an item that stays is shown once. When
it is gone, the list is begun again: that is a conflict, not a gap.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Sequence
from typing import Annotated, TypeVar

from fastapi import Query

from controller.errors import ServiceError
from controller.views_base import Page, View

Item = TypeVar("Item", bound=View)
Limit = Annotated[
    int | None, Query(ge=1, le=10_000, description="at most this many; all without it")
]
Cursor = Annotated[
    str | None, Query(max_length=400, description="`next` of the page before: go on after it")
]


def paged(
    items: Sequence[Item],
    epoch: int,
    limit: int | None,
    cursor: str | None,
    key: Callable[[Item], str],
) -> Page[Item]:
    """Return one page. ServiceError ``conflict`` for a cursor that leads nowhere."""
    start = 0
    if cursor is not None:
        last = _decoded(cursor)
        start = next((i for i, item in enumerate(items, 1) if key(item) == last), -1)
        if start < 0:
            raise ServiceError(
                "conflict",
                "the cursor leads nowhere: the item that this page follows is gone",
                object="cursor",
                hint="read the list from its beginning; use `next` unchanged",
            )
    end = len(items) if limit is None else start + limit
    part = list(items[start:end])
    more = encode(key(part[-1])) if part and end < len(items) else None
    return Page(items=part, epoch=epoch, next=more)


def encode(last: str) -> str:
    """Return the cursor that goes on after the item called ``last``."""
    return base64.urlsafe_b64encode(last.encode()).decode()


def _decoded(cursor: str) -> str:
    try:
        return base64.b64decode(cursor.encode(), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeError):
        return ""  # no item is called so: it leads nowhere, like one that is gone
