"""Watches port counters: when to freeze a job, when to cut its light, and that a drain holds.

Only port counters can be observed. A job that pauses between two bursts is frozen in such a lull.
After the freeze its ports must be quiet for a while, because bytes still in flight when the light
is cut cost a retransmission time-out each. A port whose counters have not changed since the lull
has been quiet for as long as the freeze took.

A live job keeps sending, and a switch may acknowledge a barrier before its data plane has
forgotten the old rules. Frames that follow an old rule once the light has moved reach another job.
So the light stays until the ports that its endpoints leave have transmitted nothing for a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence

from base import clock
from controller.devices.aggregators import Aggregators, AttachPoint
from controller.devices.counters import PortBlock, PortCounters
from controller.devices.errors import DEVICE_ERRORS
from controller.transaction.instructions import AwaitLull, AwaitQuiet
from controller.transaction.model import Transaction
from scheduler.model import Policy

LULL_S = 0.02
LULL_LIMIT_S = 3.0
"""A job's steps have a pause in which its ranks only compute; waiting for it costs nothing."""
QUIET_S = 0.03
"""Counters unchanged for this long: bytes in flight have arrived (or there were none)."""
QUIET_LIMIT_S = 0.3
QUIET_BYTES = 4096
"""A port that counts no more than this is quiet: a few acknowledgements and heartbeats."""
POLL_S = 0.01
DRAINED_S = 0.003
"""A port that a ring still uses transmits thousands of frames in this time."""
DRAINED_LIMIT_S = 1.0


class QuietWatch:
    """Watches the ports of jobs that are to be frozen, separately for each transaction."""

    def __init__(
        self, attached: Callable[[str], AttachPoint | None], aggregators: Aggregators
    ) -> None:
        """``attached`` returns where an endpoint is now."""
        self._attached = attached
        self._aggregators = aggregators
        self._lulls: dict[str, tuple[float, Mapping[AttachPoint, int]]] = {}
        """Per transaction: when its job's lull ended, and the ports' counters at that time."""

    def forget(self, ident: str) -> None:
        """Drop the counters kept for a transaction."""
        self._lulls.pop(ident, None)

    async def await_lull(self, tx: Transaction, order: AwaitLull) -> None:
        """Wait for a lull of the order's job; record the counters of all jobs to be frozen."""
        await self._await_unchanged(order.endpoints, LULL_S, LULL_LIMIT_S)
        frozen = [e for job in tx.jobs if job.policy is Policy.PAUSE for e in job.endpoints]
        with contextlib.suppress(*DEVICE_ERRORS):
            self._lulls[tx.id] = (clock.monotonic(), await self._counted(self._points(frozen)))

    async def await_quiet(self, tx: Transaction, order: AwaitQuiet) -> None:
        """Wait until the frozen ports are quiet; the time since the lull counts."""
        since, counted = self._lulls.get(tx.id, (0.0, {}))
        points = self._points(order.endpoints)
        known = [counted[p] for p in points if p in counted]
        begin = (since, known) if len(known) == len(points) else None
        await self._await_unchanged(order.endpoints, QUIET_S, QUIET_LIMIT_S, begin)

    async def drained(self, tx: Transaction) -> bool:
        """Wait until the ports that live jobs leave transmit nothing; False when they still do.

        DEVICE_ERRORS when the counters cannot be read.
        """
        live = {e for job in tx.jobs if job.policy is Policy.LIVE for e in job.endpoints}
        points = [p.before for p in tx.paths if p.before is not None and p.endpoint in live]
        end, before = clock.monotonic() + DRAINED_LIMIT_S, list[int]()
        while (sent := await self._sent(points)) != before:  # both are empty without such ports
            if clock.monotonic() >= end:
                return False
            before = sent
            await asyncio.sleep(DRAINED_S)
        return True

    async def _await_unchanged(
        self,
        endpoints: Sequence[str],
        quiet_s: float,
        limit_s: float,
        begin: tuple[float, list[int]] | None = None,
    ) -> None:
        """Return when the endpoints' ports have been quiet for ``quiet_s``, or after ``limit_s``.

        ``begin``: their counters at an earlier moment (monotonic seconds).
        """
        points = self._points(endpoints)
        end = clock.monotonic() + limit_s
        since, last = begin if begin else (clock.monotonic(), [])
        while (now := clock.monotonic()) < end:
            try:
                async with asyncio.timeout(end - now):
                    counted = await self._counted(points)
            except DEVICE_ERRORS:
                return
            seen = [counted[point] for point in points]
            now = clock.monotonic()
            if not last or any(b - a > QUIET_BYTES for a, b in zip(last, seen, strict=True)):
                last, since = seen, now
            elif now - since >= quiet_s:
                return
            await asyncio.sleep(POLL_S)

    def _points(self, endpoints: Sequence[str]) -> list[AttachPoint]:
        return [point for name in endpoints if (point := self._attached(name))]

    async def _counted(self, points: Sequence[AttachPoint]) -> Mapping[AttachPoint, int]:
        counters = await self._counters(points)
        return {p: _bytes(counters[p.aggregator].get(p.port)) for p in points}

    async def _sent(self, points: Sequence[AttachPoint]) -> list[int]:
        async with asyncio.timeout(DRAINED_LIMIT_S):
            counters = await self._counters(points)
        known = (counters[point.aggregator].get(point.port) for point in points)
        return [port.tx_packets if port else 0 for port in known]

    async def _counters(self, points: Sequence[AttachPoint]) -> Mapping[str, PortBlock]:
        names = sorted({point.aggregator for point in points})
        read = await asyncio.gather(*(self._aggregators.port_counters(name) for name in names))
        return dict(zip(names, read, strict=True))


def _bytes(counters: PortCounters | None) -> int:
    return counters.rx_bytes + counters.tx_bytes if counters else 0
