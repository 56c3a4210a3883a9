"""The locks of a machine: who waits, for whom, and who need not."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

import testbed
from testbed.engine import EngineInfo
from testbed.rack import locks, losses, preflight, record
from testbed.rack.errors import RackError
from testbed.rack.locks import HolderLock
from testbed.rack.record import RackRecord
from testbed.setup import image
from testbed.simulated.loop import settled
from testbed.simulated.work import WorkEvent

SITE = Path(testbed.__file__).parent / "sites" / "spare.yaml"


@pytest.fixture
def rack_lock(monkeypatch: pytest.MonkeyPatch) -> HolderLock:
    """A lock that neither a rack on this machine nor another test process holds."""
    own = HolderLock(f"\0lightloom-unit-test-{os.getpid()}", "the rack")
    monkeypatch.setattr(locks, "RACK", own)
    return own


def test_two_commands_never_change_the_rack_concurrently(rack_lock: HolderLock) -> None:
    with rack_lock.held(), pytest.raises(RackError) as caught, rack_lock.held():
        pass
    assert caught.value.code == "conflict"
    with rack_lock.held():
        pass


async def test_who_waits_says_at_once_for_whom(rack_lock: HolderLock) -> None:
    told: list[str] = []
    let_go = WorkEvent()

    def hold() -> None:
        with rack_lock.held():
            let_go.wait()

    def say(line: str) -> None:
        told.append(line)
        let_go.set()

    def wait() -> None:
        with rack_lock.held(wait_s=60, progress=say):
            assert let_go.is_set(), "it continued only after the other command had finished"

    other = asyncio.create_task(asyncio.to_thread(hold))
    await settled()
    await asyncio.to_thread(wait)
    await other
    (line,) = told
    assert line.startswith("waiting for `") and "which uses the rack (at most 60 s)" in line
    assert f"(process {os.getpid()}, since " in line


def test_the_wait_for_another_command_is_bounded(rack_lock: HolderLock) -> None:
    with rack_lock.held(), pytest.raises(RackError) as caught, rack_lock.held(wait_s=0.05):
        pass
    assert caught.value.code == "conflict"
    assert f"(process {os.getpid()}, since " in caught.value.message
    assert "uses the rack (waited 0.05 s)" in caught.value.message


def test_lose_waits_only_where_there_is_something_to_lose(
    rack_lock: HolderLock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(preflight, "need_root", lambda: None)
    monkeypatch.setattr(losses, "LOCK_WAIT_S", 0.05)
    told: list[str] = []
    with rack_lock.held():
        for change in (losses.lose, losses.repair):
            with pytest.raises(RackError, match="no rack is up"):
                change("gpu3", tmp_path, progress=told.append)
        assert told == []
        record.site_copy(tmp_path).write_text(SITE.read_text("utf-8"), "utf-8")
        record.save(tmp_path, RackRecord("up", "spare", "spare.yaml", "http://x", 0.0, 1.0, 1.0))
        for change in (losses.lose, losses.repair):
            with pytest.raises(RackError, match="uses the rack"):
                change("gpu3", tmp_path, progress=told.append)
    assert len(told) == 2
    assert all(f"(process {os.getpid()}, since " in line for line in told)


class _Engine:
    """An engine that answers, or one that has to be started to build images."""

    def __init__(self, *, answers: bool) -> None:
        self.info = EngineInfo("unix:///x", private=True)
        self.answers, self.started = answers, 0

    def answering(self) -> EngineInfo | None:
        return self.info if self.answers else None

    def start(self) -> EngineInfo:
        self.started += 1
        return self.info

    def stop(self) -> None:
        self.started -= 1


@pytest.mark.parametrize("serving", ["host", "rack", "none"])
def test_a_build_of_images_does_not_lock_the_rack(
    rack_lock: HolderLock, monkeypatch: pytest.MonkeyPatch, serving: str
) -> None:
    store = HolderLock(f"\0lightloom-unit-test-images-{os.getpid()}", "the images")
    monkeypatch.setattr(locks, "STORE", store)
    host = EngineInfo("unix:///host", private=False) if serving == "host" else None
    own = _Engine(answers=False)
    monkeypatch.setattr(image, "host_engine", lambda: host)
    monkeypatch.setattr(image, "DockerEngine", lambda _: _Engine(answers=serving == "rack"))
    monkeypatch.setattr(image, "builder_engine", lambda: own)
    free = []

    def build(at: EngineInfo) -> str:
        with rack_lock.held():
            free.append("rack")
        if serving != "none":
            with store.held():
                free.append("store")
        assert own.started == (serving == "none")
        return at.host_url

    assert image.ensure([build]) == ["unix:///host" if host else "unix:///x"]
    assert free == (["rack"] if serving == "none" else ["rack", "store"])
    assert own.started == 0
