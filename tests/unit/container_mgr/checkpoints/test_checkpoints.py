"""Folders of ranks: what is held, seeded, told, taken out and removed."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from shutil import rmtree

import pytest
import pytest_asyncio
from crc32c import crc32c

from agentlink.checkpoints import Folder, GetLocal, GetPart, HoldingKind
from agentlink.values import Where
from checkpoints.ledger import Key
from checkpoints.manifest import FileSums, Manifest, Sum
from checkpoints.rules import BATCHES
from container_mgr.checkpoints import feed
from container_mgr.checkpoints.disk import files, space
from container_mgr.checkpoints.disk.files import ChangedError
from container_mgr.checkpoints.values import HeldPart, PartPlace
from container_mgr.values import AgentError
from container_mgr.volumes import tree
from testbed.simulated.loop import settled
from tests.parts.agent.ranks import until
from tests.unit.container_mgr.checkpoints.agent_parts import (
    FOLDER,
    ME,
    SECRET,
    SIZE,
    Server,
    container,
    inventory,
    manifest_of,
    overwrite,
    rank,
    server,
    write_step,
)


@pytest_asyncio.fixture
async def one(tmp_path: Path) -> AsyncIterator[Server]:
    async with server(tmp_path) as made:
        yield made


def own(step: int, number: int = 0, epoch: int = 1) -> PartPlace:
    return PartPlace(FOLDER, f"gpu{number}", HoldingKind.OWN, number, Key(step, epoch))


def get(step: int, digest: str, size: int, number: int = 0, part: int = 0) -> GetPart:
    return GetPart(number, f"gpu{number}", part, digest, size, GetLocal(f"gpu{part}"))


def damage(one: Server, live: Path) -> HeldPart:
    """Write into what is held, as a program can that has the file open."""
    part = one.held.find(own(10))
    assert part is not None
    (live / "step-10").rename(live / "out-of-sight")
    (part.root / "step-10" / "model.bin").write_bytes(b"weightsXX")
    return part


async def test_a_step_is_held_when_it_has_its_name(one: Server) -> None:
    begun = await one.start(rank())
    assert (begun.restore, begun.step, begun.memory_bytes) == (None, None, 0)
    write_step(begun.live, 10)
    told = await one.whole(10)
    part = one.held.find(own(10))
    assert part is not None
    assert told.digest == part.manifest.digest
    assert (part.root / "step-10" / "model.bin").read_bytes() == b"weights10"
    (begun.live / "step-10" / "model.bin").unlink()
    assert (part.root / "step-10" / "model.bin").read_bytes() == b"weights10"


async def test_what_is_being_written_is_not_held(one: Server) -> None:
    begun = await one.start(rank())
    (begun.live / "step-5.tmp").mkdir()
    (begun.live / "step-5.tmp" / "model.bin").write_bytes(b"half")
    write_step(begun.live, 10)
    told = await one.whole(10)
    assert one.held.find(own(5)) is None
    (begun.live / "step-5.tmp").rename(begun.live / "step-5")
    later = await one.whole(5)
    assert later.written_s is not None
    assert later.seen_at >= told.seen_at


async def test_a_step_that_is_written_again_is_a_new_part(one: Server) -> None:
    begun = await one.start(rank())
    write_step(begun.live, 10)
    first = await one.whole(10)
    (begun.live / "step-10").rename(begun.live / "old")
    write_step(begun.live, 10, b"other")
    second = await one.until(lambda h: h.kind is HoldingKind.OWN and h.digest != first.digest)
    part = one.held.find(own(10))
    assert part is not None
    assert part.manifest.digest == second.digest


async def test_a_run_starts_from_its_part_and_does_not_report_it_again(one: Server) -> None:
    begun = await one.start(rank())
    write_step(begun.live, 10)
    write_step(begun.live, 20)
    await one.whole(20)
    await one.whole(10)
    one.held.ended(rank().key.container)
    again = rank(epoch=2, resumed=Key(10, 1))
    begun = await one.start(again)
    assert begun.restore is not None
    assert begun.step == 10
    for shown in (begun.live, begun.restore):
        assert [p.name for p in shown.iterdir()] == ["step-10"]
        assert (shown / "step-10" / "model.bin").read_bytes() == b"weights10"
    write_step(begun.live, 30)
    await one.whole(30, epoch=2)
    assert one.held.find(own(10, epoch=2)) is None
    # The rank has loaded it: its room becomes free again.
    room = begun.restore

    async def left() -> list[Path]:
        return list(room.iterdir())

    await until(left, lambda found: not found)


async def test_a_run_without_a_step_begins_with_an_empty_folder(one: Server) -> None:
    begun = await one.start(rank())
    write_step(begun.live, 10)
    await one.whole(10)
    one.held.ended(rank().key.container)
    begun = await one.start(rank(epoch=2))
    assert list(begun.live.iterdir()) == []
    assert one.held.find(own(10)) is not None


async def test_a_rank_whose_part_is_not_here_is_refused(one: Server) -> None:
    with pytest.raises(AgentError) as refused:
        await one.start(rank(resumed=Key(10, 1)))
    assert refused.value.code == "failed"
    assert "step 10 of run 1 is not whole" in refused.value.message
    assert await one.held.forget(FOLDER)  # nothing uses it


async def test_a_part_that_was_written_into_does_not_start_a_rank(one: Server) -> None:
    """A hard link does not protect what a program opens again."""
    begun = await one.start(rank())
    write_step(begun.live, 10)
    await one.whole(10)
    damage(one, begun.live)
    one.held.ended(rank().key.container)
    with pytest.raises(AgentError, match="not whole"):
        await one.start(rank(epoch=2, resumed=Key(10, 1)))


async def test_a_part_comes_from_another_endpoint_of_the_server(one: Server) -> None:
    begun = await one.start(rank(0))
    write_step(begun.live, 10)
    told = await one.whole(10)
    part = one.held.find(own(10))
    assert part is not None
    spare = rank(1, epoch=2, resumed=Key(10, 1))
    wanted = GetPart(1, "gpu1", 0, told.digest, told.bytes, GetLocal("gpu0"))
    await asyncio.to_thread(one.held.restore_from, part, wanted)
    begun = await one.start(spare)
    assert (begun.live / "step-10" / "model.bin").read_bytes() == b"weights10"


async def test_a_damaged_part_is_found_before_it_is_used(one: Server) -> None:
    begun = await one.start(rank())
    write_step(begun.live, 10)
    told = await one.whole(10)
    part = damage(one, begun.live)
    with pytest.raises(AgentError, match="content"):
        await asyncio.to_thread(one.held.restore_from, part, get(10, told.digest, told.bytes))
    missing = await one.kind(HoldingKind.MISSING)
    assert "step-10/model.bin: content" in missing.why
    assert one.held.find(own(10)) is None


async def test_a_copy_is_kept_when_it_is_as_its_manifest_says(one: Server, tmp_path: Path) -> None:
    await one.held.make(Folder(FOLDER, SECRET, Where.DISK, SIZE))
    source = tmp_path / "source"
    source.mkdir()
    write_step(source, 7)
    place = PartPlace(FOLDER, "gpu0", HoldingKind.COPY, 1, Key(7, 1))
    manifest = manifest_of(source, 1, place.key)

    def receive(content: bytes) -> None:
        receiving = one.held.receive(place, manifest.bytes)
        os.mkdir("step-7", dir_fd=receiving.root)
        target = os.open("step-7/model.bin", os.O_WRONLY | os.O_CREAT, dir_fd=receiving.root)
        os.write(target, content)
        os.close(target)
        try:
            receiving.keep(manifest)
        finally:
            receiving.give_up()

    with pytest.raises(AgentError, match="content"):
        await asyncio.to_thread(receive, b"weightsX")
    assert one.held.find(place) is None
    await asyncio.to_thread(receive, b"weights7")
    told = await one.kind(HoldingKind.COPY)
    assert (told.rank, told.endpoint, told.digest) == (1, "gpu0", manifest.digest)
    arriving = tmp_path / "checkpoints" / FOLDER / "gpu0" / "arriving"
    assert list(arriving.iterdir()) == []


async def test_what_does_not_fit_is_refused_before_it_arrives(one: Server) -> None:
    await one.held.make(Folder(FOLDER, SECRET, Where.DISK, 1 << 20))
    place = PartPlace(FOLDER, "gpu0", HoldingKind.COPY, 1, Key(7, 1))
    with pytest.raises(AgentError) as refused:
        await asyncio.to_thread(one.held.receive, place, 2 << 20)
    assert refused.value.code == "failed"
    assert "the folder is full: 2097152 bytes are needed" in refused.value.message
    assert "2 x (keep + 1) parts" in refused.value.message
    with pytest.raises(AgentError, match="the parts of all ranks"):
        one.held.receive_restore(FOLDER, Key(7, 1), get(7, "", 2 << 20, part=1))


async def test_a_full_folder_is_said(one: Server) -> None:
    begun = await one.start(rank(size_bytes=1 << 20))
    write_step(begun.live, 10, bytes(2 << 20))
    told = await one.kind(HoldingKind.REFUSED)
    assert (told.key, told.why.startswith("the folder is full")) == (Key(10, 1), True)
    one.held.ended(rank().key.container)


def test_a_folder_far_beyond_its_size_ends_its_rank(tmp_path: Path) -> None:
    """Nothing else keeps it from filling a disk without quotas."""
    small = Folder(FOLDER, SECRET, Where.DISK, 1 << 20)
    (tmp_path / "model").write_bytes(bytes(1 << 20))
    with tree.opened(tmp_path) as at:
        assert space.excess(at, small) == ""
        (tmp_path / "more").write_bytes(bytes(1 << 20))
        assert space.excess(at, small).endswith("their limit is 1048576")


async def test_the_parts_of_a_step_are_closed_by_its_coordinator(one: Server) -> None:
    begun = await one.start(rank(1, rule="dcp"))
    step = begun.live / "step_100"
    step.mkdir()
    (step / "__1_0.distcp").write_bytes(b"shard")
    told = await one.kind(HoldingKind.AWAITS)
    assert (told.key, one.held.find(own(100, 1))) == (Key(100, 1), None)
    await one.held.close_step(FOLDER, Key(100, 1))
    await one.whole(100, 1)
    assert len([h for h in one.told if h.kind is HoldingKind.AWAITS]) == 1


async def test_all_parts_of_a_gathered_step_are_shown(one: Server) -> None:
    for number in (0, 1):
        begun = await one.start(rank(number, rule="dcp"))
        step = begun.live / "step_100"
        step.mkdir()
        (step / f"__{number}_0.distcp").write_bytes(b"shard")
        if number == 0:
            (step / ".metadata").write_bytes(b"plan")
    await one.kind(HoldingKind.AWAITS)
    with pytest.raises(AgentError, match="not whole"):
        await one.start(rank(0, epoch=2, rule="dcp", resumed=Key(100, 1)))
    await one.held.close_step(FOLDER, Key(100, 1))
    begun = await one.start(rank(0, epoch=2, rule="dcp", resumed=Key(100, 1)))
    assert begun.restore is not None
    assert sorted(p.name for p in (begun.restore / "step_100").iterdir()) == [
        ".metadata", "__0_0.distcp", "__1_0.distcp",
    ]  # fmt: skip
    assert sorted(p.name for p in (begun.live / "step_100").iterdir()) == [
        ".metadata", "__0_0.distcp",
    ]  # fmt: skip


async def test_a_part_that_came_once_to_the_server_is_shown_to_all_its_ranks(one: Server) -> None:
    """Rank 2 ran on another server; its part is fetched for rank 0 only."""
    key = Key(100, 1)
    for number in (0, 1):
        begun = await one.start(rank(number, rule="dcp", ranks=3))
        step = begun.live / "step_100"
        step.mkdir()
        (step / f"__{number}_0.distcp").write_bytes(b"shard")
    await one.until(lambda h: (h.kind, h.rank) == (HoldingKind.AWAITS, 0))
    await one.until(lambda h: (h.kind, h.rank) == (HoldingKind.AWAITS, 1))
    await one.held.close_step(FOLDER, key)
    found = Manifest(
        FOLDER, 1, 100, 2, 3, "dcp", FileSums({"step_100/__2_0.distcp": Sum(5, crc32c(b"other"))})
    )
    arriving = one.held.receive_restore(FOLDER, key, get(100, found.digest, 5, part=2))
    path = Path(f"/proc/self/fd/{arriving.root}") / "step_100"
    path.mkdir()
    (path / "__2_0.distcp").write_bytes(b"other")
    arriving.keep(found)
    begins = [
        await one.start(rank(number, epoch=2, rule="dcp", ranks=3, resumed=key))
        for number in (0, 1)
    ]
    for begun in begins:
        assert begun.restore is not None
        shown = sorted(path.name for path in (begun.restore / "step_100").iterdir())
        assert shown == ["__0_0.distcp", "__1_0.distcp", "__2_0.distcp"]


async def test_a_step_that_is_overwritten_in_place_is_copied(one: Server) -> None:
    begun = await one.start(rank(rule="keras"))
    overwrite(begun.live, {"latest.weights.h5": b"weights"})
    overwrite(begun.live, {"training_metadata.json": b'{"epoch": 1, "batch": 2}'})
    step = 10**9 + 2
    told = await one.whole(step)
    overwrite(begun.live, {"latest.weights.h5": b"WEIGHTS"})
    part = one.held.find(own(step))
    assert part is not None
    assert (part.root / "latest.weights.h5").read_bytes() == b"weights"
    one.held.ended(rank().key.container)
    begun = await one.start(rank(epoch=2, rule="keras", resumed=told.key))
    overwrite(begun.live, {"latest.weights.h5": b"WEIGHTS"})
    assert (part.root / "latest.weights.h5").read_bytes() == b"weights"


async def test_a_store_belongs_to_who_writes_the_folder(one: Server) -> None:
    """What is copied out of a folder is the agent's own file."""
    begun = await one.start(rank(rule="keras"))
    overwrite(begun.live, {"latest.weights.h5": b"weights"})
    overwrite(begun.live, {"training_metadata.json": b'{"epoch": 0, "batch": 2}'})
    await one.whole(2)
    assert one.held.owner(FOLDER, "gpu0") == ME
    with pytest.raises(AgentError):
        one.held.owner(FOLDER, "gpu1")


