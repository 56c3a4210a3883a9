"""Jobs with volumes, from submit to the specification of their ranks."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from agentlink.values import Scope, VolumeMount
from controller.base.errors import ServiceError
from controller.devices.engine import OfferedVolume
from tests.parts.controller.rack import Rack
from tests.parts.controller.volumes import ALL, IMAGENET, SCRATCH, offer, read, site_of, submit

SERVERS = ("srv0", "srv1", "srv2", "srv3")


@pytest_asyncio.fixture
async def rack(tmp_path: Path) -> AsyncIterator[Rack]:
    rack = Rack(tmp_path, site_of())
    await rack.up()
    yield rack
    await rack.down()


async def everywhere(rack: Rack, *volumes: OfferedVolume) -> None:
    await offer(rack, **dict.fromkeys(SERVERS, volumes or ALL))


async def reason(rack: Rack, job: str, code: str) -> str:
    """Return why a job waits, once its wait has this code."""

    async def told() -> bool:
        wait = rack.desks.jobs.job(job).wait
        return wait is not None and wait.code == code

    await rack.until(told)
    return rack.desks.jobs.job(job).reason


async def test_a_read_only_volume_reaches_the_rank(rack: Rack) -> None:
    await everywhere(rack)
    view = await submit(rack, "red", "imagenet:/data")
    assert [v.model_dump() for v in view.volumes] == [
        {"volume": "imagenet", "path": "/data", "read_only": True}
    ]
    await rack.state("red", "running")
    (spec,) = rack.engine.specs["red"]
    assert spec.volumes == (VolumeMount("imagenet", "/data", read_only=True, read_bps=10**9),)
    assert (spec.uid, spec.gid) == (2001, 2000)


async def test_a_directory_belongs_to_the_job_and_its_project(rack: Rack) -> None:
    await everywhere(rack)
    await submit(rack, "red", "scratch:/scratch", "team:/team", "scratch:/old:ro")
    await rack.state("red", "running")
    scratch, team, old = rack.engine.specs["red"][0].volumes
    assert (scratch.scope, scratch.owner, scratch.quota_bytes) == (Scope.JOB, "vision.red", 2**30)
    assert (team.scope, team.owner, team.read_only) == (Scope.PROJECT, "vision", False)
    assert (old.owner, old.read_only) == ("vision.red", True)
    await submit(rack, "blue", "scratch:/scratch", project="speech")
    await rack.state("blue", "running")
    (blue,) = rack.engine.specs["blue"]
    assert (blue.volumes[0].owner, blue.uid) == ("speech.blue", 3000)


@pytest.mark.parametrize(
    ("volumes", "project", "message", "hint"),
    [
        (["imagnet:/data"], "vision", "no volume imagnet", "may use imagenet, scratch"),
        (["imagenet:/data"], "speech", "speech may not use volume imagenet", "imagenet.projects"),
        (["imagenet:/etc"], "vision", "/etc is reserved", "/data"),
        (["imagenet:data"], "vision", "'data' cannot be a volume's path", "absolute"),
        (["imagenet:/a", "scratch:/a/b"], "vision", "/a/b is inside /a", "separate"),
        (["../imagenet:/data"], "vision", "", ""),
        ([f"scratch:/d{i}" for i in range(17)], "vision", "more than 16 volumes", "fewer"),
    ],
)
async def test_refused_before_anything_is_queued(
    rack: Rack, volumes: list[str], project: str, message: str, hint: str
) -> None:
    await everywhere(rack)
    with pytest.raises((ServiceError, ValueError)) as refused:
        await submit(rack, "red", *volumes, project=project)
    if isinstance(refused.value, ServiceError):
        assert (refused.value.code, refused.value.object) == ("invalid", "job/red")
        assert message in refused.value.message
        assert hint in refused.value.hint
    assert await rack.desks.jobs.jobs() == []


async def test_writing_to_a_read_only_volume_is_refused(rack: Rack) -> None:
    await everywhere(rack)
    asked = [{"volume": "imagenet", "path": "/data", "read_only": False}]
    with pytest.raises(ServiceError, match="imagenet is read-only") as refused:
        await submit(rack, "red", volumes=asked)
    assert refused.value.hint == "ask for imagenet:/data:ro"


async def test_only_endpoints_of_servers_with_the_volume_are_taken(rack: Rack) -> None:
    await offer(rack, srv1=(IMAGENET,), srv2=(replace(IMAGENET, problem="it is not mounted"),))
    there = [e.name for e in rack.site.endpoints if e.server == "srv1"]
    await submit(rack, "red", "imagenet:/data", count=len(there))
    await rack.state("red", "running")
    assert sorted(rack.desks.jobs.job("red").endpoints) == sorted(there)
    # Another server could take it, had it the volume.
    await submit(rack, "late", "imagenet:/data")
    assert "idle" in await reason(rack, "late", "busy")


async def test_a_job_is_refused_when_no_server_has_its_volume(rack: Rack) -> None:
    await everywhere(rack, SCRATCH)
    with pytest.raises(ServiceError) as refused:
        await submit(rack, "red", "imagenet:/data")
    assert "0 are on servers with volume imagenet" in refused.value.message
    assert "srv3: imagenet: its agent does not offer it" in refused.value.message
    assert "--volume imagenet=DIRECTORY" in refused.value.hint
    await everywhere(rack, replace(SCRATCH, read_only=True))
    with pytest.raises(ServiceError, match="its agent offers it read-only"):
        await submit(rack, "red", "scratch:/scratch")


async def test_a_job_waits_for_a_server_that_is_away(rack: Rack) -> None:
    rack.engine.lost = {"srv0"}
    await offer(rack, srv1=(), srv2=(), srv3=())
    await submit(rack, "red", "imagenet:/data")
    told = await reason(rack, "red", "volumes")
    assert "srv0: its agent does not answer" in told
    assert "srv1: imagenet: its agent does not offer it" in told
    rack.engine.lost = set()
    await offer(rack, srv0=(IMAGENET,))
    await rack.state("red", "running")


async def test_a_job_waits_until_the_problem_of_its_volume_is_over(rack: Rack) -> None:
    await everywhere(rack, replace(IMAGENET, problem="/srv/imagenet is not a mount point"))
    await submit(rack, "red", "imagenet:/data")
    assert "not a mount point" in await reason(rack, "red", "volumes")
    await submit(rack, "other")  # it does not hold up jobs without volumes
    await rack.state("other", "running")
    await everywhere(rack)
    await rack.state("red", "running")


async def test_a_job_keeps_its_volumes_over_a_restart_and_its_end(rack: Rack) -> None:
    await everywhere(rack, replace(SCRATCH, problem="not mounted"))
    await submit(rack, "red", "scratch:/scratch:ro")
    await rack.down()
    await rack.up()
    assert rack.desks.jobs.job("red").state == "pending"
    await everywhere(rack)
    await rack.state("red", "running")
    assert rack.engine.specs["red"][0].volumes[0].read_only
    rack.engine.exit("red", 0, 0)
    await rack.state("red", "completed")
    (shown,) = rack.desks.jobs.job("red").volumes
    assert (shown.volume, shown.path, shown.read_only) == ("scratch", "/scratch", True)


async def test_a_volume_that_left_the_site_file_does_not_start(rack: Rack) -> None:
    await everywhere(rack, replace(IMAGENET, problem="not mounted"))
    await submit(rack, "red", "imagenet:/data")
    await rack.down()
    rack.site = site_of({})
    await rack.up()
    await everywhere(rack)
    assert "needs volume imagenet" in await reason(rack, "red", "volumes")


async def test_a_right_that_was_withdrawn_ends_the_job_at_its_start(rack: Rack) -> None:
    await everywhere(rack, replace(IMAGENET, problem="not mounted"))
    await submit(rack, "red", "imagenet:/data")
    await rack.down()
    volume = replace(rack.site.volumes["imagenet"], projects=frozenset({"speech"}))
    rack.site = site_of({"imagenet": volume})
    await rack.up()
    await everywhere(rack)
    await rack.state("red", "failed")
    assert "vision may not use volume imagenet" in rack.desks.jobs.job("red").reason


async def test_volumes_are_known_soon_after_a_start(tmp_path: Path) -> None:
    rack = Rack(tmp_path, site_of())
    rack.engine.offered = dict.fromkeys(SERVERS, ALL)
    await rack.up()
    try:
        await submit(rack, "red", "imagenet:/data")
        await rack.state("red", "running")
        rack.engine.lost = set(SERVERS)
        await read(rack)  # a server that is away keeps what it offered last
        assert all(v.problem == "" for v in await rack.desks.volumes.volumes())
    finally:
        await rack.down()
