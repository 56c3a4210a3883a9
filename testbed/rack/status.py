"""Reports the running and the emulated parts of a rack as JSON-compatible values."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sitefile import CabledSite, SiteFileError, load_site
from testbed.rack import record, remains
from testbed.rack.process import Process
from testbed.rack.record import RackRecord


@dataclass(slots=True, frozen=True)
class PartStatus:
    """One process of the rack."""

    name: str
    pid: int
    alive: bool
    started_at: float
    log: str


@dataclass(slots=True, frozen=True)
class EmulatedPart:
    """An emulated part of the site, and its substitute on this machine."""

    name: str
    stands_for: str
    played_by: str
    source: str = "emulated"


@dataclass(slots=True, frozen=True)
class RackStatus:
    """The current rack. ``remains`` lists objects that exist although no rack is up."""

    state: Literal["down", "starting", "up", "degraded", "remains"]
    run_dir: str
    site: str = ""
    site_file: str = ""
    url: str = ""
    image: str = ""
    docker_host: str = ""
    docker_private: bool = False
    access_bps: float = 0.0
    inter_aggregator_bps: float = 0.0
    started_at: float = 0.0
    parts: tuple[PartStatus, ...] = ()
    emulated: tuple[EmulatedPart, ...] = ()
    lost: tuple[str, ...] = ()
    """Objects of the site that ``lightloom testbed lose`` made to fail."""
    remains: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, dicts, strings and numbers."""
        return dataclasses.asdict(self)


def status(run_dir: Path) -> RackStatus:
    """Return the running and the emulated parts; changes nothing and does not need root."""
    written = record.load(run_dir)
    if written is None:
        left = remains.find(run_dir).summary()
        return RackStatus("remains" if left else "down", str(run_dir), remains=tuple(left))
    return of_record(run_dir, written)


def of_record(run_dir: Path, written: RackRecord) -> RackStatus:
    """Return the status of a rack whose record is ``written``."""
    processes = [*written.processes, *([written.dockerd] if written.dockerd else [])]
    parts = tuple(_part(process) for process in processes)
    state: Literal["starting", "up", "degraded"] = "starting"
    if written.phase == "up":
        whole = not written.lost and all(part.alive for part in parts)
        state = "up" if whole else "degraded"
    return RackStatus(
        state=state,
        run_dir=str(run_dir),
        site=written.site,
        site_file=written.site_file,
        url=written.url,
        image=written.image,
        docker_host=written.docker_host,
        docker_private=written.docker_private,
        access_bps=written.access_bps,
        inter_aggregator_bps=written.inter_aggregator_bps,
        started_at=written.started_at,
        parts=parts,
        lost=written.lost,
        emulated=_emulated(record.site_copy(run_dir)),
    )


def emulated_parts(site: CabledSite) -> tuple[EmulatedPart, ...]:
    """Return the parts of ``site`` that a rack on one machine emulates."""
    found = [
        EmulatedPart(
            switch.name,
            f"optical switch, {switch.url.partition('://')[0]}",
            "server with the same wire protocol; a circuit redirects frames between veth ends",
        )
        for switch in site.switches
    ]
    found += [
        EmulatedPart(
            aggregator.name, "aggregator switch", "Open vSwitch bridge, userspace datapath"
        )
        for aggregator in site.aggregators
    ]
    found += [
        EmulatedPart(server.name, "server", "network namespace and an agent on this machine")
        for server in site.servers
    ]
    found += [
        EmulatedPart(
            endpoint.name,
            endpoint.model or endpoint.kind,
            "one container's share of this machine's CPU",
        )
        for endpoint in site.endpoints
        if endpoint.emulated
    ]
    found.append(EmulatedPart("fibers and uplinks", "optical links", "veth pairs shaped by HTB"))
    return tuple(found)


def _emulated(site_file: Path) -> tuple[EmulatedPart, ...]:
    try:
        return emulated_parts(load_site(site_file))
    except (OSError, SiteFileError):  # lost with part of the run directory; show the running parts
        return ()


def _part(process: Process) -> PartStatus:
    return PartStatus(process.name, process.pid, process.alive(), process.started_at, process.log)
