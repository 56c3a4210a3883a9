"""Parts that ranks resume from stay until no rank of the server can need them any more."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio
from crc32c import crc32c

from agentlink.checkpoints import GetLocal, GetPart, HoldingKind
from checkpoints.ledger import Key
from checkpoints.manifest import FileSums, Manifest, Sum
from container_mgr.checkpoints import layout
from container_mgr.checkpoints.values import PartPlace
from container_mgr.values import AgentError
from testbed.simulated.loop import settled
from tests.unit.container_mgr.checkpoints.agent_parts import (
    FOLDER,
    LIMIT_S,
    Server,
    container,
    rank,
    server,
    write_step,
)

OLD = Key(100, 1)
SHARD = b"other"


@pytest_asyncio.fixture
async def one(tmp_path: Path) -> AsyncIterator[Server]:
    async with server(tmp_path) as made:
        yield made


def write_alone(live: Path, step: int, number: int) -> None:
    """Write a distributed checkpoint as a rank that asks no other one."""
    folder = live / f"step_{step}"
    folder.mkdir()
    (folder / f"__{number}_0.distcp").write_bytes(b"shard")
    (folder / ".metadata").write_bytes(b"plan")


def third() -> Manifest:
    """Return the manifest of rank 2's part, which ran on another server."""
    path = "step_100/__2_0.distcp"
    return Manifest(FOLDER, 1, 100, 2, 3, "dcp", FileSums({path: Sum(len(SHARD), crc32c(SHARD))}))


async def fetched(one: Server) -> None:
    """Have ranks 0 and 1 write step 100, and bring rank 2's part for rank 0 alone."""
    for number in (0, 1):
        begun = await one.start(rank(number, rule="dcp", ranks=3))
        write_alone(begun.live, 100, number)
        await one.whole(100, number)
        one.held.ended(rank(number).key.container)
    await bring(one)


async def bring(one: Server) -> None:
    found = third()
    await one.held.expect(FOLDER, {"gpu0", "gpu1"})
    get = GetPart(0, "gpu0", 2, found.digest, len(SHARD), GetLocal("gpu0"))
    arriving = one.held.receive_restore(FOLDER, OLD, get)
    path = Path(f"/proc/self/fd/{arriving.root}") / "step_100"
    path.mkdir()
    (path / "__2_0.distcp").write_bytes(SHARD)
    arriving.keep(found)
    assert one.held.came(FOLDER, OLD, get)


def staged(root: Path) -> list[str]:
    return sorted(
        f"{path.parent.parent.name}/{path.name}"
        for path in (root / "checkpoints" / FOLDER).glob(f"*/{layout.STAGED}/*")
    )


async def until(true: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT_S):
        while not true():
            await settled()


async def run_ahead(one: Server) -> None:
    """Start rank 0 and have it write a whole step before rank 1 begins."""
    begun = await one.start(rank(0, epoch=2, rule="dcp", ranks=3, resumed=OLD))
    write_alone(begun.live, 110, 0)
    await one.whole(110, 0, epoch=2)
    assert begun.restore is not None
    await until(lambda: not list(begun.restore.iterdir()))  # type: ignore[union-attr]


async def begin_behind(one: Server) -> None:
    """Start rank 1, which must still find all parts."""
    begun = await one.start(rank(1, epoch=2, rule="dcp", ranks=3, resumed=OLD))
    assert begun.restore is not None
    shown = sorted(path.name for path in (begun.restore / "step_100").iterdir())
    assert [n for n in shown if n != ".metadata"] == [f"__{n}_0.distcp" for n in range(3)]
    write_alone(begun.live, 110, 1)
    await one.whole(110, 1, epoch=2)


async def test_a_rank_that_runs_ahead_leaves_the_others_their_parts(
    one: Server, tmp_path: Path
) -> None:
    await fetched(one)
    await run_ahead(one)
    assert staged(tmp_path) == ["gpu0/100.1"]
    await begin_behind(one)
    await until(lambda: not staged(tmp_path))


