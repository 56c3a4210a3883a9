"""A program that does what no good one does, in the folder that the agent reads as root."""

from __future__ import annotations

import asyncio
import fcntl
import os
import signal
import stat
import threading
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentlink.checkpoints import Folder, HoldingKind
from agentlink.values import Where
from checkpoints.ledger import Key
from container_mgr.checkpoints import parts
from container_mgr.checkpoints.disk import files, space
from container_mgr.checkpoints.rank_folder import RankFolder
from container_mgr.checkpoints.values import PartPlace
from container_mgr.checkpoints.watching import live
from container_mgr.volumes import tree
from tests.unit.container_mgr.checkpoints.agent_parts import (
    FOLDER,
    SECRET,
    SIZE,
    PlainSpace,
    Server,
    inventory,
    rank,
    server,
    write_step,
)


@pytest_asyncio.fixture
async def one(tmp_path: Path) -> AsyncIterator[Server]:
    async with server(tmp_path) as made:
        yield made


def own(step: int) -> PartPlace:
    return PartPlace(FOLDER, "gpu0", HoldingKind.OWN, 0, Key(step, 1))


async def test_the_names_of_all_held_files_of_a_rank_are_bounded(
    one: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The agent keeps them in memory, however many steps a rank writes."""
    length = len("step-1/model.bin")
    monkeypatch.setattr(live, "MAX_HELD_NAMES", 2 * length)
    begun, other = await one.start(rank()), await one.start(rank(1))
    for step in (1, 2):
        write_step(begun.live, step)
        await one.whole(step)
    write_step(begun.live, 3)
    told = await one.until(lambda h: h.key.step == 3)
    assert (told.kind, told.why) == (
        HoldingKind.REFUSED,
        f"the names of its files have {length} bytes and those of the steps held before"
        f" {2 * length}, {2 * length} together are held; write fewer files or shorter names",
    )
    write_step(other.live, 1)
    await one.whole(1, number=1)
    await one.held.drop(FOLDER, [Key(1, 1)])
    await one.whole(3)


@pytest.mark.parametrize("rule", ["rename", "dcp"])
async def test_a_sparse_file_is_refused_before_it_is_read(one: Server, rule: str) -> None:
    begun = await one.start(rank(rule=rule))
    evil = begun.live / "step-1.tmp"
    evil.mkdir()
    with (evil / "__0_0.distcp").open("wb") as file:
        file.truncate(1 << 40)
    (evil / ".metadata").write_bytes(b"plan")
    evil.rename(begun.live / "step-1")
    told = await one.kind(HoldingKind.REFUSED)
    assert told.why == f"its files have {(1 << 40) + 4} bytes, the folder's limit is {SIZE}"
    assert one.held.find(own(1)) is None


async def test_a_sparse_file_of_a_step_that_awaits_is_not_read(one: Server) -> None:
    begun = await one.start(rank(1, rule="dcp"))
    (begun.live / "step_1").mkdir()
    with (begun.live / "step_1" / "__1_0.distcp").open("wb") as file:
        file.truncate(1 << 40)
    await one.kind(HoldingKind.AWAITS)
    async with asyncio.timeout(5):
        await one.held.close_step(FOLDER, Key(1, 1))
    assert "the folder's limit" in (await one.kind(HoldingKind.REFUSED)).why


def test_a_million_empty_files_end_their_rank(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They take no bytes, so neither a quota nor a size stops them."""
    monkeypatch.setattr(space, "INODES", 100)
    large = Folder(FOLDER, SECRET, Where.DISK, 1 << 40)
    for number in range(101):
        (tmp_path / str(number)).touch()
    with tree.opened(tmp_path) as at:
        assert space.excess(at, large) == "its checkpoints have more than 100 entries"


class Quota(PlainSpace):
    """A disk with project quotas."""

    def prepare(self, path: Path, folder: Folder) -> bool:
        return True


def test_a_quota_of_bytes_does_not_stop_empty_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "INODES", 100)
    (tmp_path / FOLDER).mkdir()
    folder = Folder(FOLDER, SECRET, Where.DISK, 1 << 30)
    rank_folder = RankFolder(tmp_path, folder, "gpu0", Quota(), lambda: False)
    rank_folder.prepare()
    for number in range(101):
        (rank_folder.path / "held" / str(number)).touch()
    assert "more than 100 entries" in rank_folder.excess()


def test_what_is_too_deep_to_be_measured_ends_its_rank(tmp_path: Path) -> None:
    at = os.open(tmp_path, os.O_RDONLY)
    for _ in range(tree.MAX_DEPTH + 1):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)
    with tree.opened(tmp_path) as folder:
        why = space.excess(folder, Folder(FOLDER, SECRET, Where.DISK, 1 << 40))
    assert why == "its checkpoints are more than 100 folders deep"


