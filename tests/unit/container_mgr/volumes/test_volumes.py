"""Volumes on a real file system, without an engine."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from agentlink.values import DataKey, Scope, VolumeMount
from container_mgr.users import RankUser
from container_mgr.values import AgentError, Container
from container_mgr.volumes import records
from container_mgr.volumes.offers import Offer
from container_mgr.volumes.records import DirectoryRecord
from container_mgr.volumes.volumes import Volumes, in_use
from tests.parts.agent.ranks import until
from tests.unit.container_mgr.specs import GOOD
from tests.unit.container_mgr.volume_parts import (
    JOB,
    KEY,
    ME,
    PROJECT,
    Place,
    bound,
    container,
    records_of,
    spec,
)


async def test_a_name_becomes_the_directory_of_the_agents_configuration(
    volumes: Volumes, place: Place
) -> None:
    (one,) = await bound(volumes, VolumeMount("data", "/data", read_only=True))
    assert one.source == str(place.directory / "data")
    first, second = await bound(volumes, JOB, replace(PROJECT, path="/shared"))
    assert first.source == str(place.scratch / "jobs" / "vision.red")
    assert second.source == str(place.scratch / "projects" / "vision")
    assert ((place.scratch / "jobs" / "vision.red").stat().st_mode & 0o7777) == 0o700


@pytest.mark.parametrize(
    ("mount", "code"),
    [
        (VolumeMount("none", "/data", read_only=True), "not_found"),
        (VolumeMount("../data", "/data", read_only=True), "invalid"),
        (VolumeMount("data", "/data"), "forbidden"),
        (VolumeMount("data", "/d", read_only=True, scope=Scope.JOB, owner="a.b"), "forbidden"),
        (VolumeMount("scratch", "/s", owner="vision"), "invalid"),
        (VolumeMount("scratch", "/s", quota_bytes=1), "invalid"),
        (replace(JOB, owner="../x"), "invalid"),
        (replace(JOB, owner=""), "invalid"),
        (replace(JOB, path="/etc"), "invalid"),
        (replace(JOB, write_bps=1), "invalid"),
        (replace(JOB, quota_bytes=0), "invalid"),
    ],
)
async def test_a_mount_that_is_refused_makes_nothing(
    volumes: Volumes, place: Place, mount: VolumeMount, code: str
) -> None:
    with pytest.raises(AgentError) as refused:
        await bound(volumes, mount)
    assert (refused.value.code, refused.value.obj) == (code, GOOD.key.container)
    assert list(place.scratch.iterdir()) == []


async def test_a_volume_whose_directory_others_can_write_to_has_no_owners(
    volumes: Volumes, place: Place
) -> None:
    place.scratch.chmod(0o777)
    with pytest.raises(AgentError, match="with mode 0777"):
        await bound(volumes, JOB)
    assert (await bound(volumes, VolumeMount("scratch", "/s")))[0].source == str(place.scratch)


async def test_a_volume_that_is_gone_is_a_problem_and_no_error(
    volumes: Volumes, place: Place
) -> None:
    place.scratch.rmdir()
    scratch = next(f for f in await volumes.facts(()) if f.name == "scratch")
    assert scratch.status.problem == "the directory of volume scratch does not exist"
    assert scratch.status.total_bytes is None
    data = next(f for f in await volumes.facts(()) if f.name == "data")
    assert data.status.problem == ""
    assert data.status.total_bytes


async def test_what_is_known_of_data_survives_a_restart(place: Place) -> None:
    async with place.agent() as volumes:
        await bound(volumes, JOB)
        (place.scratch / "jobs" / "vision.red" / "file").write_bytes(b"x" * 50_000)
        place.now = 2000.0
        measured = await volumes.measure(KEY, used=True)
        assert measured is not None
        assert measured.bytes is not None
        assert 50_000 <= measured.bytes < 100_000
        before = await records_of(volumes)
    place.now = 9000.0
    async with place.agent() as volumes:
        assert await records_of(volumes) == before
        used = await records_of(volumes, [container(JOB)])
        assert used["vision.red"].used_at == 9000.0
    record = before["vision.red"]
    assert (record.used_at, record.measured_at, record.files) == (2000.0, 2000.0, 1)
    assert (record.quota_bytes, record.uid) == (10_000, ME.uid)


async def test_data_whose_record_is_lost_or_torn_is_still_listed(place: Place) -> None:
    async with place.agent() as volumes:
        await bound(volumes, JOB, replace(PROJECT, path="/shared"))
    kept = place.scratch / ".lightloom" / "records"
    (kept / "job.vision.red").write_text("{", encoding="ascii")
    (kept / "project.vision").unlink()
    (kept / "job.gone").write_text((kept / "job.vision.red").read_text(), encoding="ascii")
    async with place.agent() as volumes:
        assert set(await records_of(volumes)) == {"vision.red", "vision"}


async def test_a_volume_that_comes_back_has_kept_what_is_known(place: Place) -> None:
    """It was away when the agent started."""
    async with place.agent() as volumes:
        await bound(volumes, JOB)
        before = await records_of(volumes)
    away = place.scratch.rename(place.directory / "away")
    place.now = 5000.0
    async with place.agent() as volumes:
        assert await records_of(volumes) == {}
        away.rename(place.scratch)
        assert await records_of(volumes) == before
    away = place.scratch.rename(place.directory / "away")
    async with place.agent() as volumes:
        away.rename(place.scratch)
        await bound(volumes, JOB)
        made = (await records_of(volumes))["vision.red"]
        assert (made.created_at, made.used_at) == (before["vision.red"].created_at, 5000.0)


async def test_a_record_is_no_way_out(place: Place) -> None:
    """A link in place of a record is not read, and not written through."""
    async with place.agent() as volumes:
        await bound(volumes, JOB)
        victim = place.directory / "victim"
        victim.write_text("untouched", encoding="ascii")
        record = place.scratch / ".lightloom" / "records" / "job.vision.red"
        record.unlink()
        record.symlink_to(victim)
        await bound(volumes, JOB)
    assert victim.read_text(encoding="ascii") == "untouched"
    assert not record.is_symlink()


@pytest.mark.parametrize("state", ["created", "running", "paused"])
async def test_data_in_use_is_not_removed(volumes: Volumes, place: Place, state: str) -> None:
    await bound(volumes, JOB)
    place.containers = [container(JOB, state=state)]
    with pytest.raises(AgentError, match="job red uses") as refused:
        await volumes.remove(KEY, place.listed)
    assert refused.value.code == "conflict"
    assert (place.scratch / "jobs" / "vision.red").is_dir()


async def test_data_that_a_rank_is_about_to_use_is_not_removed(
    volumes: Volumes, place: Place
) -> None:
    with volumes.reserved(spec(JOB)):
        await bound(volumes, JOB)
        with pytest.raises(AgentError, match="a rank of its starts"):
            await volumes.remove(KEY, place.listed)
    assert await volumes.remove(KEY, place.listed)


async def test_a_rank_does_not_start_while_its_data_is_removed(
    volumes: Volumes, place: Place
) -> None:
    await bound(volumes, JOB)
    refused: list[str] = []

    async def listed() -> Sequence[Container]:
        with pytest.raises(AgentError) as error, volumes.reserved(spec(JOB)):
            pass
        refused.append(error.value.code)
        with volumes.reserved(spec(PROJECT)):
            pass
        return ()

    assert await volumes.remove(KEY, listed)
    assert refused == ["conflict"]
    with volumes.reserved(spec(JOB)):
        pass


async def test_removed_data_is_of_one_owner_and_is_removed_once(
    volumes: Volumes, place: Place
) -> None:
    other = replace(JOB, owner="text.red", path="/other")
    await bound(volumes, JOB, other)
    for owner in ("vision.red", "text.red"):
        (place.scratch / "jobs" / owner / "file").touch()
    place.containers = [container(other), container(JOB, state="exited", job="blue")]
    assert await volumes.remove(KEY, place.listed)
    assert not await volumes.remove(KEY, place.listed)
    assert set(await records_of(volumes)) == {"text.red"}
    assert [p.name for p in (place.scratch / "jobs").iterdir()] == ["text.red"]
    assert (place.scratch / "jobs" / "text.red" / "file").exists()
    await emptied(place)


async def emptied(place: Place) -> None:
    async def left() -> list[Path]:
        return list((place.scratch / ".lightloom" / "removed").iterdir())

    await until(left, lambda found: not found)


async def test_a_removal_goes_on_after_a_restart(place: Place) -> None:
    left = place.scratch / ".lightloom" / "removed" / "3" / "a" / "b"
    left.mkdir(parents=True)
    for path in left.parents[1].parents[:2]:
        path.chmod(0o700)
    async with place.agent():
        await emptied(place)


@pytest.mark.parametrize(
    ("key", "code"),
    [
        (DataKey("data", Scope.JOB, "vision.red"), "not_found"),
        (DataKey("none", Scope.JOB, "vision.red"), "not_found"),
        (DataKey("scratch", Scope.SITE, ""), "invalid"),
        (DataKey("scratch", Scope.JOB, ".."), "invalid"),
        (DataKey("../scratch", Scope.JOB, "vision"), "invalid"),
    ],
)
async def test_what_cannot_be_removed(
    volumes: Volumes, place: Place, key: DataKey, code: str
) -> None:
    with pytest.raises(AgentError) as refused:
        await volumes.remove(key, place.listed)
    assert refused.value.code == code
    assert place.scratch.is_dir()


async def test_users_are_remapped_as_the_engine_does(place: Place) -> None:
    if os.geteuid() != 0:
        pytest.skip("needs root")
    offers = {"scratch": Offer("scratch", place.scratch, writable=True)}
    volumes = Volumes(offers, remapped=RankUser(100_000, 200_000))
    try:
        await volumes.bind(spec(JOB), RankUser(5000, 6000))
        found = (place.scratch / "jobs" / "vision.red").stat()
        assert (found.st_uid, found.st_gid) == (105_000, 206_000)
        with pytest.raises(AgentError, match="belongs to uid 105000"):
            await volumes.bind(spec(JOB), RankUser(5000, 6000), remapped=False)
    finally:
        volumes.close()


async def test_data_that_vanished_is_not_measured(volumes: Volumes, place: Place) -> None:
    await bound(volumes, JOB)
    shutil.rmtree(place.scratch / "jobs")
    assert await volumes.measure(KEY, used=False) is None
    assert await volumes.measure(DataKey("scratch", Scope.JOB, "none.none"), used=False) is None


def test_the_jobs_that_use_a_directory() -> None:
    assert in_use(
        [
            container(JOB, job="red"),
            container(JOB, job="blue", state="created"),
            container(JOB, job="old", state="exited"),
            container(VolumeMount("scratch", "/s"), job="site"),
        ]
    ) == {KEY: ("blue", "red")}


def test_a_record_of_another_owner_is_not_read(tmp_path: Path) -> None:
    record = DirectoryRecord(Scope.JOB, "vision.red", 1, 1.0, 1.0)
    at = os.open(tmp_path, os.O_RDONLY)
    try:
        records.write(at, record)
        assert list(records.read_all(at)) == [record]
        (tmp_path / "job.vision.red").rename(tmp_path / "job.text.red")
        assert list(records.read_all(at)) == []
    finally:
        os.close(at)