async def test_a_restart_of_the_agent_between_two_ranks_of_a_run(tmp_path: Path) -> None:
    async with server(tmp_path) as one:
        await fetched(one)
        await run_ahead(one)
    async with server(tmp_path) as one:
        one.held.watch(container(rank(0, epoch=2, rule="dcp", ranks=3, resumed=OLD)))
        await one.until(lambda h: h.key == Key(110, 2))
        assert staged(tmp_path) == ["gpu0/100.1"]
        await begin_behind(one)
        await until(lambda: not staged(tmp_path))


async def test_a_container_that_is_made_again_finds_its_parts(one: Server, tmp_path: Path) -> None:
    """The engine refused it after its folders were made."""
    await fetched(one)
    refused = rank(1, epoch=2, rule="dcp", ranks=3, resumed=OLD)
    await one.start(refused)
    one.held.ended(refused.key.container)
    await run_ahead(one)
    assert staged(tmp_path) == ["gpu0/100.1"]
    await begin_behind(one)
    await until(lambda: not staged(tmp_path))


async def test_a_rank_that_no_fetch_named(one: Server, tmp_path: Path) -> None:
    """It has no part of its own, and what it reads came for others."""
    await fetched(one)
    await one.held.expect(FOLDER, {"gpu0"})
    with one.held.reserved(rank(1, epoch=2, rule="dcp", ranks=3, resumed=OLD)):
        await run_ahead(one)
        assert staged(tmp_path) == ["gpu0/100.1"]
    await begin_behind(one)


async def test_a_start_that_is_repeated_keeps_nothing(one: Server, tmp_path: Path) -> None:
    """The controller fetches again, and finds that all ranks run."""
    await fetched(one)
    await run_ahead(one)
    await begin_behind(one)
    await until(lambda: not staged(tmp_path))
    await bring(one)
    for number in (0, 1):
        assert staged(tmp_path) == ["gpu0/100.1"]
        one.held.watch(container(rank(number, epoch=2)))
    await until(lambda: not staged(tmp_path))


async def test_a_run_from_the_start_needs_nothing_that_was_fetched(
    one: Server, tmp_path: Path
) -> None:
    await fetched(one)
    begun = await one.start(rank(0, epoch=2, rule="dcp", ranks=3))
    write_alone(begun.live, 1, 0)
    await one.whole(1, 0, epoch=2)
    assert staged(tmp_path) == []


async def test_what_an_ending_run_writes_frees_nothing_of_the_next(
    one: Server, tmp_path: Path
) -> None:
    """Its last step is found when the fetch for the next run is done already."""
    begun = await one.start(rank())
    write_step(begun.live, 100)
    told = await one.whole(100)
    part = one.held.find(PartPlace(FOLDER, "gpu0", HoldingKind.OWN, 0, OLD))
    assert part is not None
    get = GetPart(0, "gpu0", 0, told.digest, told.bytes, GetLocal("gpu0"))

    async def fetch() -> None:
        await one.held.expect(FOLDER, {"gpu0"})
        await asyncio.to_thread(one.held.restore_from, part, get)

    one.held.ended(rank().key.container)
    await fetch()
    begun = await one.start(rank(epoch=2, resumed=OLD))
    await fetch()
    write_step(begun.live, 110)
    await one.whole(110, epoch=2)
    one.held.ended(rank(epoch=2).key.container)
    assert staged(tmp_path) == ["gpu0/100.1"]
    begun = await one.start(rank(epoch=3, resumed=OLD))
    write_step(begun.live, 110)
    await one.whole(110, epoch=3)
    await until(lambda: not staged(tmp_path))


async def test_a_record_that_is_damaged_expects_nobody(tmp_path: Path) -> None:
    async with server(tmp_path) as one:
        await fetched(one)
    record = tmp_path / "checkpoints" / FOLDER / layout.EXPECTED
    assert record.read_text() == '["gpu0", "gpu1"]'
    record.write_text('{"gpu0"')
    async with server(tmp_path) as one:
        with pytest.raises(AgentError, match="not whole"):
            await one.start(rank(1, epoch=2, rule="dcp", ranks=3, resumed=OLD))
