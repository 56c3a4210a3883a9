"""S12, S15: the trail names who did what, notices every change, and carries no secret."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from controller.base.errors import ServiceError
from controller.people import audit_files
from controller.people.audit import AuditLog
from controller.people.audit_files import FILE, HEAD, Trail, TrailCheck, verify
from controller.people.audit_record import AuditRecord, body_of, record_hash
from testbed.simulated.work import WorkEvent
from tests.parts.api.people import people_site

RECORD = AuditRecord(
    0, 1.0, "ann", "user", "t", "127.0.0.1", "jobs:submit", "submit_job", "", 201, 1, 1
)


async def until(what: str, condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(120):
        while not condition():  # noqa: ASYNC110 - there is no event
            await asyncio.sleep(0.02)
    assert condition(), what


async def trail(directory: Path, count: int = 5) -> Path:
    log = AuditLog(directory)
    await log.open()
    await asyncio.gather(*(log.append(replace(RECORD, object=f"job-{i}")) for i in range(count)))
    assert (await log.verify()).ok
    await log.close()
    return directory / FILE


async def test_a_whole_trail_goes_on_after_a_restart(tmp_path: Path) -> None:
    path = await trail(tmp_path)
    assert path.stat().st_mode & 0o777 == 0o600
    again = AuditLog(tmp_path)
    await again.open()
    await again.append(RECORD)
    check = await again.verify()
    assert (check.ok, check.records) == (True, 6)
    assert [r.seq for r in await again.records(3, 2)] == [4, 5]
    assert (await again.verify(expect=check.head)).ok
    assert not (await again.verify(expect=f"6:{'0' * 64}")).ok
    await again.close()


def edit(lines: list[str]) -> None:
    lines[2] = lines[2].replace('"ann"', '"bob"')


def edit_and_rehash(lines: list[str]) -> None:
    record = AuditRecord(**{**json.loads(lines[2]), "actor": "bob"})
    record = replace(record, hash=record_hash(record))
    lines[2] = json.dumps(body_of(record)) + "\n"


def take_out(lines: list[str]) -> None:
    del lines[2]


def reorder(lines: list[str]) -> None:
    lines[2], lines[3] = lines[3], lines[2]


def cut_off(lines: list[str]) -> None:
    del lines[3:]


def scribble(lines: list[str]) -> None:
    lines[2] = "\x00\xff garbage\n"


def double(lines: list[str]) -> None:
    lines.insert(3, lines[2])


@pytest.mark.parametrize(
    ("tamper", "record"),
    [
        (edit, "record 3 "),
        (edit_and_rehash, "record 4 "),
        (take_out, "record 3 "),
        (reorder, "record 3 "),
        (cut_off, "records 4 to 5"),
        (scribble, "record 3 "),
        (double, "record 3 "),
    ],
)
async def test_what_was_tampered_with_is_named(tmp_path: Path, tamper: object, record: str) -> None:
    path = await trail(tmp_path)
    lines = path.read_text().splitlines(keepends=True)
    tamper(lines)  # type: ignore[operator]
    path.write_text("".join(lines), encoding="latin-1")
    check = verify(path)
    assert not check.ok
    assert record in check.problem
    log = AuditLog(tmp_path)
    try:
        await log.open()
        await until("the check finds it", lambda: bool(log.damage))
        with pytest.raises(ServiceError, match="damaged"):
            await log.ready()
    except ServiceError as error:
        assert "damaged" in error.message  # its end is looked at before anything else
    finally:
        await log.close()


async def test_every_flipped_byte_is_noticed(tmp_path: Path) -> None:
    path = await trail(tmp_path, 2)
    whole = path.read_bytes()
    for place in range(0, len(whole), 7):
        flipped = bytearray(whole)
        flipped[place] ^= 0x04
        path.write_bytes(bytes(flipped))
        assert not verify(path).ok, place


async def test_a_torn_last_line_was_never_promised(tmp_path: Path) -> None:
    path = await trail(tmp_path)
    with path.open("a") as file:
        file.write('{"seq": 6, "ti')
    log = AuditLog(tmp_path)
    await log.open()
    await log.append(RECORD)
    assert (await log.verify()).records == 6
    await log.close()


async def test_a_missing_head_is_noticed(tmp_path: Path) -> None:
    path = await trail(tmp_path)
    (tmp_path / HEAD).unlink()
    assert "head" in verify(path).problem


async def test_a_full_disk_loses_no_chain(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = AuditLog(tmp_path)
    await log.open()
    await log.append(RECORD)
    with monkeypatch.context() as broken:
        broken.setattr("os.fdatasync", _full)
        with pytest.raises(ServiceError, match="cannot be written"):
            await log.append(RECORD)
        assert log.error
        with pytest.raises(ServiceError, match="could not be recorded"):
            await log.ready()
    await log.ready()
    await log.append(replace(RECORD, object="later"))
    assert not log.error
    check = await log.verify()
    assert (check.ok, check.records) == (True, 3)  # what the disk refused was written after all
    assert [r.object for r in await log.records(None, 2)] == ["", "later"]
    await log.close()


def _full(_: int) -> None:
    raise OSError(28, "No space left on device")


async def test_changes_and_refusals_are_recorded_without_secrets(tmp_path: Path) -> None:
    async with people_site(tmp_path) as site:
        async with site.client("user-alpha") as user, site.client("admin") as admin:
            await user.post("/jobs/alpha-red/pause")
            await user.post("/jobs/beta-blue/cancel")
            await user.post("/quarantine/as0/3/release")
            made = await admin.post(
                "/tokens", json={"name": "eve", "role": "viewer", "projects": ["*"]}
            )
            await admin.get("/jobs")
            shown = (await admin.get("/audit")).json()["items"]
            assert (await admin.get("/audit/verification")).json()["ok"]
        assert [(r["actor"], r["action"], r["object"], r["outcome"]) for r in shown] == [
            ("user-alpha", "pause_job", "alpha-red", 200),
            ("user-alpha", "cancel_job", "beta-blue", 404),
            ("user-alpha", "release_quarantine", "as0/3", 403),
            ("admin", "create_token", "", 201),
        ]
        text = (tmp_path / FILE).read_text()
        for secret in (*site.secrets.values(), made.json()["token"]):
            assert secret not in text


async def test_a_change_that_can_not_be_recorded_is_said_to_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with people_site(tmp_path) as site, site.client("operator") as client:
        with monkeypatch.context() as broken:
            broken.setattr("os.fdatasync", _full)
            reply = await client.post("/jobs/alpha-red/pause")
            assert (reply.status_code, reply.json()["code"]) == (500, "failed")
            assert "audit" in reply.json()["detail"]
            for keyed in ({}, {"Idempotency-Key": "k"}):
                later = await client.post("/jobs/alpha-red/resume", headers=keyed)
                assert (later.status_code, later.json()["code"]) == (503, "unavailable")
                assert "nothing was changed" in later.json()["detail"]
            assert site.desks.jobs.job("alpha-red").state == "paused"
            assert (await client.get("/jobs/alpha-red")).status_code == 200
        keyed = {"Idempotency-Key": "k"}
        assert (await client.post("/jobs/alpha-red/resume", headers=keyed)).status_code == 200
        kept = [(r.action, r.outcome) for r in await site.audit.records(0, 10)]
        assert kept[0] == ("pause_job", 200)
        assert kept[-1] == ("resume_job", 200)


async def test_sign_ins_wrong_tokens_and_refused_reads_are_recorded(tmp_path: Path) -> None:
    async with people_site(tmp_path) as site:
        async with site.client() as stranger:
            await stranger.post("/session", json={"token": "ll_wrong"})
            await stranger.get("/jobs", headers={"Authorization": "Bearer ll_wrong"})
            await stranger.post("/session", json={"token": site.secrets["user-alpha"]})
            foreign = {"Origin": "https://evil.example"}
            await stranger.post("/session", json={"token": "x"}, headers=foreign)
            await stranger.delete("/session")
        async with site.client("viewer-beta") as viewer, site.client("admin") as admin:
            await viewer.get("/tokens")
            await viewer.get("/jobs")
            shown = (await admin.get("/audit")).json()["items"]
    assert [(r["actor"], r["action"], r["outcome"], r["count"]) for r in shown] == [
        ("", "open_session", 403, 1),
        ("", "list_jobs", 401, 1),
        ("user-alpha", "open_session", 200, 1),
        ("user-alpha", "open_session", 403, 1),
        ("user-alpha", "close_session", 204, 1),
        ("viewer-beta", "list_tokens", 403, 1),
    ]
    assert {r["remote"] for r in shown} == {"127.0.0.1"}
    assert "ll_wrong" not in (tmp_path / FILE).read_text()


async def test_a_flood_of_wrong_tokens_is_a_handful_of_records(tmp_path: Path) -> None:
    async with people_site(tmp_path) as site:
        async with site.client() as stranger:
            for _ in range(300):
                await stranger.get("/jobs", headers={"Authorization": "Bearer ll_wrong"})
        assert len(await site.audit.records(0, 1000)) == 1
        await site.audit.close()
        counts = [r.count for r in await site.audit.records(0, 1000)]
        assert counts == [1, 299]


async def test_no_change_is_made_once_the_trail_is_found_damaged(tmp_path: Path) -> None:
    path = await trail(tmp_path, 50)
    lines = path.read_text().splitlines(keepends=True)
    edit(lines)
    path.write_text("".join(lines))
    async with people_site(tmp_path) as site, site.client("operator") as client:
        await until("the check finds it", lambda: bool(site.audit.damage))
        reply = await client.post("/jobs/alpha-red/pause")
        assert (reply.status_code, reply.json()["code"]) == (500, "failed")
        assert "record 3 was changed" in reply.json()["detail"]
        assert site.desks.jobs.job("alpha-red").state == "running"
        assert (await client.get("/jobs")).status_code == 200


async def test_the_api_does_not_wait_for_a_check_of_the_whole_trail(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await trail(tmp_path, 50)
    may_end = WorkEvent()
    checked = Trail.verify

    def slow(self: Trail, expect: str = "", **given: Any) -> TrailCheck:
        may_end.wait()
        return checked(self, expect, **given)

    monkeypatch.setattr(Trail, "verify", slow)
    log = AuditLog(tmp_path)
    await log.open()
    await log.ready()
    await log.append(RECORD)
    assert [r.seq for r in await log.records(None, 3)] == [49, 50, 51]
    assert [r.seq for r in await log.records(10, 2)] == [11, 12]
    may_end.set()
    assert (await log.verify()).ok
    await log.close()


async def test_a_check_does_not_hold_up_the_controllers_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await trail(tmp_path, 20)
    monkeypatch.setattr(audit_files, "_REST_EVERY", 1)
    log = AuditLog(tmp_path)
    await log.open()
    asked = asyncio.create_task(log.verify())
    await asyncio.sleep(audit_files._REST_S)
    await log.close()
    with pytest.raises(ServiceError, match="stopping"):
        await asked
