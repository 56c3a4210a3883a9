from __future__ import annotations

import asyncio
import errno
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlink.ranks import RankKey
from container_mgr.ranks import archive as module
from container_mgr.ranks.archive import Archive, KeptLog, excess
from container_mgr.values import LogLimits
from tests.unit.container_mgr.ranks.written import everything, fill, record

DAY = 86400.0


class Clock:
    """Seconds since 1970, as the test sets them."""

    def __init__(self) -> None:
        self.now = 1.8e9

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "x-json.log"


def opened(directory: Path, clock: Clock, limits: LogLimits | None = None) -> Archive:
    found = Archive(directory / "logs", limits or LogLimits(), clock)
    found.load()
    return found


def texts(archive: Archive, job: str, rank: int, epoch: int | None = None) -> list[str]:
    found = archive.find(job, rank, epoch)
    return ["none"] if found is None else asyncio.run(everything(found))


def names(archive: Archive) -> set[str]:
    return {path.name for path in archive._dir.iterdir()}


def test_every_run_of_a_rank_is_kept_and_the_newest_is_found(
    tmp_path: Path, clock: Clock, log: Path
) -> None:
    archive = opened(tmp_path, clock)
    for epoch in (9, 10):
        log.unlink(missing_ok=True)  # every container has files of its own
        log.write_bytes(record(f"{epoch}\n"))
        archive.store(RankKey("red", 0, epoch), log)
    assert texts(archive, "red", 0) == ["10"]
    assert texts(archive, "red", 0, 9) == ["9"]
    for job, rank in (("red", 1), ("re", 0), ("red-0", 9)):
        assert archive.find(job, rank) is None
    assert archive.find("red", 0, 8) is None


def test_output_outlives_a_restart_and_what_a_crash_left_goes(
    tmp_path: Path, clock: Clock, log: Path
) -> None:
    (tmp_path / "x-json.log.1").write_bytes(record("1\n"))
    log.write_bytes(record("2\n") + b'{"log": "torn')
    opened(tmp_path, clock).store(RankKey("red", 0, 1), log)
    torn = tmp_path / "logs" / ".ll-blue-0-1"
    torn.mkdir()
    (torn / "rank-json.log").write_bytes(b"{")
    (tmp_path / "logs" / "lost+found").mkdir()
    again = opened(tmp_path, clock)
    assert texts(again, "red", 0) == ["1", "2"]
    assert again.find("blue", 0) is None
    assert names(again) == {"ll-red-0-1", "lost+found"}


def test_output_goes_after_its_time(tmp_path: Path, clock: Clock, log: Path) -> None:
    archive = opened(tmp_path, clock, LogLimits(keep_s=DAY))
    log.write_bytes(record("1\n"))
    archive.store(RankKey("red", 0, 1), log)
    clock.now += DAY - 1
    archive.store(RankKey("red", 1, 1), log)
    clock.now += 2
    archive.prune()
    assert names(archive) == {"ll-red-1-1"}
    clock.now += DAY
    assert names(opened(tmp_path, clock, LogLimits(keep_s=DAY))) == set()


def test_output_goes_of_who_has_most(tmp_path: Path, clock: Clock, log: Path) -> None:
    """A job that writes much, or a project with many jobs, keeps no other's output away."""
    archive = opened(tmp_path, clock, LogLimits(total_bytes=150_000))
    log.write_bytes(record("x" * 9_000) * 2)  # 5 blocks, and one for the directory
    archive.store(RankKey("vision-small", 0, 1), log)
    archive.store(RankKey("text-red", 0, 1), log)
    for rank in range(10):
        archive.store(RankKey("text-chatty", rank, 1), log)
    assert {"ll-vision-small-0-1", "ll-text-red-0-1"} < names(archive)
    for number in range(10):
        archive.store(RankKey(f"text-many{number}", 0, 1), log)
    left = names(archive)
    assert {"ll-vision-small-0-1", "ll-text-many9-0-1"} < left
    assert len(left) == 6


def test_the_oldest_output_goes_when_there_is_too_much(
    tmp_path: Path, clock: Clock, log: Path
) -> None:
    archive = opened(tmp_path, clock, LogLimits(total_bytes=60_000))
    log.write_bytes(record("x" * 9_000) * 2)  # 5 blocks, and one for the directory
    for rank in range(4):
        clock.now -= 1000  # the system clock is set back meanwhile
        archive.store(RankKey("red", rank, 1), log)
    assert names(archive) == {"ll-red-2-1", "ll-red-3-1"}
    assert names(opened(tmp_path, clock, LogLimits(total_bytes=30_000))) == {"ll-red-3-1"}