async def test_links_and_pipes_are_refused(one: Server) -> None:
    begun = await one.start(rank())
    for name, make in (("step-1", os.mkfifo), ("step-2", lambda p: p.symlink_to("/etc/passwd"))):
        (begun.live / f"{name}.tmp").mkdir()
        (begun.live / f"{name}.tmp" / "model.bin").write_bytes(b"x")
        make(begun.live / f"{name}.tmp" / "evil")
        (begun.live / f"{name}.tmp").rename(begun.live / name)
    (begun.live / "step-3").symlink_to("/etc")
    for step in (1, 2, 3):
        told = await one.until(lambda h, s=step: h.key.step == s)  # type: ignore[misc]
        assert (told.kind, "neither a file nor a folder" in told.why) == (HoldingKind.REFUSED, True)


async def test_dropped_steps_are_gone_and_not_told_again(one: Server, tmp_path: Path) -> None:
    begun = await one.start(rank())
    for step in (10, 20):
        write_step(begun.live, step)
        await one.whole(step)
    await one.held.drop(FOLDER, [Key(10, 1)])
    missing = await one.kind(HoldingKind.MISSING)
    assert (missing.key, missing.why) == (Key(10, 1), "it was dropped")
    write_step(begun.live, 30)
    await one.whole(30)
    assert one.held.find(own(10)) is None
    assert not (tmp_path / "checkpoints" / FOLDER / "gpu0" / "held" / "10.1").exists()


