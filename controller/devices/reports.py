"""Which epochs servers know: no epoch is used twice, also when the store is an older copy.

A controller that starts from such a copy would begin runs in epochs that servers have seen. It
begins none before every server has said what containers and checkpoints it has, or has been silent
for as long as a lost one is.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Iterable
from typing import Literal

from base import clock

FURTHEST = 1 << 24
"""By how much servers raise the epoch beyond the store's: half a year at one a second, and few of
those that a rule can name. A server may lie."""

COPY_AGE = 1 << 20
"""By how much the epoch jumps when command is taken: more than a store used after any copy. So a
server that is away, with parts of runs that the copy does not know, shares no epoch with it."""

What = Literal["containers", "checkpoints"]


class Reports:
    """What servers have said since the start."""

    def __init__(
        self,
        servers: Iterable[str],
        dead_s: float,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        """Without a report for ``dead_s``, a server is not waited for."""
        self._missing = {(server, what) for server in servers for what in _ALL}
        self._dead_s = dead_s
        self._monotonic = monotonic
        self._all = asyncio.Event()
        self.begin(0)

    def begin(self, epoch: int) -> None:
        """Begin to wait for the servers; ``epoch`` is the store's."""
        self._since = self._monotonic()
        self._limit = epoch + FURTHEST

    def heard(self, server: str, what: What) -> None:
        """Note that a server has said everything of one kind."""
        self._missing.discard((server, what))
        if not self._missing:
            self._all.set()

    def highest(self, epochs: Iterable[int]) -> int:
        """Return the highest epoch that is believed; 0 without one."""
        return max((epoch for epoch in epochs if epoch <= self._limit), default=0)

    @property
    def missing(self) -> str:
        """The servers that are waited for; empty when none is."""
        if self._left_s <= 0:
            return ""
        return ", ".join(sorted({server for server, _ in self._missing}))

    async def wait(self) -> None:
        """Wait until no server is waited for."""
        if self.missing:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self._left_s):
                    await self._all.wait()

    @property
    def _left_s(self) -> float:
        return self._since + self._dead_s - self._monotonic()


_ALL: tuple[What, ...] = ("containers", "checkpoints")