@pytest.mark.parametrize("linked", [True, False])
def test_the_end_of_a_long_log_is_kept(
    tmp_path: Path, clock: Clock, log: Path, monkeypatch: pytest.MonkeyPatch, linked: bool
) -> None:
    if not linked:

        def link(source: Path, target: Path) -> None:
            raise OSError(errno.EXDEV, "another file system")

        monkeypatch.setattr(os, "link", link)
    archive = opened(tmp_path, clock, LogLimits(rank_bytes=100_000))
    fill(log, records=1_000)
    archive.store(RankKey("red", 0, 1), log)
    found = archive.find("red", 0)
    assert found is not None
    kept = sorted(found.parent.iterdir())
    assert 90_000 < sum(path.stat().st_size for path in kept) <= 100_000
    assert json.loads(found.read_bytes().splitlines()[-1])["log"] == "2999\n"
    assert all(path.read_bytes().startswith(b'{"log"') for path in kept)
    assert (found.stat().st_ino == log.stat().st_ino) is linked


@pytest.mark.parametrize("room", [0, 1])
def test_a_full_disk_drops_the_oldest_and_never_fails(
    tmp_path: Path, clock: Clock, log: Path, monkeypatch: pytest.MonkeyPatch, room: int
) -> None:
    """``room``: so many logs can be kept beside the new one; with none the new one is lost."""
    archive = opened(tmp_path, clock)
    log.write_bytes(record("1\n"))
    for rank in range(3):
        archive.store(RankKey("red", rank, 1), log)
    keep = module._keep_end

    def full(source: Path, target: Path, limit: int) -> int:
        others = [p for p in names(archive) if not p.startswith(".")]
        if len(others) > room or not room:
            raise OSError(errno.ENOSPC, "No space left on device")
        return keep(source, target, limit)

    monkeypatch.setattr(module, "_keep_end", full)
    archive.store(RankKey("red", 3, 1), log)
    assert names(archive) == ({"ll-red-2-1", "ll-red-3-1"} if room else set())


def test_a_directory_that_cannot_be_written_does_not_fail_an_end(
    tmp_path: Path, clock: Clock, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    archive = opened(tmp_path, clock)
    log.write_bytes(record("1\n"))

    def mkdir(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "mkdir", mkdir)
    archive.store(RankKey("red", 0, 1), log)
    assert archive.find("red", 0) is None


def test_a_removal_that_is_repeated_keeps_the_output(
    tmp_path: Path, clock: Clock, log: Path
) -> None:
    archive = opened(tmp_path, clock)
    log.write_bytes(record("1\n"))
    archive.store(RankKey("red", 0, 1), log)
    log.unlink()
    archive.store(RankKey("red", 0, 1), log)
    assert texts(archive, "red", 0) == ["1"]


def test_a_rank_that_wrote_nothing_is_known(tmp_path: Path, clock: Clock, log: Path) -> None:
    archive = opened(tmp_path, clock)
    archive.store(RankKey("red", 0, 1), log)
    assert texts(archive, "red", 0) == []


def test_many_logs_are_kept_concurrently(
    tmp_path: Path, clock: Clock, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_KEPT", 3)
    log.write_bytes(record("a"))
    archive = opened(tmp_path, clock)
    keys = [RankKey("red", rank, epoch) for rank in range(16) for epoch in range(1, 9)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda key: archive.store(key, log), keys))
    assert len(names(archive)) == 3


@given(
    sizes=st.lists(st.tuples(st.integers(1, 50), st.integers(0, 100)), max_size=30),
    total=st.integers(1, 200),
    keep=st.integers(1, 100),
)
def test_what_is_kept_fits_and_is_the_newest(
    sizes: list[tuple[int, int]], total: int, keep: int
) -> None:
    dated = sorted(sizes, key=lambda one: one[1])
    kept = {f"r{n}": KeptLog(size, float(since)) for n, (size, since) in enumerate(dated)}
    dropped = excess(kept, LogLimits(float(keep), 1, total), now=100.0)
    left = [one for name, one in kept.items() if name not in dropped]
    assert sum(one.size for one in left) <= total
    assert all(one.since + keep > 100 for one in left)
    assert left == list(kept.values())[len(dropped) :]
    if dropped and (last := kept[dropped[-1]]).since + keep > 100:
        assert last.size + sum(one.size for one in left) > total