async def test_verification_names_the_damaged_file(one: Server) -> None:
    begun = await one.start(rank())
    for step in (10, 20):
        write_step(begun.live, step)
        await one.whole(step)
    part = one.held.find(own(10))
    assert part is not None
    (part.root / "step-10" / "model.bin").write_bytes(b"short")
    found = [v async for batch in one.held.verify(FOLDER, None) for v in batch]
    assert [(v.key, v.damages) for v in found] == [
        (Key(10, 1), ("step-10/model.bin: length",)),
        (Key(20, 1), ()),
    ]
    await one.kind(HoldingKind.MISSING)


async def test_a_folder_in_use_is_not_removed(one: Server, tmp_path: Path) -> None:
    begun = await one.start(rank())
    write_step(begun.live, 10)
    await one.whole(10)
    with pytest.raises(AgentError) as refused:
        await one.held.forget(FOLDER)
    assert refused.value.code == "conflict"
    one.held.ended(rank().key.container)
    assert await one.held.forget(FOLDER)
    assert not await one.held.forget(FOLDER)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == [".removed"]
    assert list((tmp_path / "checkpoints" / ".removed").iterdir()) == []
    assert one.held.find(own(10)) is None
    assert await inventory(one.held) == []


async def test_a_folder_is_of_one_key(one: Server) -> None:
    await one.held.make(Folder(FOLDER, SECRET, Where.DISK, SIZE))
    await one.held.make(Folder(FOLDER, SECRET, Where.DISK, SIZE))
    with pytest.raises(AgentError) as refused:
        await one.held.make(Folder(FOLDER, bytes(32), Where.DISK, SIZE))
    assert refused.value.code == "conflict"


