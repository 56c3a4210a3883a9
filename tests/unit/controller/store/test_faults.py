"""A torn tail, damage elsewhere, a full disk: no acknowledged write is lost silently."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from controller.base.errors import ServiceError
from controller.schema.plans import PlanRequest
from controller.state.writes import PutFacts
from controller.store.store import Store
from tests.parts.controller.jobs import scattered, submit
from tests.parts.controller.rack import Rack

COMMITS = 20


async def crashed(tmp_path: Path) -> Path:
    """Return a copy of a store as SIGKILL leaves it: everything in the write-ahead log."""
    store = Store(tmp_path / "live.sqlite")
    await store.load()
    for number in range(COMMITS):
        await store.commit(PutFacts({"number": str(number), f"n{number}": "x" * 50}))
    for name in ("live.sqlite", "live.sqlite-wal", "live.sqlite.ack"):
        shutil.copy(tmp_path / name, tmp_path / name.replace("live", "copy"))
    await store.close()
    assert (tmp_path / "copy.sqlite-wal").stat().st_size > 0
    return tmp_path / "copy.sqlite"


async def load(path: Path) -> str:
    store = Store(path)
    try:
        return (await store.load()).facts["number"]
    finally:
        await store.close()


async def test_a_crash_loses_nothing(tmp_path: Path) -> None:
    assert await load(await crashed(tmp_path)) == str(COMMITS - 1)


async def test_a_tail_torn_by_the_crash_is_dropped(tmp_path: Path) -> None:
    """These are frames of a commit that was being written and was never acknowledged."""
    path = await crashed(tmp_path)
    log = path.with_name("copy.sqlite-wal")
    whole = log.read_bytes()
    frame = 24 + 4096
    log.write_bytes(whole + whole[-frame : -frame // 2] + b"\0" * 100)
    assert await load(path) == str(COMMITS - 1)


async def test_damage_in_the_middle_of_the_log_stops_with_a_message(tmp_path: Path) -> None:
    path = await crashed(tmp_path)
    log = path.with_name("copy.sqlite-wal")
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 0xFF
    log.write_bytes(data)
    with pytest.raises(ServiceError) as caught:
        await load(path)
    assert caught.value.code == "failed"
    assert f"{COMMITS} were acknowledged" in caught.value.message
    assert "move it away" in caught.value.hint


async def test_a_log_that_was_cut_off_stops_with_a_message(tmp_path: Path) -> None:
    path = await crashed(tmp_path)
    log = path.with_name("copy.sqlite-wal")
    log.write_bytes(log.read_bytes()[:-5000])
    with pytest.raises(ServiceError, match="were acknowledged"):
        await load(path)


@pytest.mark.parametrize("where", ["file header", "schema", "facts"])
async def test_damaged_pages_stop_with_a_message(tmp_path: Path, where: str) -> None:
    path = tmp_path / "state.sqlite"
    store = Store(path)
    await store.load()
    await store.commit(PutFacts({"number": "1"}))
    await store.close()  # the log is merged into the pages
    with sqlite3.connect(path) as db:
        query = "SELECT rootpage FROM sqlite_master WHERE name = 'facts'"
        (page,) = db.execute(query).fetchone()
    at = {"file header": 0, "schema": 100, "facts": 4096 * (page - 1) + 8}[where]
    data = bytearray(path.read_bytes())
    data[at : at + 64] = b"\xa5" * 64
    path.write_bytes(data)
    with pytest.raises(ServiceError) as caught:
        await load(path)
    assert caught.value.code == "failed"


async def test_a_damaged_row_stops_with_a_message(tmp_path: Path) -> None:
    path = await crashed(tmp_path)
    with sqlite3.connect(path) as db:
        db.execute("INSERT INTO jobs VALUES ('red', 'running', 1.0, '{\"name\": \"red\"')")
    with pytest.raises(ServiceError, match="damaged"):
        await load(path)


async def test_a_store_that_was_moved_away_starts_empty(tmp_path: Path) -> None:
    path = await crashed(tmp_path)
    for name in ("copy.sqlite", "copy.sqlite-wal"):
        path.with_name(name).unlink()
    store = Store(path)
    assert not (await store.load()).jobs
    await store.commit(PutFacts({"number": "0"}))
    await store.close()
    assert await load(path) == "0"


async def test_a_lost_acknowledgement_file_is_not_damage(tmp_path: Path) -> None:
    path = await crashed(tmp_path)
    path.with_name("copy.sqlite.ack").write_bytes(b"torn")
    assert await load(path) == str(COMMITS - 1)


async def test_a_full_disk_refuses_new_work_and_loses_no_job(rack: Rack) -> None:
    await scattered(rack)
    plan = await rack.desks.plans.make_plan(PlanRequest())
    rack.disk.limit(1)
    asked = len(rack.switch.applied)
    with pytest.raises(ServiceError) as caught:
        for number in range(100):  # as long as free pages last
            await submit(rack, f"more-{number}", 6, env={"USER_X": "y" * 3000})
    assert caught.value.code == "failed"
    assert "full" in caught.value.message
    refused = f"more-{number}"
    assert refused not in {job.name for job in await rack.desks.jobs.jobs()}
    health = rack.desks.health.health()
    assert (health.status, "full" in health.store_error) == ("degraded", True)
    rack.disk.fault = "full"  # not even a free page is left
    done = await rack.desks.plans.apply(plan, wait_s=60)
    assert (done.state, len(rack.switch.applied)) == ("rolled_back", asked)
    rack.disk.release()
    rack.disk.limit(0)
    await submit(rack, "again", 6)
    known = {job.name for job in await rack.desks.jobs.jobs()}
    await rack.down()
    await rack.up()
    assert {job.name for job in await rack.desks.jobs.jobs()} == known
    assert {"red", "blue", "again"} <= known
