"""The document of the controller's health. Changes nothing."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from importlib.metadata import PackageNotFoundError, version

from controller.devices.switches import Switches
from controller.ranks.strangers import describe_strangers
from controller.schema.live import DeviceHealthView, HealthView
from controller.state.state import State

OLDER = (
    "runs of the epochs {} may be unknown to this store. Their containers and checkpoints are kept:"
    " put a newer copy in place, or give them up with `lightloom store accept`"
)
PLAIN_OPENFLOW = "OpenFlow without TLS: it does not prove who it is"


class HealthViews:
    """Makes the view of the controller's own state and of its devices."""

    def __init__(
        self,
        state: State,
        switches: Switches,
        settled: Callable[[Iterable[str]], bool],
        misplaced: Callable[[], Mapping[str, str]],
    ) -> None:
        """``misplaced`` names endpoints of jobs that cannot be moved to where they belong."""
        self._state = state
        self._switches = switches
        self._settled = settled
        self._misplaced = misplaced
        self._started_at = state.clock()

    def health(self) -> HealthView:
        """Return the present health."""
        state = self._state
        devices, misplaced = self._devices(), self._misplaced()
        whole = (
            self._settled(state.cables)
            and all(device.connected for device in devices)
            and not state.suspect
            and not state.store_error
            and not state.light.strangers
            and not misplaced
        )
        return HealthView(
            status=("ok" if whole else "degraded") if state.ready else "starting",
            version=_version(),
            site=state.site.name,
            epoch=state.epoch,
            started_at=self._started_at,
            devices=devices,
            emulated=self._emulated(),
            suspect=state.suspect,
            strangers=describe_strangers(state.light.strangers),
            older=OLDER.format(state.unknown) if state.unknown else "",
            misplaced=", ".join(f"{e} belongs to {where}" for e, where in misplaced.items()),
            store_error=state.store_error,
        )

    def _devices(self) -> list[DeviceHealthView]:
        site, connections = self._state.site, self._state.connections
        aggregators, switches = connections.aggregators(), connections.switches()
        servers = connections.servers()
        devices = [
            DeviceHealthView(
                name=a.name,
                kind="aggregator",
                connected=a.name in aggregators,
                message="" if a.tls else PLAIN_OPENFLOW,
            )
            for a in site.aggregators
        ]
        devices += [
            DeviceHealthView(
                name=s.name,
                kind="switch",
                connected=s.name in switches,
                message=self._switches.error(s.name),
            )
            for s in site.switches
        ]
        devices += [
            DeviceHealthView(name=s.name, kind="agent", connected=servers.get(s.name, False))
            for s in site.servers
        ]
        return devices

    def _emulated(self) -> list[str]:
        site = self._state.site
        parts = [f"endpoint/{e.name}" for e in site.endpoints if e.emulated]
        if site.emulation is not None:
            parts += [f"switch/{s.name}" for s in site.switches]
            parts += [f"aggregator/{a.name}" for a in site.aggregators]
        return parts


@functools.cache
def _version() -> str:
    """Read once: the version is in files, and clients ask for the health often."""
    try:
        return version("lightloom")
    except PackageNotFoundError:
        return "0+source"
