"""The line in front of the planner: one computation at a time, a few that wait, others refused."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from controller.base.errors import ServiceError
from controller.base.pools import Pool

WAITING = 4
"""Plans that may wait for the one that is being computed."""
LINE_S = 30.0
"""Longest wait for the plans ahead."""

Result = TypeVar("Result")
Clock = Callable[[], float]


class StoppedError(Exception):
    """The result of a computation is no longer wanted; its clock says so, in its thread."""


class PlanLine:
    """Computes plans in a thread of its own."""

    def __init__(self) -> None:
        self._pool = Pool("plans")
        self._turn = asyncio.Lock()
        self._waiting = 0

    @property
    def busy(self) -> bool:
        """True while a plan is being computed."""
        return self._turn.locked()

    async def compute(self, work: Callable[[Clock], Result], limit_s: float) -> Result:
        """Call ``work`` with the monotonic clock that bounds it.

        After ``limit_s`` seconds, or when the caller is cancelled, the clock raises
        ``StoppedError``, which ends the work; the next plan has its turn only then. ServiceError
        ``timeout`` after that time, ``unavailable`` when too many plans are asked for at once.
        """
        await self._queued()
        stop = threading.Event()

        def clock() -> float:
            if stop.is_set():
                raise StoppedError
            return time.monotonic()

        computed = self._pool.run(work, clock)
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

    async def _queued(self) -> None:
        """Wait for the turn. ServiceError ``unavailable`` when the line is too long or slow."""
        if self._turn.locked() and self._waiting >= WAITING:
            raise self._refusal(f"{self._waiting} more wait for their turn")
        self._waiting += 1
        try:
            async with asyncio.timeout(LINE_S):
                await self._turn.acquire()
        except TimeoutError:
            raise self._refusal(f"no turn came within {LINE_S:g} s") from None
        finally:
            self._waiting -= 1

    def _over(self, computed: asyncio.Future[Result]) -> None:
        self._turn.release()
        if not computed.cancelled():
            computed.exception()  # told to the caller, if it still waits

    @staticmethod
    def _refusal(why: str) -> ServiceError:
        return ServiceError(
            "unavailable",
            f"the planner is busy with another plan, and {why}",
            object="plan",
            hint="try again in a moment; shorter time limits shorten the line",
        )
