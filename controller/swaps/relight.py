"""Gives light back to endpoints that went dark with a lost run or a drain.

What is wanted is durable (``Drains.unlit``), so that a controller that restarts goes on.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

import structlog

from base import clock
from controller.base.errors import ServiceError
from controller.base.tasks import Tasks
from controller.fabric.mover import Mover
from controller.state.intend.keys import DRAINS
from controller.state.state import State
from controller.transaction.model import Cause

log = structlog.get_logger(__name__)

AGAIN_S = 10.0
"""Between two attempts, while ports are taken or devices do not answer."""


class Relighter:
    """Connects dark endpoints with their homes in the site file, as ports become free."""

    def __init__(
        self,
        state: State,
        mover: Mover,
        tasks: Tasks,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._state = state
        self._mover = mover
        self._tasks = tasks
        self._monotonic = monotonic
        self._under_way: asyncio.Task[None] | None = None
        self._next = 0.0
        """When to try again, by the monotonic clock."""

    def request(self, endpoints: Iterable[str]) -> None:
        """Light endpoints as soon as that is possible; that is durable with the next commit."""
        self._state.drains.unlit |= self.lightable(endpoints)
        self._state.journal.owe(DRAINS)
        self.hurry()

    def lightable(self, endpoints: Iterable[str]) -> frozenset[str]:
        """Return those of the endpoints that have a home in the site file."""
        return frozenset(endpoints) & self._state.site.homes.keys()

    def hurry(self) -> None:
        """Try at the next look: there may be something new to light."""
        self._next = 0.0

    def check(self) -> None:
        """Look once; one attempt at a time."""
        state, now = self._state, self._monotonic()
        busy = self._under_way is not None and not self._under_way.done()
        if not state.drains.unlit or busy or now < self._next:
            return
        if state.suspect or state.transactions.interrupted:
            return
        self._next = now + AGAIN_S
        self._under_way = self._tasks.spawn(self._light(), "give light back")

    async def _light(self) -> None:
        for endpoint in sorted(self._state.drains.unlit):
            await asyncio.sleep(0)  # a site may have many
            if endpoint in self._state.transactions.locked():
                continue
            if not self._pointless(endpoint):
                await self._try(endpoint)
            if self._pointless(endpoint):
                self._forget(endpoint)

    async def _try(self, endpoint: str) -> None:
        home = self._state.site.homes[endpoint]
        try:
            running = self._mover.begin(Cause.HOMES, {endpoint: home})
        except ServiceError as error:
            log.info("endpoint_stays_dark", endpoint=endpoint, reason=error.message)
            return
        await self._mover.carry_out(running)
        self._forget(endpoint)  # where it failed, the transaction has said why

    def _pointless(self, endpoint: str) -> bool:
        """Whether an endpoint is lit, or stays dark: out of use, detached, or drained again."""
        state = self._state
        at = state.light.attachments
        return (
            endpoint in at
            or endpoint in state.light.quarantine
            or endpoint in state.light.detached
            or endpoint in state.drains.drained(at)
            or endpoint in state.drains.left_at()
            or f"aggregator/{state.site.homes[endpoint]}" in state.drains.of
        )

    def _forget(self, endpoint: str) -> None:
        drains = self._state.drains
        if endpoint in drains.unlit:
            drains.unlit -= {endpoint}
            self._state.journal.owe(DRAINS)
