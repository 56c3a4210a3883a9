"""Notices from a job's end to their receivers, over restarts, full disks and lost answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from base import clock
from controller.base import failpoints
from controller.notices.courier import KEEP_TRYING_S, Courier, NoticeTransport
from controller.state import notices
from controller.state.notices import Outbox
from controller.state.records import JobRecord, JobSpec
from sitefile import CabledSite, load_site
from sitefile.notices import Receiver
from testbed.simulated.clock import VirtualClock
from tests.parts.controller.jobs import events, submit
from tests.parts.controller.rack import Rack, crash
from tests.parts.sites import PAPER
from tests.unit.controller.notices.receivers import HttpReceiver, Post

ALL = frozenset({"completed", "failed", "cancelled"})


class DiedError(BaseException):
    """The process ends here."""


@pytest_asyncio.fixture
async def receiver() -> AsyncIterator[HttpReceiver]:
    async with HttpReceiver().listening() as one:
        yield one


def site_with(*receivers: Receiver) -> CabledSite:
    return replace(load_site(PAPER), notices=receivers)


def told(receiver: HttpReceiver) -> list[tuple[str, str]]:
    """Return job and state of every notice that came, doubles included."""
    bodies = [json.loads(post.body) for post in receiver.posts]
    return [(body["job"], body["state"]) for body in bodies]


async def end(rack: Rack, name: str, code: int, project: str = "default") -> None:
    await submit(rack, name, 1, project=project)
    await rack.state(name, "running")
    rack.engine.exit(name, 0, code)
    await rack.state(name, "failed" if code else "completed")


async def test_each_end_is_told_once_to_its_projects_receivers(
    tmp_path: Path, receiver: HttpReceiver
) -> None:
    rack = Rack(
        tmp_path,
        site_with(
            Receiver("default", frozenset({"failed"}), receiver.url),
            Receiver("speech", ALL, receiver.url + "&speech"),
        ),
    )
    await rack.up()
    await end(rack, "red", 0)
    await end(rack, "blue", 7)
    await end(rack, "other", 0, "speech")
    await submit(rack, "never", 6)
    await rack.desks.jobs.cancel("never")
    outbox = rack.see.outbox
    await rack.until(lambda: not outbox and len(receiver.posts) == 2)
    await rack.down()
    await rack.up()
    await end(rack, "green", 1)
    await rack.until(lambda: len(receiver.posts) == 3)
    await rack.down()
    assert sorted(told(receiver)) == [
        ("blue", "failed"),
        ("green", "failed"),
        ("other", "completed"),
    ]
    blue = next(json.loads(p.body) for p in receiver.posts if b'"blue"' in p.body)
    assert blue["reason"] == "rank 0 exited with code 7"
    assert (blue["site"], blue["project"], blue["count"]) == (rack.site.name, "default", 1)


async def test_a_job_of_the_same_name_has_a_notice_of_its_own(
    tmp_path: Path, receiver: HttpReceiver
) -> None:
    rack = Rack(tmp_path, site_with(Receiver("default", ALL, receiver.url)))
    await rack.up()
    await end(rack, "red", 0)
    await end(rack, "red", 0)
    await rack.until(lambda: len(receiver.posts) == 2)
    await rack.down()
    assert len({post.headers["lightloom-notice-id"] for post in receiver.posts}) == 2


async def test_a_receiver_that_was_away_gets_all_after_restarts_of_both(tmp_path: Path) -> None:
    receiver = HttpReceiver()
    async with receiver.listening():
        pass  # it has a port, and is away
    rack = Rack(tmp_path, site_with(Receiver("default", ALL, receiver.url)))
    await rack.up()
    await end(rack, "red", 0)
    await end(rack, "blue", 1)
    await rack.until(lambda: len(rack.see.outbox) == 2)
    delayed = await events(rack, "NoticeDelayed")
    await crash(rack)
    await rack.up()
    async with receiver.listening():
        await rack.until(lambda: not rack.see.outbox)
        await crash(rack)
        await rack.up()
        await end(rack, "green", 0)
        await rack.until(lambda: not rack.see.outbox)
    await rack.down()
    assert sorted(told(receiver)) == [
        ("blue", "failed"),
        ("green", "completed"),
        ("red", "completed"),
    ]
    assert all("in-the-url" not in text and "127.0.0.1" not in text for text in delayed)


@pytest.mark.parametrize("point", ["notice.after", "save-notice.before", "save-notice.after"])
async def test_a_death_after_the_delivery_repeats_it_with_the_same_id(
    tmp_path: Path, receiver: HttpReceiver, point: str
) -> None:
    rack = Rack(tmp_path, site_with(Receiver("default", ALL, receiver.url)))
    await rack.up()
    reached: list[str] = []

    async def die(passed: str) -> None:
        if passed == point:
            reached.append(passed)
            raise DiedError

    with failpoints.hooked(die):
        await end(rack, "red", 0)
        await rack.until(lambda: reached)
    await crash(rack)
    await rack.up()
    await rack.until(lambda: not rack.see.outbox)
    await rack.down()
    # Once where the controller knew that it was delivered; twice, with one id, where it did not.
    assert len(receiver.posts) == (1 if point == "save-notice.after" else 2)
    assert len({post.headers["lightloom-notice-id"] for post in receiver.posts}) == 1


async def test_a_full_disk_repeats_no_delivery(tmp_path: Path, receiver: HttpReceiver) -> None:
    rack = Rack(tmp_path, site_with(Receiver("default", ALL, receiver.url)))
    await rack.up()

    async def full(passed: str) -> None:
        if passed == "save-notice.before":
            rack.disk.fault, rack.disk.after, rack.disk.times = "refused", 0, 2

    with failpoints.hooked(full):
        await end(rack, "red", 0)
        await rack.until(lambda: rack.disk.hit and not rack.see.outbox)
    rack.disk.release()
    await rack.parts.state.journal.flush()
    await crash(rack)
    await rack.up()
    assert not rack.see.outbox
    await rack.down()
    assert told(receiver) == [("red", "completed")]


async def test_a_notice_that_is_too_old_is_given_up_with_an_event(
    tmp_path: Path, receiver: HttpReceiver
) -> None:
    now = clock.current()
    assert isinstance(now, VirtualClock)

    def refuse_a_day_later(_: Post) -> bytes:
        now.step(KEEP_TRYING_S)
        return b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n"

    receiver.answer = refuse_a_day_later
    rack = Rack(tmp_path, site_with(Receiver("default", ALL, receiver.url)))
    await rack.up()
    await end(rack, "red", 0)
    await rack.until(lambda: not rack.see.outbox)
    (lost,) = await events(rack, "NoticeLost")
    await rack.down()
    assert "its receiver answered 500" in lost
    assert len(receiver.posts) == 1


async def test_a_receiver_that_left_the_site_file_is_given_up(tmp_path: Path) -> None:
    rack = Rack(tmp_path, site_with(Receiver("default", ALL, "http://127.0.0.1:1/")))
    await rack.up()
    await end(rack, "red", 0)
    await crash(rack)
    rack.site = site_with()
    await rack.up()
    await rack.until(lambda: not rack.see.outbox)
    assert "no longer names" in (await events(rack, "NoticeLost"))[0]
    await rack.down()


async def test_one_notice_that_fails_does_not_delay_another(
    tmp_path: Path, receiver: HttpReceiver
) -> None:
    refuse = b"HTTP/1.1 400 X\r\nContent-Length: 0\r\n\r\n"
    accept = b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n"
    receiver.answer = lambda post: refuse if b'"red"' in post.body else accept
    rack = Rack(tmp_path, site_with(Receiver("default", ALL, receiver.url)))
    await rack.up()
    await end(rack, "red", 0)
    await rack.until(lambda: len(receiver.posts) == 6, 120)  # the next is a minute later
    await end(rack, "blue", 0)
    await rack.until(lambda: len(rack.see.outbox) == 1 and len(receiver.posts) == 7)
    await rack.down()


def test_the_outbox_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "KEPT_NOTICES", 3)
    outbox = Outbox(site_with(Receiver("default", ALL, "http://receiver/")))
    ended = [JobRecord(f"job-{n}", JobSpec(count=1), "image", float(n), "failed") for n in range(5)]
    given_up = []
    for job in ended:
        for notice in outbox.of(job):
            outbox.put(notice)
        given_up += [notice.job for notice in outbox.trim()]
    assert given_up == ["job-0", "job-1"]
    assert [notice.job for notice in outbox.values()] == ["job-2", "job-3", "job-4"]


def test_a_project_displaces_no_other_ones_notices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notices, "KEPT_NOTICES", 3)
    receivers = (Receiver("loud", ALL, "http://dead/"), Receiver("quiet", ALL, "http://ours/"))
    outbox = Outbox(site_with(*receivers))
    given_up = []
    for n, project in enumerate(["quiet", *["loud"] * 20]):
        spec = JobSpec(count=1, project=project)
        job = JobRecord(f"{project}-{n}", spec, "image", float(n), "failed")
        for notice in outbox.of(job):
            outbox.put(notice)
        given_up += [notice.job for notice in outbox.trim()]
    assert all(name.startswith("loud-") for name in given_up)
    assert "quiet-0" in [notice.job for notice in outbox.values()]


async def test_a_courier_without_receivers_loads_no_client(tmp_path: Path) -> None:
    rack = Rack(tmp_path)
    await rack.up()
    made: list[CabledSite] = []

    def ways(site: CabledSite) -> dict[str, NoticeTransport]:
        made.append(site)
        return {}

    Courier(rack.parts.state, ways).start(rack.parts.tasks)
    await end(rack, "red", 0)
    await rack.down()
    assert made == []
