"""Reads again and again what servers offer, and removes what the site file keeps no longer."""

from __future__ import annotations

import asyncio

from controller.devices.engine import ExecutionEngine
from controller.state.offers import offer_of
from controller.state.state import State
from controller.volumes.removal import DataRemover

READ_EVERY_S = 10.0
READ_TIMEOUT_S = 5.0
REMOVE_EVERY_S = 60.0


class VolumeWatch:
    """Keeps ``State.offers`` up to date."""

    def __init__(self, state: State, engine: ExecutionEngine, remover: DataRemover) -> None:
        self._state = state
        self._engine = engine
        self._remover = remover

    async def read(self) -> None:
        """Ask all servers once."""
        offered, now = await self._engine.volumes(READ_TIMEOUT_S), self._state.clock()
        # In a thread: a server may hold thousands of directories.
        self._state.take_offers(
            await asyncio.to_thread(
                lambda: {server: offer_of(volumes, now) for server, volumes in offered.items()}
            )
        )

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self.read()
            await asyncio.sleep(READ_EVERY_S)

    async def run_removals(self) -> None:
        """Remove what is due until cancelled; first when servers have had time to answer."""
        while True:
            await asyncio.sleep(REMOVE_EVERY_S)
            await self._remover.remove_due()
