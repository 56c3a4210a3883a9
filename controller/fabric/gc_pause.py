"""Python's garbage collector, kept from long pauses while light is dark.

A full collection looks at every object of the process, a fifth of a second at a site of 4,096
endpoints, and may come at any allocation. While a transaction runs it is put off; collections of
what is new go on.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEVER = 1 << 30

_usual: list[tuple[int, int, int]] = []
"""The thresholds as they were, once for each block that is under way."""


@contextmanager
def full_collections_deferred() -> Iterator[None]:
    """Have no full collection until the block, and every other one, has ended."""
    _usual.append(_usual[0] if _usual else gc.get_threshold())
    young, middle, _ = _usual[0]
    gc.set_threshold(young, middle, NEVER)
    try:
        yield
    finally:
        usual = _usual.pop()
        if not _usual:
            gc.set_threshold(*usual)
