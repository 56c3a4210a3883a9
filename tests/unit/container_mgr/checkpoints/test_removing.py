"""Whatever a program leaves in its folder, the agent removes it, or goes on beside it."""

from __future__ import annotations

import asyncio
import os
import stat
import struct
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from agentlink.checkpoints import HoldingKind
from checkpoints.ledger import Key
from container_mgr.checkpoints import layout
from container_mgr.checkpoints.disk import files
from container_mgr.volumes import tree
from tests.unit.container_mgr.checkpoints.agent_parts import (
    FOLDER,
    Server,
    rank,
    server,
    write_step,
)
from tests.unit.container_mgr.checkpoints.flags import APPEND, IMMUTABLE, set_flags

CAPABLE = struct.pack("<IIIII", 0x2000001, 0xFFFF, 0, 0, 0)
"""A file's capabilities, as the kernel has them: all of the lower ones, at once in effect."""

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="what root alone can make")


@pytest.fixture(autouse=True)
def _unlocked(tmp_path: Path) -> Iterator[None]:
    """Leave nothing that pytest cannot remove, also after a failure."""
    yield
    for path in sorted(tmp_path.rglob("*")):
        if stat.S_ISREG(path.lstat().st_mode) or stat.S_ISDIR(path.lstat().st_mode):
            set_flags(path, 0)


@pytest_asyncio.fixture
async def one(tmp_path: Path) -> AsyncIterator[Server]:
    async with server(tmp_path) as made:
        yield made


def lock(path: Path, flag: int) -> None:
    """Set a flag on all that is below a path, and on itself."""
    for below in sorted(path.rglob("*"), reverse=True):
        set_flags(below, flag)
    set_flags(path, flag)


