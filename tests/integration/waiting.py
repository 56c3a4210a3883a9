"""Waits for what a running rack says."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

Answer = TypeVar("Answer")


def until(
    ask: Callable[[], Answer],
    good: Callable[[Answer], object] = bool,
    *,
    limit_s: float,
    pause_s: float = 0.05,
) -> Answer:
    """Ask until the answer is good, and return it; fail after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while not good(found := ask()):
        assert time.monotonic() < deadline, found
        time.sleep(pause_s)
    return found


async def eventually(
    ask: Callable[[], Answer],
    good: Callable[[Answer], object] = bool,
    *,
    limit_s: float,
    pause_s: float = 0.01,
) -> Answer:
    """Do as ``until`` beside other tasks; ``ask`` does not block."""
    deadline = time.monotonic() + limit_s
    while not good(found := ask()):
        assert time.monotonic() < deadline, found
        await asyncio.sleep(pause_s)
    return found