@pytest.mark.parametrize("name", ["../red.0123abcd", "red", "red.0123ABCD", "", "r/d.0123abcd"])
async def test_a_name_is_never_a_path(one: Server, name: str) -> None:
    with pytest.raises(AgentError) as refused:
        await one.held.make(Folder(name, SECRET, Where.DISK, SIZE))
    assert refused.value.code == "invalid"


async def test_all_is_known_again_after_a_restart(tmp_path: Path) -> None:
    async with server(tmp_path) as one:
        begun = await one.start(rank())
        for step in (5, 10, 20):
            write_step(begun.live, step)
            await one.whole(step)
    held = tmp_path / "checkpoints" / FOLDER / "gpu0" / "held"
    torn = held.parent / "arriving" / "9"
    torn.mkdir()
    (torn / "files").mkdir()
    for step in (5, 20):
        (held / f"{step}.1" / "manifest.json").write_bytes(b"{}")
    rmtree(begun.live / "step-5")
    write_step(begun.live, 30)  # while no agent runs
    async with server(tmp_path) as one:
        one.held.watch(container(rank()))
        await one.until(lambda h: (h.kind, h.key) == (HoldingKind.MISSING, Key(5, 1)))
        await one.whole(10)
        await one.whole(30)
        await one.whole(20)  # the program still has it
        assert not torn.exists()
        write_step(begun.live, 40)
        await one.whole(40)
        folder = one.held.folder(FOLDER)
        assert folder is not None
        assert folder.key == SECRET
    assert (tmp_path / "checkpoints" / FOLDER / "folder.json").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "checkpoints").stat().st_mode & 0o777 == 0o700


