"""What one job makes large or slow to read delays no other job, and ends within minutes."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest
import pytest_asyncio

from agentlink.checkpoints import GetLocal, GetPart, HoldingKind
from agentlink.ranks import RankKey, RankSpec
from base import clock
from checkpoints.ledger import Key
from checkpoints.manifest import Readable, Sum
from checkpoints.rules import MAX_ENTRIES, CheckpointRule, EntryKind, WriterKind
from container_mgr.checkpoints.disk import files, space
from container_mgr.checkpoints.values import PartPlace
from container_mgr.values import AgentError
from container_mgr.volumes import tree
from tests.unit.container_mgr.checkpoints.agent_parts import (
    FOLDER,
    ME,
    SIZE,
    Server,
    asked,
    rank,
    server,
    write_step,
)
from tests.unit.container_mgr.specs import GOOD


@pytest_asyncio.fixture
async def one(tmp_path: Path) -> AsyncIterator[Server]:
    async with server(tmp_path) as made:
        yield made


def blue(**fields: object) -> RankSpec:
    """Return a rank of another job."""
    made = asked(folder="blue.0123abcd", **fields)
    return replace(GOOD, key=RankKey("blue", 0, 1), endpoint="gpu9", checkpoint=made)


def endless(source: Readable) -> Sum:
    """Read as from a disk that never gets to the end."""
    while True:
        source.read(1)
        clock.sleep(1.0)


async def test_ranks_whose_steps_take_for_ever_to_read_delay_no_other_job(
    one: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(files, "measure", endless)
        slow = [rank(number, ranks=8) for number in range(8)]
        for spec in slow:
            write_step((await one.start(spec)).live, 1)
        await asyncio.sleep(5)
        for spec in slow:
            one.held.ended(spec.key.container)
        await asyncio.sleep(5)
        async with asyncio.timeout(1):
            await one.start(blue())
        async with asyncio.timeout(15):
            assert await one.held.forget(FOLDER)
        await asyncio.sleep(2)
    async with asyncio.timeout(10):
        begun = await one.start(replace(blue(), key=RankKey("blue", 0, 2)))
        write_step(begun.live, 3)
        await one.until(lambda h: (h.folder, h.kind) == ("blue.0123abcd", HoldingKind.OWN))


async def test_a_step_that_is_not_read_in_time_is_refused_until_it_is_written_again(
    one: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = 0

    def counted(source: Readable) -> Sum:
        nonlocal read
        read += 1
        return endless(source)

    with monkeypatch.context() as patched:
        patched.setattr(files, "measure", counted)
        begun = await one.start(rank())
        write_step(begun.live, 1)
        await asyncio.sleep(120)
        assert "its files are not read within 60 s" in (await one.kind(HoldingKind.REFUSED)).why
        (begun.live / "touch").touch()
        await asyncio.sleep(600)
        assert read == 1
    write_step(begun.live, 2)
    await one.whole(2)


async def test_holes_are_refused_before_they_are_read(
    one: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "total", lambda at: 1 << 50)
    begun = await one.start(rank(size_bytes=1 << 47))
    temporary = begun.live / "step-1.tmp"
    with temporary.open("wb") as file:
        file.write(b"some")
        file.truncate(1 << 46)
    temporary.rename(begun.live / "step-1")
    told = await one.kind(HoldingKind.REFUSED)
    assert f"of the {1 << 46} bytes of its files only" in told.why
    with temporary.open("wb") as file:
        file.truncate(16 << 20)  # not worth a word
    temporary.rename(begun.live / "step-2")
    await one.whole(2)


def test_a_file_that_grows_is_read_no_further(tmp_path: Path) -> None:
    path = tmp_path / "model.bin"
    path.write_bytes(b"abcd")

    def grow() -> bool:
        os.truncate(path, 1 << 44)
        return False

    with tree.opened(tmp_path) as at:
        assert files.sums(at, {path.name: 4}, grow)[path.name].bytes == 5
        assert files.sums(at, {path.name: 4}, grow)[path.name].bytes == 1 << 44


async def test_a_held_step_that_was_made_longer_is_not_read_at_a_start(one: Server) -> None:
    begun = await one.start(rank())
    write_step(begun.live, 1)
    held = await one.whole(1)
    os.truncate(begun.live / "step-1" / "model.bin", 1 << 44)
    (found,) = [v async for batch in one.held.verify(FOLDER, held.key) for v in batch]
    assert found.damages == ("step-1/model.bin: length",)


async def test_checkpoints_larger_than_the_disk_are_refused_and_those_that_run_go_on(
    one: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(space, "total", lambda at: SIZE - 1)
    with pytest.raises(AgentError) as refused:
        await one.held.begin(rank(), ME)
    assert refused.value.code == "invalid"
    assert f"the server's disk has {SIZE - 1}" in refused.value.message
    monkeypatch.setattr(space, "total", lambda at: SIZE)
    begun = await one.start(rank())
    write_step(begun.live, 1)
    await one.whole(1)
    monkeypatch.setattr(space, "total", lambda at: SIZE - 1)
    await one.start(rank(epoch=2))
    with pytest.raises(AgentError) as failed:
        await one.start(blue(resumed=Key(1, 1)))  # refused as it has no such step here
    assert failed.value.code == "failed"


@pytest.mark.parametrize("depth", [0, 1])
@pytest.mark.parametrize("letters", ["0" * 100, "\N{GRINNING FACE}" * 25])
def test_names_without_end_are_an_overfull_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, depth: int, letters: str
) -> None:
    monkeypatch.setattr(files, "MAX_NAMES", 2000)
    for number in range(100):
        place = tmp_path.joinpath(*["d" * 90] * depth)
        place.mkdir(exist_ok=True, parents=True)
        (place / f"{letters}{number}").touch()
    with tree.opened(tmp_path) as at:
        found = files.listing(at)
    assert len(found.entries) > MAX_ENTRIES
    assert len(found.stamps) <= 20


def test_small_files_are_read_up_to_a_limit_for_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MAX_HEADS", 100)
    for number in range(10):
        (tmp_path / f"{number}").mkdir()
        (tmp_path / f"{number}" / "_CHECKPOINT_METADATA").write_bytes(bytes(30))
    with tree.opened(tmp_path) as at:
        found = files.listing(at, CheckpointRule(WriterKind.ORBAX))
    assert sum(len(e.head) for e in found.entries if e.kind is EntryKind.FILE) == 90


async def test_a_part_that_was_linked_is_summed_again_before_a_start(
    one: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A store through a mapping changes a file in memory, and none of its stamps."""
    begun = await one.start(rank())
    write_step(begun.live, 1)
    told = await one.whole(1)
    part = one.held.find(PartPlace(FOLDER, "gpu0", HoldingKind.OWN, 0, told.key))
    assert part is not None
    get = GetPart(0, "gpu0", 0, part.manifest.digest, part.manifest.bytes, GetLocal("gpu0"))
    await asyncio.to_thread(one.held.restore_from, part, get)
    assert one.held.came(FOLDER, told.key, get)
    frozen = files.listing
    path = begun.live / "step-1" / "model.bin"
    before = path.stat()
    path.write_bytes(b"WEIGHTS1")
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

    def unchanged(at: int, rule: CheckpointRule = CheckpointRule()) -> files.Listing:  # noqa: B008 - frozen
        found = frozen(at, rule)
        stamps = {p: replace(s, changed_ns=before.st_ctime_ns) for p, s in found.stamps.items()}
        return replace(found, stamps=stamps)

    monkeypatch.setattr(files, "listing", unchanged)
    with pytest.raises(AgentError) as failed:
        await one.start(rank(epoch=2, resumed=told.key))
    assert "is not whole on this server" in failed.value.message
