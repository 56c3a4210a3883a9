"""Limits the planner: one computation at a time, a few in line; the others are refused."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import TypeVar

from base import clock
from base.pools import Pool
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
    """Computes plans one after the other, in a thread of their own."""

    def __init__(self) -> None:
        self._pool = Pool("plans")
        self._turn = asyncio.Lock()
        self._waiting = 0

    @property
    def busy(self) -> bool:
        """True while a plan is being computed."""
        return self._turn.locked()

    async def compute(self, work: Callable[[Clock], Result], limit_s: float) -> Result:
        """Call ``work`` with a monotonic clock that can stop it, and return its result.

        After ``limit_s`` seconds, or when the caller is cancelled, the clock raises
        ``StoppedError``, which ends the work; only then does the next plan begin. ServiceError
        ``timeout`` after that time, ``unavailable`` when too many plans are requested at once.
        """
        await self._wait_for_turn()
        stop = threading.Event()

        def steady() -> float:
            if stop.is_set():
                raise StoppedError
            return clock.monotonic()

        computed = self._pool.run(work, steady)
        computed.add_done_callback(self._over)
        try:
            async with asyncio.timeout(limit_s):
                return await asyncio.shield(computed)
        except TimeoutError:
            raise ServiceError(
                "timeout", "the planner took too long", hint="give it a shorter time limit"
            ) from None
        finally:
            stop.set()

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
