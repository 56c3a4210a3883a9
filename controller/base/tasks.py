"""Background tasks that are never lost: kept until they end, logged when they fail."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import structlog

from controller.base.errors import ServiceError

log = structlog.get_logger(__name__)

BROKEN_LOOP_PAUSE_S = 1.0


def seen(work: asyncio.Future[Any]) -> None:
    """Mark the error of ``work`` as seen; a later caller may still get it.

    A done callback for work that outlives its caller; asyncio would log its error as lost.
    """
    if not work.cancelled():
        work.exception()


class Tasks:
    """The tasks of one owner."""

    def __init__(self) -> None:
        self._tasks: set[asyncio.Task[Any]] = set()

    def spawn(self, work: Coroutine[Any, Any, None], name: str) -> asyncio.Task[None]:
        """Run ``work`` beside everything else."""
        task = asyncio.create_task(work, name=name)
        self._tasks.add(task)
        task.add_done_callback(self._done)
        return task

    def keep(self, name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Run ``loop``, which does not return, and restart it when it fails."""
        self.spawn(self._repeated(name, loop), name)

    async def stop(self) -> None:
        """Cancel everything and wait for it."""
        tasks = tuple(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("task_broke", task=task.get_name(), exc_info=error)

    @staticmethod
    async def _repeated(name: str, loop: Callable[[], Awaitable[None]]) -> None:
        """Restart ``loop`` after any error: an unexpected one must not stop the controller."""
        while True:
            try:
                await loop()
            except ServiceError as error:
                log.error("loop_interrupted", loop=name, error=error.message)
            except Exception:
                log.exception("loop_broke", loop=name)
            await asyncio.sleep(BROKEN_LOOP_PAUSE_S)