def rank_folder_of(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints" / FOLDER / "gpu0"


@pytest.mark.parametrize("flag", [IMMUTABLE, APPEND])
async def test_files_that_may_not_change_are_removed(
    one: Server, tmp_path: Path, flag: int
) -> None:
    """All of a live folder and what is held, three folders deep; then the next run begins."""
    begun = await one.start(rank())
    write_step(begun.live, 1)
    held = await one.whole(1)
    (begun.live / "a" / "b" / "c").mkdir(parents=True)
    (begun.live / "a" / "b" / "c" / "file").write_bytes(b"x")
    lock(begun.live, flag)
    one.held.ended(rank().key.container)
    await one.held.drop(FOLDER, [held.key])
    begun = await one.start(rank(epoch=2))
    assert list(begun.live.iterdir()) == []
    assert list((rank_folder_of(tmp_path) / layout.REMOVED).iterdir()) == []
    lock(begun.live, flag)
    one.held.ended(rank(epoch=2).key.container)
    assert await one.held.forget(FOLDER)
    assert list((tmp_path / "checkpoints" / ".removed").iterdir()) == []


async def test_a_run_resumes_from_files_that_may_not_change(one: Server) -> None:
    """They cannot get another name, so they are copied."""
    begun = await one.start(rank())
    write_step(begun.live, 1)
    held = await one.whole(1)
    set_flags(begun.live / "step-1" / "model.bin", IMMUTABLE)
    one.held.ended(rank().key.container)
    begun = await one.start(rank(epoch=2, resumed=held.key))
    assert (begun.live / "step-1" / "model.bin").read_bytes() == b"weights1"


async def test_a_step_that_may_not_change_is_refused(one: Server) -> None:
    begun = await one.start(rank())
    (begun.live / "step-1.tmp").mkdir()
    (begun.live / "step-1.tmp" / "model.bin").write_bytes(b"x")
    set_flags(begun.live / "step-1.tmp" / "model.bin", IMMUTABLE)
    (begun.live / "step-1.tmp").rename(begun.live / "step-1")
    assert "it cannot be held" in (await one.kind(HoldingKind.REFUSED)).why
    write_step(begun.live, 2)
    await one.whole(2)


def test_many_folders_that_may_not_change(tmp_path: Path) -> None:
    """Beside each other and in each other, deeper than a path may be long."""
    top = tmp_path / "top"
    top.mkdir()
    for number in range(200):
        (top / str(number)).touch()
    at = os.open(top, os.O_RDONLY)
    for _ in range(2500):
        os.mkdir("d", dir_fd=at)
        below = os.open("d", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    while True:  # from the innermost up
        set_flags(Path(f"/proc/self/fd/{at}"), IMMUTABLE)
        if os.fstat(at).st_ino == top.stat().st_ino:
            break
        above = os.open("..", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = above
    os.close(at)
    with tree.opened(tmp_path) as folder:
        files.remove(folder, "top")
    assert list(tmp_path.iterdir()) == []


async def test_an_agent_without_the_right_goes_on(
    one: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without CAP_LINUX_IMMUTABLE such a file stays, and nothing else does."""
    monkeypatch.setattr(files, "_unlock", lambda at, name: False)
    removed = rank_folder_of(tmp_path) / layout.REMOVED
    begun = await one.start(rank())
    (begun.live / "evil").write_bytes(b"x")
    set_flags(begun.live / "evil", IMMUTABLE)
    for epoch in (1, 2):
        one.held.ended(rank(epoch=epoch).key.container)
        begun = await one.start(rank(epoch=epoch + 1))
        write_step(begun.live, 1)
        await one.whole(1, epoch=epoch + 1)
    assert [path.name for path in removed.rglob("*") if path.is_file()] == ["evil"]
    one.held.ended(rank(epoch=3).key.container)
    assert await one.held.forget(FOLDER)
    assert not (tmp_path / "checkpoints" / FOLDER).exists()
    async with server(tmp_path) as again:  # the agent starts, too
        await again.start(rank(epoch=4))
    monkeypatch.undo()
    async with server(tmp_path):
        assert list((tmp_path / "checkpoints" / ".removed").iterdir()) == []


def test_a_copy_within_a_server_has_only_the_bytes(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    for folder in (source, target):
        folder.mkdir()
    (source / "file").write_bytes(b"x")
    os.setxattr(source / "file", "user.note", b"x")
    os.setxattr(source / "file", "security.capability", CAPABLE)
    (source / "file").chmod(0o6777)
    with tree.opened(source) as reads, tree.opened(target) as writes:
        files.copy(reads, {"file": 1}, writes, bool)
    assert stat.S_IMODE((target / "file").stat().st_mode) == 0o600
    assert os.listxattr(target / "file") == []


def test_who_gets_a_file_of_another_gets_no_rights_with_it(tmp_path: Path) -> None:
    """A part that another user wrote, as a program that it may run as that user."""
    (tmp_path / "file").write_bytes(b"x")
    os.setxattr(tmp_path / "file", "security.capability", CAPABLE)
    (tmp_path / "file").chmod(0o6777)
    with tree.opened(tmp_path) as at:
        files.own(at, ["file"], (5000, 5000), 0o600)
    assert stat.S_IMODE((tmp_path / "file").stat().st_mode) == 0o600
    assert os.listxattr(tmp_path / "file") == []


def _fifo(path: Path) -> None:
    os.mkfifo(path)


def _device(path: Path) -> None:
    os.mknod(path, stat.S_IFCHR | 0o666, os.makedev(1, 3))


def _socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o666)


def _closed(path: Path) -> None:
    path.mkdir()
    (path / "file").touch(mode=0o000)
    path.chmod(0o000)


def _long(path: Path) -> None:
    (path.parent / ("n" * 255)).touch()


def _not_utf8(path: Path) -> None:
    os.close(os.open(os.fsencode(path.parent) + b"/\xff\n\xfe", os.O_CREAT))


def _link(path: Path) -> None:
    path.symlink_to("/etc")


def _deep(path: Path) -> None:
    at = os.open(path.parent, os.O_RDONLY)
    for _ in range(30):  # 30 x 200 bytes are more than a path may have
        os.mkdir("d" * 200, dir_fd=at)
        below = os.open("d" * 200, os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


def _attributes(path: Path) -> None:
    path.touch()
    for name in ("user.a", "trusted.b"):
        os.setxattr(path, name, b"x" * 200)


HOSTILE = [_fifo, _device, _socket, _closed, _long, _not_utf8, _link, _deep, _attributes]


@pytest.mark.parametrize("make", HOSTILE)
async def test_whatever_lies_beside_a_step_or_in_it(
    one: Server, tmp_path: Path, make: Callable[[Path], None]
) -> None:
    """It harms no other step, the next run does not see it, and nothing of it stays."""
    begun = await one.start(rank())
    make(begun.live / "beside")
    (begun.live / "step-1.tmp").mkdir()
    (begun.live / "step-1.tmp" / "model.bin").write_bytes(b"x")
    make(begun.live / "step-1.tmp" / "in")
    (begun.live / "step-1.tmp").rename(begun.live / "step-1")
    write_step(begun.live, 2)
    held = await one.whole(2)
    async with asyncio.timeout(10):
        verified = [v async for batch in one.held.verify(FOLDER, None) for v in batch]
    assert not any(v.damages for v in verified)
    one.held.ended(rank().key.container)
    begun = await one.start(rank(epoch=2, resumed=held.key))
    assert [path.name for path in begun.live.iterdir()] == ["step-2"]
    await one.held.drop(FOLDER, [Key(1, 1), held.key])
    for name in (layout.REMOVED, layout.ARRIVING, layout.HELD):
        assert list((rank_folder_of(tmp_path) / name).iterdir()) == []
    one.held.ended(rank(epoch=2).key.container)
    assert await one.held.forget(FOLDER)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == [".removed"]
    assert list((tmp_path / "checkpoints" / ".removed").iterdir()) == []
