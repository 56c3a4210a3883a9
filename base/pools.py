"""Threads for one kind of work each, so that it never waits for work of another kind.

The whole process shares asyncio's own pool (``asyncio.to_thread``), which has few threads: work
that may take seconds, or that clients may request often, does not belong there.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import ParamSpec, TypeVar

Given = ParamSpec("Given")
Result = TypeVar("Result")


class Pool:
    """A few threads; they start with the first work and end with this object or ``close``."""

    def __init__(self, name: str, threads: int = 1) -> None:
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix=name)

    def run(
        self, function: Callable[Given, Result], *args: Given.args, **kwargs: Given.kwargs
    ) -> asyncio.Future[Result]:
        """Call ``function`` in one of the threads; the future is of the running loop."""
        loop = asyncio.get_running_loop()
        return loop.run_in_executor(self._threads, partial(function, *args, **kwargs))

    def close(self) -> None:
        """Refuse further calls. The threads end after the calls that were made."""
        self._threads.shutdown(wait=False)
