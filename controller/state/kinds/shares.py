"""What goes when there is too much of something that projects share."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import TypeVar

Item = TypeVar("Item")
Limit = tuple[int, Callable[[Item], int]]
"""The most that stays, and what one item counts."""


def one(_: object) -> int:
    """Count items."""
    return 1


def surplus(
    items: Iterable[Item], owner: Callable[[Item], str], *limits: Limit[Item]
) -> tuple[Item, ...]:
    """Return the items that go so that the others keep every limit; ``items`` are oldest first.

    The oldest goes of the owner who has most of what is too much: no owner displaces another's.
    """
    kept: dict[str, deque[Item]] = {}
    for item in items:
        kept.setdefault(owner(item), deque()).append(item)
    gone: list[Item] = []
    for most, count in limits:
        held = {who: sum(map(count, theirs)) for who, theirs in kept.items()}
        total = sum(held.values())
        while kept and total > most:
            who = max(held, key=held.__getitem__)
            gone.append(kept[who].popleft())
            size = count(gone[-1])
            held[who], total = held[who] - size, total - size
            if not kept[who]:
                del kept[who], held[who]
    return tuple(gone)
