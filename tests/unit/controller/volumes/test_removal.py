"""Removal of what jobs left: on request and by policy, over fakes of the devices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from agentlink.values import Scope
from controller.base.errors import ServiceError
from controller.devices.engine import EngineError, EngineFault, VolumeData
from controller.schema.volumes import DataRemovalView
from controller.volumes.removal import MAX_PER_ROUND
from tests.parts.controller.rack import Rack
from tests.parts.controller.volumes import (
    ALL,
    DAY_S,
    IMAGENET,
    SCRATCH,
    TEAM,
    data,
    offer,
    read,
    site_of,
    submit,
)


@pytest_asyncio.fixture
async def rack(tmp_path: Path) -> AsyncIterator[Rack]:
    rack = Rack(tmp_path, site_of())
    await rack.up()
    yield rack
    await rack.down()


def clock(rack: Rack) -> float:
    return rack.see.now()


def holding(*found: VolumeData) -> tuple[Any, ...]:
    """Return volumes of which scratch or team holds these directories."""
    jobs = tuple(d for d in found if "." in d.owner)
    projects = tuple(d for d in found if "." not in d.owner)
    return (IMAGENET, replace(SCRATCH, data=jobs), replace(TEAM, data=projects))


async def remove(
    rack: Rack, volume: str, owner: str, *, server: str | None = None, dry_run: bool = False
) -> DataRemovalView:
    desks = rack.desks
    return await desks.data.remove(volume, owner, server=server, dry_run=dry_run)


async def told(rack: Rack, reason: str) -> list[tuple[str, str]]:
    events = rack.desks.fabric.events(0, 1000)
    return [(e.object, e.message) for e in events if e.reason == reason]


async def owners(rack: Rack, volume: str) -> list[tuple[str, str, str | None]]:
    return [
        (view.server, entry.project, entry.job)
        for view in await rack.desks.volumes.volumes()
        if view.name == volume
        for entry in view.data
    ]


async def test_the_data_of_an_ended_job_is_listed_and_removed(rack: Rack) -> None:
    await offer(rack, **dict.fromkeys(("srv0", "srv1"), ALL))
    await submit(rack, "red", "scratch:/scratch", count=4)
    await rack.state("red", "running")
    kept = holding(data("vision.red", used_at=clock(rack), jobs=("red",)))
    await offer(rack, srv0=kept, srv1=kept)
    with pytest.raises(ServiceError, match=r"job red uses the data of vision\.red") as refused:
        await remove(rack, "scratch", "vision.red")
    assert refused.value.code == "conflict"
    assert "cancel red" in refused.value.hint
    await rack.desks.jobs.cancel("red")
    left = holding(data("vision.red", used_at=clock(rack)))
    await offer(rack, srv0=left, srv1=left)
    assert await owners(rack, "scratch") == [
        ("srv0", "vision", "red"),
        ("srv1", "vision", "red"),
    ]
    dry = await remove(rack, "scratch", "vision.red", dry_run=True)
    assert [(d.server, d.bytes, d.files) for d in dry.directories] == [
        ("srv0", 2**30, 12),
        ("srv1", 2**30, 12),
    ]
    assert not [call for call in rack.engine.calls if call[0] == "remove_data"]
    done = await remove(rack, "scratch", "vision.red")
    assert [d.problem for d in done.directories] == ["", ""]
    assert (done.owner, done.dry_run) == ("vision.red", False)
    assert await owners(rack, "scratch") == []
    assert ("job/red", "the data of vision.red in volume scratch on srv0: removed on request") in (
        await told(rack, "DataRemoved")
    )
    with pytest.raises(ServiceError, match=r"vision\.red left nothing in volume scratch"):
        await remove(rack, "scratch", "vision.red")


async def test_one_server_only(rack: Rack) -> None:
    left = holding(data("vision", used_at=clock(rack)))
    await offer(rack, srv0=left, srv1=left)
    await remove(rack, "team", "vision", server="srv1")
    assert await owners(rack, "team") == [("srv0", "vision", None)]


async def test_a_waiting_job_keeps_its_projects_data(rack: Rack) -> None:
    team = replace(TEAM, data=(data("vision", used_at=1.0),), problem="not mounted")
    await offer(rack, srv0=(team,))
    await submit(rack, "late", "team:/team")
    with pytest.raises(ServiceError, match="job late uses"):
        await remove(rack, "team", "vision")
    await rack.parts.remover.remove_due()
    assert await owners(rack, "team") == [("srv0", "vision", None)]


async def test_jobs_of_two_projects_have_directories_of_their_own(rack: Rack) -> None:
    left = holding(data("vision.red", used_at=1.0), data("speech.red", used_at=1.0))
    await offer(rack, srv0=left)
    await remove(rack, "scratch", "speech.red")
    assert await owners(rack, "scratch") == [("srv0", "vision", "red")]


async def test_the_policy_removes_what_was_not_used_for_long(rack: Rack) -> None:
    old, fresh = clock(rack) - 8 * DAY_S, clock(rack) - 6 * DAY_S
    await offer(
        rack, srv0=holding(data("vision.red", used_at=old), data("vision.blue", used_at=fresh))
    )
    (shown,) = [v for v in await rack.desks.volumes.volumes() if v.data]
    assert {entry.job: entry.kept_until for entry in shown.data} == {
        "red": old + 7 * DAY_S,
        "blue": fresh + 7 * DAY_S,
    }
    await rack.parts.remover.remove_due()
    assert await owners(rack, "scratch") == [("srv0", "vision", "blue")]
    (event,) = await told(rack, "DataRemoved")
    assert "not used for as long as the site keeps it" in event[1]


async def test_a_restarted_controller_removes_what_is_due(rack: Rack) -> None:
    await offer(rack, srv0=holding(data("vision.red", used_at=clock(rack) - 8 * DAY_S)))
    await rack.down()
    await rack.up()
    await read(rack)
    await rack.parts.remover.remove_due()
    assert await owners(rack, "scratch") == []


async def test_a_job_that_ended_lately_keeps_its_data_after_a_restart(rack: Rack) -> None:
    """Also when the server's clock says that it was used long ago."""
    await offer(rack, **{f"srv{i}": ALL for i in range(4)})
    await submit(rack, "red", "scratch:/scratch")
    await rack.state("red", "running")
    rack.engine.exit("red", 0, 0)
    await rack.state("red", "completed")
    await rack.down()
    await rack.up()
    await offer(rack, srv0=holding(data("vision.red", used_at=5.0)))
    await rack.parts.remover.remove_due()
    assert await owners(rack, "scratch") == [("srv0", "vision", "red")]


