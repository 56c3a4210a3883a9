"""A site with volumes, and what its servers offer."""

from __future__ import annotations

from dataclasses import replace

from agentlink.values import Scope
from controller.devices.engine import OfferedVolume, VolumeData
from controller.schema.jobs import JobView, read_job
from controller.state.offers import offer_of
from scheduler.queue.model import ProjectShare
from sitefile import CabledSite, Scheduling, load_site
from sitefile.volumes import User, Users, Volume
from tests.parts.controller.rack import Rack
from tests.parts.sites import PAPER

DAY_S = 86400.0
VOLUMES = {
    "imagenet": Volume("imagenet", projects=frozenset({"vision"}), read_bps=10**9),
    "scratch": Volume("scratch", read_only=False, per="job", quota_bytes=2**30, keep_s=7 * DAY_S),
    "team": Volume("team", read_only=False, per="project", keep_s=DAY_S),
    "models": Volume("models", read_only=False),
}
IMAGENET = OfferedVolume("imagenet", read_only=True, filesystem="nfs4")
SCRATCH = OfferedVolume("scratch", read_only=False, filesystem="xfs", quota="kernel")
TEAM = OfferedVolume("team", read_only=False, filesystem="ext4", quota="watched")
ALL = (IMAGENET, SCRATCH, TEAM, OfferedVolume("models", read_only=False))


def site_of(volumes: dict[str, Volume] | None = None) -> CabledSite:
    """Return the paper's rack with projects vision and speech, users and volumes."""
    projects = tuple(map(ProjectShare, ("default", "vision", "speech")))
    return replace(
        load_site(PAPER),
        scheduling=Scheduling(projects=projects, named=True),
        users=Users(User(3000, 3000), {"vision": User(2001, 2000)}),
        volumes=VOLUMES if volumes is None else volumes,
    )


async def offer(rack: Rack, **servers: tuple[OfferedVolume, ...]) -> None:
    """Make servers offer volumes, and let the controller read that."""
    rack.engine.offered |= servers
    await read(rack)


async def read(rack: Rack) -> None:
    """Let the controller read what servers offer."""
    await rack.parts.volumes.read()


async def submit(rack: Rack, name: str, *volumes: str, **fields: object) -> JobView:
    """Submit a job of project vision with volumes, ``NAME:PATH`` each."""
    mounts = []
    for text in volumes:
        volume, path, *mode = text.split(":")
        mounts.append({"volume": volume, "path": path, "read_only": "ro" in mode or None})
    body = {"name": name, "count": 1, "project": "vision", "command": ["true"], "volumes": mounts}
    return await rack.desks.jobs.submit(read_job(body | fields))


def data(owner: str, *, used_at: float, jobs: tuple[str, ...] = ()) -> VolumeData:
    """Return a directory of 1 GiB that a server holds."""
    scope = Scope.JOB if "." in owner else Scope.PROJECT
    return VolumeData(scope, owner, 2001, 2**30, 12, created_at=1.0, used_at=used_at, jobs=jobs)


def offers(**servers: tuple[OfferedVolume, ...]) -> dict[str, object]:
    """Return the offers of servers as the state holds them."""
    return {server: offer_of(volumes, 0.0) for server, volumes in servers.items()}
