"""The threads that work on checkpoints: what a job can make slow never delays another's start.

Each use has threads of its own. Reading what ranks wrote takes as long as they wrote much; a start
that resumes reads as well; a removal takes as long as there are entries.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from enum import StrEnum
from functools import partial
from typing import Any, TypeVar

from container_mgr.checkpoints.disk.files import AgentEndingError, ChangedError
from container_mgr.values import AgentError

_T = TypeVar("_T")


class Use(StrEnum):
    """What threads are for."""

    START = "start"
    """Starts at 0, and records: some small files each."""
    RESUME = "resume"
    """Starts that read the step from which they resume."""
    REMOVE = "remove"
    READ = "read"
    """Scans, comparisons, and all else that waits for them."""


_THREADS = {Use.START: 4, Use.RESUME: 8, Use.REMOVE: 4, Use.READ: 8}


class CheckpointThreads:
    """Belongs to the event loop that runs when :meth:`begin` is called."""

    def __init__(self, stopping: threading.Event) -> None:
        """``stopping`` is set when the agent ends: nothing new begins."""
        self._stopping = stopping
        self._pools = {
            use: ThreadPoolExecutor(count, thread_name_prefix=f"checkpoints-{use}")
            for use, count in _THREADS.items()
        }
        self._working: set[asyncio.Future[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def begin(self) -> None:
        """Use the running loop."""
        self._loop = asyncio.get_running_loop()

    async def close(self) -> None:
        """Wait until all work has ended."""
        while self._working:  # long work ends by itself; notes are still written
            await asyncio.wait(self._working)
        for pool in self._pools.values():
            pool.shutdown(wait=False)

    def later(self, use: Use, work: Callable[[], None]) -> None:
        """Have work done; from any thread."""

        def begin() -> None:
            with suppress(RuntimeError):
                self.submit(use, work)

        with suppress(RuntimeError):  # the agent ends
            if self._loop is not None:
                self._loop.call_soon_threadsafe(begin)

    def submit(self, use: Use, work: Callable[[], _T]) -> asyncio.Future[_T]:
        """Begin work. Raises RuntimeError after the agent's end."""
        working = asyncio.get_running_loop().run_in_executor(self._pools[use], work)
        self._working.add(working)
        working.add_done_callback(self._working.discard)
        return working

    async def run(self, use: Use, work: Callable[[], _T], obj: str) -> _T:
        """Run work on files; every failure becomes an AgentError."""
        try:
            if self._stopping.is_set():
                raise AgentEndingError
            return await self.submit(use, work)
        except OSError as error:
            raise AgentError("failed", obj, f"its files cannot be used: {error}") from error
        except (ValueError, ChangedError) as error:
            raise AgentError("failed", obj, str(error)) from error
        except (AgentEndingError, RuntimeError) as error:
            if not self._stopping.is_set():
                raise
            raise AgentError("unavailable", obj, "the agent ends") from error

    def submitter(self, use: Use) -> Callable[[Callable[[], None]], object]:
        """Return :meth:`submit` of one use."""
        return partial(self.submit, use)