def test_a_file_that_is_given_to_another_project_counts(tmp_path: Path) -> None:
    """Its owner can do that where users are not remapped, and then no quota limits it."""
    (tmp_path / FOLDER).mkdir()
    rank_folder = RankFolder(
        tmp_path, Folder(FOLDER, SECRET, Where.DISK, 1 << 20), "gpu0", Quota(), lambda: False
    )
    rank_folder.prepare()
    (rank_folder.path / "held" / "file").write_bytes(bytes(1 << 20))
    assert rank_folder.excess() == ""
    (rank_folder.path / "held" / "more").write_bytes(bytes(1 << 19))
    assert rank_folder.excess().endswith("their limit is 1048576")


async def test_names_that_are_no_steps_are_told_until_they_are_gone(one: Server) -> None:
    begun = await one.start(rank())
    odd = begun.live / "global_step100x"
    odd.mkdir()
    told = await one.until(lambda h: h.kind is HoldingKind.IGNORED)
    assert (told.why, told.key, told.rank) == ("'global_step100x'", Key(0, 1), 0)
    odd.rename(begun.live / "step-100\n\x1b[2J")
    told = await one.until(lambda h: h.kind is HoldingKind.IGNORED and "step-100" in h.why)
    assert told.why == r"'step-100\n\x1b[2J'"
    (begun.live / "step-100\n\x1b[2J").rmdir()
    await one.until(lambda h: h.kind is HoldingKind.IGNORED and not h.why)
    again = await inventory(one.held)
    assert [h for h in again if h.kind is HoldingKind.IGNORED] == []


async def test_a_socket_is_refused(one: Server) -> None:
    begun = await one.start(rank())
    evil = begun.live / "step-1.tmp"
    evil.mkdir()
    os.mknod(evil / "socket", stat.S_IFSOCK | 0o600)
    evil.rename(begun.live / "step-1")
    told = await one.kind(HoldingKind.REFUSED)
    assert "neither a file nor a folder" in told.why


@pytest.mark.skipif(os.geteuid() != 0, reason="gives files away")
async def test_a_second_name_of_another_users_file_is_neither_read_nor_held(one: Server) -> None:
    begun = await one.start(rank())
    evil = begun.live / "step-1.tmp"
    (evil / "below").mkdir(parents=True)
    (evil / "mine").write_bytes(b"weights")
    other = begun.live / "other"
    other.write_bytes(b"of somebody else")
    os.chown(other, 4711, 4711)
    os.link(other, evil / "below" / "model.bin")
    evil.rename(begun.live / "step-1")
    told = await one.kind(HoldingKind.REFUSED)
    assert told.why == "step-1/below/model.bin belongs to another user"
    assert one.held.find(own(1)) is None


def test_a_file_of_many_names_is_read_and_counted_once(tmp_path: Path) -> None:
    """A step of 5,000 names of one file of 1 MiB."""
    names = [f"{number:04}" for number in range(5_000)]
    (tmp_path / names[0]).write_bytes(bytes(1 << 20))
    for name in names[1:]:
        os.link(tmp_path / names[0], tmp_path / name)
    reads = 0

    def stopped() -> bool:
        nonlocal reads
        reads += 1
        return False

    with tree.opened(tmp_path) as at:
        found = files.sums(at, dict.fromkeys(names, 1 << 20), stopped)
        taken = space.used(at)
    assert len(set(found.values())) == 1
    assert found.keys() == set(names)
    assert reads < 100
    assert taken.bytes <= 1 << 20
    assert taken.files == 5_000


async def test_two_steps_of_one_file(one: Server) -> None:
    """A program gives an old step's file to the next one, and then writes into it."""
    begun = await one.start(rank())
    write_step(begun.live, 1)
    await one.whole(1)
    temporary = begun.live / "step-2.tmp"
    temporary.mkdir()
    os.link(begun.live / "step-1" / "model.bin", temporary / "model.bin")
    temporary.rename(begun.live / "step-2")
    await one.whole(2)
    (begun.live / "step-2" / "model.bin").write_bytes(b"weightsX")
    damaged = [
        verified.key
        async for batch in one.held.verify(FOLDER, None)
        for verified in batch
        if verified.damages
    ]
    assert damaged == [Key(1, 1), Key(2, 1)]