async def test_a_step_in_a_store_is_known_after_a_restart(tmp_path: Path) -> None:
    async with server(tmp_path) as one:
        begun = await one.start(rank())
        write_step(begun.live, 10)
        told = await one.whole(10)
        one.held.report(replace(told, kind=HoldingKind.STORED))
    async with server(tmp_path) as one:
        again = await one.kind(HoldingKind.STORED)
        assert (again.key, again.digest, again.bytes) == (told.key, told.digest, told.bytes)
        await one.held.drop(FOLDER, [told.key])
        await one.kind(HoldingKind.MISSING)
        assert HoldingKind.STORED not in {h.kind for h in await inventory(one.held)}


async def test_a_second_reader_ends_the_first(one: Server) -> None:
    begun = await one.start(rank())
    write_step(begun.live, 10)
    await one.whole(10)
    told = await inventory(one.held)
    assert [h.key for h in told] == [Key(10, 1)]
    write_step(begun.live, 20)
    again = await inventory(one.held)
    while Key(20, 1) not in {h.key for h in again}:
        await settled()
        again = await inventory(one.held)
    assert Key(20, 1) not in {h.key for h in one.told}


async def test_who_reads_after_the_end_is_told_nothing(tmp_path: Path) -> None:
    async with server(tmp_path) as one:
        pass
    async with asyncio.timeout(5):
        assert [news async for news in one.held.news()] == []


async def test_a_folder_with_too_many_entries_is_refused_and_stays_listed_in_bounds(
    one: Server,
) -> None:
    begun = await one.start(rank())
    write_step(begun.live, 10)
    await one.whole(10)
    many = begun.live / "step-20.tmp"
    many.mkdir()
    for number in range(20_000):
        (many / str(number)).touch()
    many.rename(begun.live / "step-20")
    told = await one.until(lambda h: h.kind is HoldingKind.REFUSED)
    assert "more than 16384 entries" in told.why
    assert one.held.find(own(10)) is not None


