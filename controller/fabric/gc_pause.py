"""Defers Python's full garbage collections while endpoints are dark.

A full collection visits every object of the process, which takes a fifth of a second at a site of
4,096 endpoints, and may start at any allocation. It is deferred while a transaction runs;
collections of young objects continue.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

NEVER = 1 << 30

_usual: list[tuple[int, int, int]] = []
"""The thresholds as they were, once for each active block."""


@contextmanager
def full_collections_deferred() -> Iterator[None]:
    """Defer full collections until this block and all others have ended."""
    _usual.append(_usual[0] if _usual else gc.get_threshold())
    young, middle, _ = _usual[0]
    gc.set_threshold(young, middle, NEVER)
    try:
        yield
    finally:
        usual = _usual.pop()
        if not _usual:
            gc.set_threshold(*usual)