async def test_a_server_that_is_away_keeps_its_data(rack: Rack) -> None:
    old = holding(data("vision.red", used_at=clock(rack) - 8 * DAY_S))
    await offer(rack, srv0=old, srv1=old)
    rack.engine.lost = {"srv0"}
    await rack.parts.remover.remove_due()
    assert await owners(rack, "scratch") == [("srv0", "vision", "red")]
    rack.engine.lost = set()
    await rack.parts.remover.remove_due()
    assert await owners(rack, "scratch") == []


async def test_a_failed_removal_is_told_once_and_tried_again(rack: Rack) -> None:
    await offer(rack, srv0=holding(data("vision.red", used_at=1.0)))
    rack.engine.broken.add("remove_data")
    for _ in range(3):
        await rack.parts.remover.remove_due()
    (event,) = await told(rack, "DataNotRemoved")
    assert "srv0: remove_data broke (failed)" in event[1]
    done = await remove(rack, "scratch", "vision.red")
    assert done.directories[0].problem == "remove_data broke (failed)"
    rack.engine.broken.clear()
    await rack.parts.remover.remove_due()
    assert await owners(rack, "scratch") == []


async def test_a_round_is_bounded(rack: Rack) -> None:
    many = [data(f"vision.job-{i}", used_at=1.0) for i in range(MAX_PER_ROUND + 2)]
    await offer(rack, srv0=holding(*many))
    await rack.parts.remover.remove_due()
    assert len(await owners(rack, "scratch")) == 2
    await rack.parts.remover.remove_due()
    assert await owners(rack, "scratch") == []


