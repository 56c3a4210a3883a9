"""Limits the planner: one computation at a time, a few in line; the others are refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from base import clock
from base.pools import Pool
from base.processes import Worker, WorkerError
from controller.base.errors import ServiceError

WAITING = 4
"""Most plans that wait for the one that is being computed."""
LINE_S = 30.0
"""Longest wait for the plans ahead in line."""

Result = TypeVar("Result")
Clock = Callable[[], float]


class StoppedError(Exception):
    """Raised by a computation's clock, in its thread, when the result is no longer wanted."""


class PlanLine:
    """Computes plans one after the other, in a process of their own or, without one, a thread."""

    def __init__(self, worker: Worker | None = None) -> None:
        """``worker``: the process; the thread then waits for it."""
        self._worker = worker
        self._pool = Pool("plans")
        self._turn = asyncio.Lock()
        self._waiting = 0

    @property
    def busy(self) -> bool:
        """True while a plan is being computed."""
        return self._turn.locked()

    async def compute(self, work: Callable[[Clock], Result], limit_s: float) -> Result:
        """Call ``work`` with a monotonic clock, and return its result.

        After ``limit_s`` seconds, or when the caller is cancelled, its process is ended, or in a
        thread the clock raises ``StoppedError``; only then does the next plan begin. ServiceError
        ``timeout`` after that time, ``unavailable`` when too many plans are requested at once, or
        when the process ends before it has answered.
        """
        await self._wait_for_turn()
        stop = threading.Event()

        def steady() -> float:
            if stop.is_set():
                raise StoppedError
            return clock.monotonic()

        computed = self._pool.run(self._perform, work, steady)
        computed.add_done_callback(self._over)
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(computed)
        except TimeoutError:
            raise ServiceError(
                "timeout", "the planner took too long", hint="give it a shorter time limit"
            ) from None
        except WorkerError as error:
            raise ServiceError(
                "unavailable",
                f"the planner has no result: {error}",
                object="plan",
                hint="try again: the next plan gets a new process; a fabric that always ends it is"
                " a fault to report",
            ) from error
        finally:
            stop.set()
            if self._worker is not None and not computed.done():
                self._worker.stop()

    async def close(self) -> None:
        """End the process, and what it computes; return when it is gone."""
        if self._worker is not None:
            await asyncio.to_thread(self._worker.close)
        self._pool.close()

    def _perform(self, work: Callable[[Clock], Result], steady: Clock) -> Result:
        return work(steady) if self._worker is None else self._worker.perform(work, steady)

    async def _wait_for_turn(self) -> None:
        """Wait in line. ServiceError ``unavailable`` when it is too long or too slow."""
        if self._turn.locked() and self._waiting >= WAITING:
            raise self._refusal(f"{self._waiting} more plans are waiting")
        self._waiting += 1
        try:
            async with asyncio.timeout(LINE_S):
                await self._turn.acquire()
        except TimeoutError:
            raise self._refusal(f"it did not become free within {LINE_S:g} s") from None
        finally:
            self._waiting -= 1

    def _over(self, computed: asyncio.Future[Result]) -> None:
        self._turn.release()
        if not computed.cancelled():
            computed.exception()  # retrieved here; a caller that still waits gets it too

    @staticmethod
    def _refusal(why: str) -> ServiceError:
        return ServiceError(
            "unavailable",
            f"the planner is busy with another plan, and {why}",
            object="plan",
            hint="try again in a moment; shorter time limits shorten the wait",
        )
