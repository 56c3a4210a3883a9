"""The volumes that servers offer and what jobs left there, as last read. Part of the state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import Enum

from agentlink.values import Scope
from controller.devices.engine import OfferedVolume, VolumeData
from controller.state.records import JobRecord, JobVolume
from sitefile import CabledSite
from sitefile.volumes import Volume


@dataclass(slots=True, frozen=True)
class Directory:
    """A project's or a job's directory of a volume, on any server."""

    volume: str
    scope: Scope
    owner: str


@dataclass(slots=True, frozen=True)
class ServerOffer:
    """What one server offered at ``read_at``, in seconds since 1970."""

    volumes: Mapping[str, OfferedVolume]
    data: Mapping[str, Mapping[Directory, VolumeData]]
    """What jobs left, by volume."""
    read_at: float


def offer_of(volumes: Iterable[OfferedVolume], now: float) -> ServerOffer:
    """Return the offer of a server that was read at ``now``."""
    by_name = {volume.name: volume for volume in volumes}
    data = {
        name: {Directory(name, entry.scope, entry.owner): entry for entry in volume.data}
        for name, volume in by_name.items()
    }
    return ServerOffer(by_name, data, now)


class Lack(Enum):
    """Why a server cannot give a job a volume."""

    UNKNOWN = "its agent has not said yet what it offers"
    ABSENT = "its agent does not offer it"
    READ_ONLY = "its agent offers it read-only"
    PROBLEM = "its agent cannot use it now"


class Offers:
    """What every server offers. A server that is away keeps what it offered last."""

    def __init__(self, site: CabledSite) -> None:
        self._site = site
        self.servers: dict[str, ServerOffer] = {}
        self.removing: set[Directory] = set()
        """Directories that are being removed: no job that uses them is taken on meanwhile."""

    def update(self, offered: Mapping[str, ServerOffer]) -> bool:
        """Record what servers offer; return whether jobs can use other volumes than before."""
        before = {server: self.usable(server) for server in offered}
        self.servers |= offered
        return any(self.usable(server) != names for server, names in before.items())

    def forget(self, server: str, directory: Directory) -> None:
        """Record that a server has removed a directory."""
        offer = self.servers.get(server)
        if offer is not None:
            data = dict(offer.data)
            data[directory.volume] = {
                at: entry for at, entry in data.get(directory.volume, {}).items() if at != directory
            }
            self.servers[server] = replace(offer, data=data)

    def usable(self, server: str) -> frozenset[str]:
        """Return the site's volumes that jobs can use on a server now."""
        return frozenset(name for name in self._site.volumes if self.lack(server, name) is None)

    def lack(self, server: str, name: str) -> Lack | None:
        """Return why no job can use a volume on a server; None when it can."""
        offer = self.servers.get(server)
        if offer is None:
            return Lack.UNKNOWN
        offered = offer.volumes.get(name)
        if offered is None:
            return Lack.ABSENT
        volume = self._site.volumes.get(name)
        if offered.read_only and volume is not None and not volume.read_only:
            return Lack.READ_ONLY
        return Lack.PROBLEM if offered.problem else None

    def never(self, server: str, name: str) -> bool:
        """Return whether a server has a volume for jobs only once its agent offers it."""
        return self.lack(server, name) in (Lack.ABSENT, Lack.READ_ONLY)

    def why(self, server: str, name: str) -> str:
        """Return why no job can use a volume on a server, in words; empty when it can."""
        lack = self.lack(server, name)
        if lack is Lack.PROBLEM:
            return self.servers[server].volumes[name].problem
        return "" if lack is None else lack.value


@dataclass(slots=True, frozen=True)
class Denial:
    """Why the site file does not give a job a volume, and what would help."""

    message: str
    hint: str


def denial(site: CabledSite, project: str, asked: JobVolume) -> Denial | None:
    """Return why a job of ``project`` may not have a volume; None when it may."""
    volume = site.volumes.get(asked.volume)
    if volume is None:
        allowed = [v.name for v in site.volumes.values() if v.admits(project)]
        return Denial(
            f"site {site.name} has no volume {asked.volume}",
            f"project {project} may use {', '.join(allowed)}"
            if allowed
            else "the site file's volumes section lists them",
        )
    if not volume.admits(project):
        return Denial(
            f"project {project} may not use volume {volume.name}",
            f"have it added to volumes.{volume.name}.projects in the site file",
        )
    if volume.read_only and not asked.read_only:
        return Denial(
            f"volume {volume.name} is read-only",
            f"ask for {volume.name}:{asked.path}:ro",
        )
    return None


def owner_of(volume: Volume, project: str, job: str) -> str:
    """Return the owner of the directory that a job has in a volume; empty for the volume itself.

    A job's directory carries its project: names of jobs are used again, also by other projects.
    """
    match volume.per:
        case "project":
            return project
        case "job":
            return f"{project}.{job}"
        case _:
            return ""


def directories(site: CabledSite, job: JobRecord) -> frozenset[Directory]:
    """Return the directories that a job writes to or reads, beside volumes that all share."""
    volumes = (site.volumes.get(asked.volume) for asked in job.request.volumes)
    return frozenset(
        Directory(v.name, Scope(v.per), owner_of(v, job.request.project, job.name))
        for v in volumes
        if v is not None and v.per != "site"
    )