async def test_what_was_used_during_a_slow_round_stays(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_data = rack.engine.remove_data

    async def slow(server: str, volume: str, scope: Scope, owner: str) -> bool:
        if owner == "vision.first":  # while it is removed, the other one is used
            await submit(rack, "second", "scratch:/scratch")
            await rack.state("second", "running")
            rack.engine.exit("second", 0, 0)
            await rack.state("second", "completed")
        return await remove_data(server, volume, scope, owner)

    monkeypatch.setattr(rack.engine, "remove_data", slow)
    await offer(
        rack, srv0=holding(data("vision.first", used_at=1.0), data("vision.second", used_at=2.0))
    )
    await rack.parts.remover.remove_due()
    assert await owners(rack, "scratch") == [("srv0", "vision", "second")]


async def test_failing_removals_do_not_keep_others_from_their_turn(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_data = rack.engine.remove_data

    async def broken(server: str, volume: str, scope: Scope, owner: str) -> bool:
        if owner != "vision.good":
            raise EngineError([EngineFault("failed", f"server/{server}", "it cannot")])
        return await remove_data(server, volume, scope, owner)

    monkeypatch.setattr(rack.engine, "remove_data", broken)
    bad = [data(f"vision.bad-{i}", used_at=1.0) for i in range(MAX_PER_ROUND)]
    await offer(rack, srv0=holding(*bad, data("vision.good", used_at=2.0)))
    for _ in range(2):
        await rack.parts.remover.remove_due()
    assert ("srv0", "vision", "good") not in await owners(rack, "scratch")
    assert len(await owners(rack, "scratch")) == MAX_PER_ROUND


async def test_no_job_begins_to_use_what_is_being_removed(
    rack: Rack, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun, go = asyncio.Event(), asyncio.Event()
    remove_data = rack.engine.remove_data

    async def slow(*args: Any) -> bool:
        begun.set()
        await go.wait()
        return await remove_data(*args)

    monkeypatch.setattr(rack.engine, "remove_data", slow)
    await offer(rack, srv0=holding(data("vision.red", used_at=1.0)))
    removal = asyncio.create_task(remove(rack, "scratch", "vision.red"))
    await begun.wait()
    for busy in (submit(rack, "red", "scratch:/scratch"), remove(rack, "scratch", "vision.red")):
        with pytest.raises(ServiceError, match=r"vision\.red in volume scratch is being removed"):
            await busy
    go.set()
    await removal
    await submit(rack, "red", "scratch:/scratch")
    await rack.state("red", "running")


async def test_a_controller_that_lost_command_removes_nothing(rack: Rack) -> None:
    await offer(rack, srv0=holding(data("vision.red", used_at=1.0)))
    rack.parts.state.lose_command("term 7")
    await rack.parts.remover.remove_due()
    with pytest.raises(ServiceError, match="a newer controller"):
        await remove(rack, "scratch", "vision.red")
    assert not [call for call in rack.engine.calls if call[0] == "remove_data"]


async def test_data_in_a_volume_that_left_the_site_file_can_be_removed(rack: Rack) -> None:
    await rack.down()
    rack.site = site_of({})
    await rack.up()
    await offer(rack, srv0=holding(data("vision.red", used_at=1.0)))
    (view,) = [v for v in await rack.desks.volumes.volumes() if v.data]
    assert view.problem == "the site file does not have it"
    await rack.parts.remover.remove_due()
    assert await owners(rack, "scratch") == [("srv0", "vision", "red")]
    await remove(rack, "scratch", "vision.red")
    assert await owners(rack, "scratch") == []