async def test_a_time_that_is_set_back_hides_nothing_from_a_restore(one: Server) -> None:
    begun = await one.start(rank())
    write_step(begun.live, 1)
    held = await one.whole(1)
    path = begun.live / "step-1" / "model.bin"
    before = path.stat()
    path.write_bytes(b"WEIGHTS1")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert path.stat().st_size == before.st_size
    (found,) = [v async for batch in one.held.verify(FOLDER, held.key) for v in batch]
    assert found.damages == ("step-1/model.bin: content",)


async def test_a_folder_without_permissions_and_with_a_sticky_bit(one: Server) -> None:
    begun = await one.start(rank())
    temporary = begun.live / "step-1.tmp"
    temporary.mkdir()
    (temporary / "model.bin").write_bytes(b"weights")
    (temporary / "model.bin").chmod(stat.S_ISUID | stat.S_ISGID)
    temporary.chmod(stat.S_ISVTX)
    temporary.rename(begun.live / "step-1")
    begun.live.chmod(0o000 if os.geteuid() == 0 else 0o700)
    if os.geteuid() == 0:
        await one.whole(1)
    else:
        await one.kind(HoldingKind.REFUSED)
    temporary = begun.live / "step-1"
    begun.live.chmod(0o700)
    temporary.chmod(0o700)


async def test_a_lease_does_not_hold_the_agent(one: Server) -> None:
    """A process with a write lease keeps others that open its file waiting for 45 s."""
    begun = await one.start(rank())
    temporary = begun.live / "step-1.tmp"
    temporary.mkdir()
    with (temporary / "model.bin").open("wb") as file:
        file.write(b"weights")
        file.flush()
        temporary.joinpath("other.bin").write_bytes(b"x")
        fcntl.fcntl(file, fcntl.F_SETSIG, signal.SIGURG)  # is ignored
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
        temporary.rename(begun.live / "step-1")
        write_step(begun.live, 2)
        await one.whole(2)
        refused = await one.kind(HoldingKind.REFUSED)
        assert (refused.key, "it cannot be held" in refused.why) == (Key(1, 1), True)
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
    (begun.live / "touch").touch()
    await one.whole(1)


def test_names_that_change_while_they_are_scanned(tmp_path: Path) -> None:
    """Folders become links to the server's own and back: nothing of it is ever brought."""
    live, target, secret = (tmp_path / name for name in ("live", "target", "secret"))
    for folder in (live, target, secret):
        folder.mkdir()
    (secret / "model.bin").write_bytes(b"of the server")
    (live / "good").mkdir()
    (live / "good" / "model.bin").write_bytes(b"mine")
    over = threading.Event()

    def swap() -> None:
        link = live / "link"
        while not over.is_set():
            link.symlink_to(secret)
            (live / "good").rename(live / "step-1")
            (live / "step-1").rename(live / "good")
            link.rename(live / "step-1")
            (live / "step-1").unlink()

    swapping = threading.Thread(target=swap)
    swapping.start()
    try:
        with tree.opened(live) as reads:
            for number in range(100):
                assert all(s.size != 13 for s in files.listing(reads).stamps.values())
                (target / str(number)).mkdir()
                with tree.opened(target / str(number)) as writes:
                    for bring in (
                        lambda: files.link(reads, ["step-1/model.bin"], writes),
                        lambda: files.copy(reads, {"step-1/model.bin": 13}, writes, bool),
                    ):
                        try:
                            bring()
                        except (files.ChangedError, FileExistsError):
                            continue
    finally:
        over.set()
        swapping.join()
    found = {path.read_bytes() for path in target.rglob("*") if path.is_file()}
    assert b"of the server" not in found


@pytest.mark.real_time
async def test_a_step_that_is_written_into_while_it_is_summed_is_never_torn(one: Server) -> None:
    """Whatever is held was, at one moment, the whole of the file; or it is found to differ."""
    begun = await one.start(rank())
    temporary = begun.live / "step-1.tmp"
    temporary.mkdir()
    path = temporary / "model.bin"
    path.write_bytes(bytes(8 << 20))
    temporary.rename(begun.live / "step-1")
    over = threading.Event()

    def write() -> None:
        with (begun.live / "step-1" / "model.bin").open("r+b") as file:
            number = 0
            while not over.is_set():
                number += 1
                file.seek((number * 4096) % (8 << 20))
                file.write(bytes([number % 256]) * 4096)
                file.flush()

    writing = threading.Thread(target=write)
    writing.start()
    await asyncio.sleep(0.3)
    over.set()
    await asyncio.to_thread(writing.join)
    await one.whole(1)
    async with asyncio.timeout(20):
        while True:
            part = one.held.find(own(1))
            if part is not None:
                with tree.opened(part.root) as at:
                    if not parts.damages(at, part.manifest, bool):
                        break
            await asyncio.sleep(0.05)
