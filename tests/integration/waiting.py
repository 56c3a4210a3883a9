"""Waits for what a running rack says."""

from __future__ import annotations

import time
from collections.abc import Callable

from testbed.demo.api import Document


def until(
    ask: Callable[[], Document],
    good: Callable[[Document], object],
    *,
    limit_s: float,
    pause_s: float = 0.05,
) -> Document:
    """Ask until the answer is good, and return it; fail after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while not good(found := ask()):
        assert time.monotonic() < deadline, found
        time.sleep(pause_s)
    return found