async def test_hostile_names_harm_no_other_step(one: Server) -> None:
    begun = await one.start(rank())
    for name in (b"step-1\n", b"step-2\xff", b"-rf *", b"a" * 255):
        (begun.live / os.fsdecode(name)).mkdir()
    evil = begun.live / "step-3.tmp"
    evil.mkdir()
    (evil / "line\nbreak").write_bytes(b"x")
    evil.rename(begun.live / "step-3")
    write_step(begun.live, 10)
    await one.whole(10)
    told = await one.until(lambda h: h.key.step == 3)
    assert (told.kind, "control characters" in told.why) == (HoldingKind.REFUSED, True)


def test_a_folder_that_becomes_a_link_is_not_followed(tmp_path: Path) -> None:
    """A program swaps a folder between the listing and the link."""
    source, target, secret = (tmp_path / name for name in ("source", "target", "secret"))
    for folder in (source, target, secret):
        folder.mkdir()
    (secret / "model.bin").write_bytes(b"of the server")
    (source / "step-1").symlink_to(secret)
    (source / "model.bin").symlink_to(secret / "model.bin")
    with tree.opened(source) as reads, tree.opened(target) as writes:
        for path in ("step-1/model.bin", "model.bin"):
            with pytest.raises(ChangedError):
                files.link(reads, [path], writes)
            with pytest.raises(ChangedError):
                files.copy(reads, {path: 13}, writes, lambda: False)
            assert files.sums(reads, {path: 13}, lambda: False) == {}
    assert not [p for p in target.rglob("*") if p.is_file()]


async def test_a_slow_reader_gets_the_last_word_only(tmp_path: Path) -> None:
    async with server(tmp_path) as one:
        begun = await one.start(rank())
        write_step(begun.live, 10)
        told = await one.whole(10)
        reader = one.held.news()
        await anext(reader)
        for number in range(5000):
            one.held.report(
                replace(told, kind=HoldingKind.REFUSED, key=Key(number, 7), why=str(number))
            )
        one.held.report(replace(told, kind=HoldingKind.REFUSED, key=Key(4999, 7), why="last"))
        found: dict[Key, str] = {}
        async for news in reader:
            found |= {h.key: h.why for h in news.holdings}
            if Key(4999, 7) in found:
                break
        assert len(found) <= feed.MAX_SAID
        assert found[Key(4999, 7)] == "last"


@pytest.mark.parametrize("rule", ["rename", "keras"])
async def test_a_program_can_remove_its_folder_and_make_it_again(one: Server, rule: str) -> None:
    """Keras removes it when the training has ended."""
    begun = await one.start(rank(rule=rule))

    def write(step: int) -> None:
        if rule == "rename":
            write_step(begun.live, step)
        else:
            overwrite(begun.live, {"latest.weights.h5": b"%d" % step})
            overwrite(begun.live, {"training_metadata.json": b'{"epoch": %d}' % step})

    write(1)
    await one.whole(1 if rule == "rename" else BATCHES)
    for step in (2, 3):
        rmtree(begun.live)
        if step == 3:
            await asyncio.sleep(10)  # it is looked at while it is not there
        begun.live.mkdir()
        write(step)
        await one.whole(step if rule == "rename" else step * BATCHES)
    rmtree(begun.live)
    begun.live.symlink_to("/etc")
    await asyncio.sleep(10)
    one.held.ended(rank().key.container)
    await one.start(rank(epoch=2, rule=rule))
    assert begun.live.is_dir()


async def test_a_run_of_an_older_agent_goes_on_where_it_writes(tmp_path: Path) -> None:
    async with server(tmp_path) as one:
        begun = await one.start(rank())
    old = begun.live.parent
    begun.live.rmdir()
    record = old.parent / "run.json"
    fields = json.loads(record.read_text())
    del fields["place"]
    record.write_text(json.dumps(fields))
    async with server(tmp_path) as one:
        one.held.watch(container(rank()))
        write_step(old, 1)
        await one.whole(1)
