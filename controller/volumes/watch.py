"""Reads again and again what servers offer, and removes what the site file keeps no longer."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence

from controller.devices.engine import ExecutionEngine, OfferedVolume
from controller.state.offers import offer_of
from controller.state.state import State
from controller.volumes.removal import DataRemover

READ_EVERY_S = 10.0
READ_TIMEOUT_S = 5.0
REMOVE_EVERY_S = 60.0
LATE_S = 300.0
"""Data that running ranks use under a quota is measured every 10 s; after this it is told."""


class VolumeWatch:
    """Keeps ``State.offers`` up to date."""

    def __init__(self, state: State, engine: ExecutionEngine, remover: DataRemover) -> None:
        self._state = state
        self._engine = engine
        self._remover = remover
        self._used_since: dict[tuple[str, str, str], float] = {}
        """Server, volume and owner of data in use under a quota."""
        self._late: frozenset[tuple[str, str, str]] = frozenset()
        """Those that were not measured in time."""

    async def read(self) -> None:
        """Ask all servers once."""
        offered, now = await self._engine.volumes(READ_TIMEOUT_S), self._state.clock()
        # In a thread: a server may hold thousands of directories.
        self._state.take_offers(
            await asyncio.to_thread(
                lambda: {server: offer_of(volumes, now) for server, volumes in offered.items()}
            )
        )
        self._tell_of_late(offered, now)

    def _tell_of_late(self, offered: Mapping[str, Sequence[OfferedVolume]], now: float) -> None:
        used = {
            (server, volume.name, data.owner): data.measured_at or 0.0
            for server, volumes in offered.items()
            for volume in volumes
            for data in volume.data
            if data.jobs and data.quota_bytes is not None
        }
        self._used_since = {key: self._used_since.get(key, now) for key in used}
        late = frozenset(
            key for key, at in used.items() if now - max(at, self._used_since[key]) > LATE_S
        )
        for server, volume, owner in sorted(late - self._late):
            text = (
                f"the data of {owner} in volume {volume} was not measured for {LATE_S:.0f} s:"
                " its quota does not hold meanwhile"
            )
            self._state.events.add("warning", f"server/{server}", "DataNotMeasured", text)
        self._late = late

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
