"""Which directories of volumes are in use, and which ones the site file lets go. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from agentlink.values import Scope
from controller.devices.engine import VolumeData
from controller.state.offers import Directory, ServerOffer, directories
from controller.state.records import JobRecord
from sitefile import CabledSite


@dataclass(slots=True, frozen=True)
class HeldDirectory:
    """A directory as one server holds it."""

    server: str
    directory: Directory
    data: VolumeData


def left(offers: Mapping[str, ServerOffer]) -> Iterator[HeldDirectory]:
    """Yield every directory of every volume on every server."""
    for server, offer in offers.items():
        for held in offer.data.values():
            for directory, data in held.items():
                yield HeldDirectory(server, directory, data)


def users(
    site: CabledSite, jobs: Iterable[JobRecord], found: Iterable[HeldDirectory]
) -> dict[Directory, tuple[str, ...]]:
    """Return the jobs that use each directory: live and waiting ones, and what servers report."""
    using: dict[Directory, set[str]] = {}
    for job in jobs:
        if not job.ended:
            for directory in directories(site, job):
                using.setdefault(directory, set()).add(job.name)
    for one in found:
        if one.data.jobs:
            using.setdefault(one.directory, set()).update(one.data.jobs)
    return {directory: tuple(sorted(names)) for directory, names in using.items()}


def last_uses(
    site: CabledSite, jobs: Iterable[JobRecord], found: Iterable[HeldDirectory]
) -> dict[Directory, float]:
    """Return when each directory was last used anywhere, in seconds since 1970.

    Servers say it; the end of a job that used it counts as well, because their clocks may be
    wrong. A directory of which neither is known is missing.
    """
    last: dict[Directory, float] = {}

    def note(directory: Directory, time: float | None) -> None:
        if time is not None:
            last[directory] = max(time, last.get(directory, time))

    for one in found:
        note(one.directory, one.data.used_at)
        note(one.directory, one.data.created_at)
    for job in jobs:
        if job.ended:
            for directory in directories(site, job):
                if directory in last:
                    note(directory, job.finished_at)
    return last


def ends(
    site: CabledSite, jobs: Iterable[JobRecord], found: Iterable[HeldDirectory]
) -> dict[Directory, float]:
    """Return until when the site file keeps each unused directory, in seconds since 1970.

    Directories in use are missing, as are those that stay until an operator removes them.
    """
    records, places = list(jobs), list(found)
    using = users(site, records, places)
    kept: dict[Directory, float] = {}
    for directory, last in last_uses(site, records, places).items():
        volume = site.volumes.get(directory.volume)
        if (
            volume is not None
            and volume.keep_s is not None
            and Scope(volume.per) is directory.scope
            and directory not in using
        ):
            kept[directory] = last + volume.keep_s
    return kept


def due(
    site: CabledSite, jobs: Iterable[JobRecord], found: Iterable[HeldDirectory], now: float
) -> list[Directory]:
    """Return the directories that may be removed at ``now``, the longest unused first."""
    kept = ends(site, jobs, found)
    return sorted((d for d, end in kept.items() if end <= now), key=lambda d: kept[d])
