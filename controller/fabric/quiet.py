"""When a job's traffic stands still: the moment to freeze it, and the moment to cut its light.

Port counters are all there is to see. A job that pauses between two bursts is frozen in such a
lull; after the freeze the ports must have stood still for a while, because bytes still in flight
when the light goes cost a retransmission time-out each. What has not moved since the lull has
stood still for as long as the freeze took.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping, Sequence

from controller.devices.aggregators import Aggregators, AttachPoint
from controller.devices.counters import PortCounters
from controller.devices.errors import DEVICE_ERRORS
from controller.transaction.instructions import AwaitLull, AwaitQuiet
from controller.transaction.model import Transaction
from scheduler.model import Policy

LULL_S = 0.02
LULL_LIMIT_S = 3.0
"""A job's steps have a pause in which its ranks only compute; it costs nothing to wait for it."""
QUIET_S = 0.03
"""Counters that stand still this long: in-flight bytes have landed (or there were none)."""
QUIET_LIMIT_S = 0.3
QUIET_BYTES = 4096
"""A port that counts no more than this stands still: a few acknowledgements and heartbeats."""
POLL_S = 0.01


class QuietWatch:
    """Watches the ports of the jobs that are to be frozen, one transaction apart from another."""

    def __init__(
        self, attached: Callable[[str], AttachPoint | None], aggregators: Aggregators
    ) -> None:
        """``attached`` says where an endpoint is now."""
        self._attached = attached
        self._aggregators = aggregators
        self._lulls: dict[str, tuple[float, Mapping[AttachPoint, int]]] = {}
        """Per transaction: when its job's lull ended, and what the ports had counted by then."""

    def forget(self, ident: str) -> None:
        """Drop what was kept for a transaction."""
        self._lulls.pop(ident, None)

    async def await_lull(self, tx: Transaction, order: AwaitLull) -> None:
        """Wait for a lull of the order's job; note what all jobs to be frozen have counted then."""
        await self._await_unchanged(order.endpoints, LULL_S, LULL_LIMIT_S)
        frozen = [e for job in tx.jobs if job.policy is Policy.PAUSE for e in job.endpoints]
        with contextlib.suppress(*DEVICE_ERRORS):
            self._lulls[tx.id] = (time.monotonic(), await self._counted(self._points(frozen)))

    async def await_quiet(self, tx: Transaction, order: AwaitQuiet) -> None:
        """Wait until the frozen ports stand still. What stood still since the lull is quiet now."""
        since, counted = self._lulls.get(tx.id, (0.0, {}))
        points = self._points(order.endpoints)
        known = [counted[p] for p in points if p in counted]
        begin = (since, known) if len(known) == len(points) else None
        await self._await_unchanged(order.endpoints, QUIET_S, QUIET_LIMIT_S, begin)

    async def _await_unchanged(
        self,
        endpoints: Sequence[str],
        quiet_s: float,
        limit_s: float,
        begin: tuple[float, list[int]] | None = None,
    ) -> None:
        """Return when the endpoints' ports stand still for ``quiet_s``, or after ``limit_s``.

        ``begin``: what they had counted at an earlier moment (monotonic seconds).
        """
        points = self._points(endpoints)
        end = time.monotonic() + limit_s
        since, last = begin if begin else (time.monotonic(), [])
        while (now := time.monotonic()) < end:
            try:
                async with asyncio.timeout(end - now):
                    counted = await self._counted(points)
            except DEVICE_ERRORS:
                return
            seen = [counted[point] for point in points]
            now = time.monotonic()
            if not last or any(b - a > QUIET_BYTES for a, b in zip(last, seen, strict=True)):
                last, since = seen, now
            elif now - since >= quiet_s:
                return
            await asyncio.sleep(POLL_S)

    def _points(self, endpoints: Sequence[str]) -> list[AttachPoint]:
        return [point for name in endpoints if (point := self._attached(name))]

    async def _counted(self, points: Sequence[AttachPoint]) -> Mapping[AttachPoint, int]:
        names = sorted({point.aggregator for point in points})
        read = await asyncio.gather(*(self._aggregators.port_counters(name) for name in names))
        counters = dict(zip(names, read, strict=True))
        return {p: _bytes(counters[p.aggregator].get(p.port)) for p in points}


def _bytes(counters: PortCounters | None) -> int:
    return counters.rx_bytes + counters.tx_bytes if counters else 0
