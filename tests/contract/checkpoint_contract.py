"""The contract of every engine that keeps checkpoints. Subclass it and provide a ``rig``."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any, Protocol, cast

import pytest

from agentlink.checkpoints import (
    FetchProgress,
    Folder,
    GetFrom,
    GetLocal,
    GetPart,
    GetRebuilt,
    GetStored,
    Holding,
    HoldingKind,
    KeepCopy,
    KeepParity,
    KeepStored,
    Source,
    Verified,
)
from agentlink.checkpoints import Holding as AgentHolding
from agentlink.ranks import RankCheckpoint, RankSpec
from agentlink.values import Scope, VolumeMount, Where
from checkpoints.ledger import Key, Member
from container_mgr.values import AgentError
from controller.devices.checkpoints import CheckpointEngine, HoldingsNews
from controller.devices.engine import EngineError, ExecutionEngine, Fenced
from tests.parts.agent.checkpoints import FakeHolder, FakeTransfers
from tests.parts.agent.ranks import SLEEP, until

SERVER = "srv0"
RED = "red.0123abcd"
SECRET = b"\xaaK" * 16
FOLDER = Folder(RED, SECRET, Where.MEMORY, 1 << 20)
STEP = Key(10, 1)
SOURCE = Source(1, "0000beef", 4096, "gpu1", SERVER, "10.77.0.2")
COPY = KeepCopy(0, STEP, SOURCE)
PARITY = KeepParity(0, STEP, (replace(SOURCE, rank=0, endpoint="gpu0", address=""), SOURCE))
STORE = VolumeMount("shared", "/shared", False, Scope.JOB, "vision.red")
STORED = KeepStored(0, STEP, STORE)
GET = GetPart(0, "gpu0", 1, "0000beef", 4096, GetFrom(SOURCE))


class Engine(ExecutionEngine, CheckpointEngine, Protocol):
    """Runs ranks and keeps their checkpoints."""


class Rig(Protocol):
    """An engine with one server, and what is below it there."""

    engine: Engine
    holder: FakeHolder
    transfers: FakeTransfers
    restart: Callable[[], Awaitable[None]]

    def spec(self, rank: int, *command: str, job: str = "red", epoch: int = 1) -> RankSpec:
        """Return a rank on the endpoint of the same number."""
        ...


def own(rank: int = 0, key: Key = STEP, **changed: Any) -> AgentHolding:
    """Return what an agent says of a part that its rank has written."""
    held = AgentHolding(
        folder=RED,
        key=key,
        rank=rank,
        endpoint=f"gpu{rank}",
        kind=HoldingKind.OWN,
        digest="0000beef",
        bytes=4096,
        written_s=0.5,
        seen_at=1000.0,
    )
    return replace(held, **changed)


class Told:
    """What the engine's holdings have told so far."""

    def __init__(self, news: AsyncIterator[HoldingsNews]) -> None:
        self._news = news
        self.began: list[str] = []
        self.holdings: list[Holding] = []
        """Since the server began."""
        self.caught_up = 0

    async def next(self) -> HoldingsNews:
        """Take one item."""
        async with asyncio.timeout(60):
            one = await anext(self._news)
        assert one.server == SERVER
        if one.began:
            self.began.append(one.boot_id)
            self.holdings.clear()
        self.holdings += one.holdings
        self.caught_up += one.caught_up
        return one

    async def all(self) -> list[Holding]:
        """Take items until the server has caught up once more."""
        before = self.caught_up
        while self.caught_up == before:
            await self.next()
        return self.holdings

    async def says(self, kind: HoldingKind, rank: int = 0) -> Holding:
        """Take items until a part is told of in this way."""
        while True:
            for holding in self.holdings:
                if (holding.kind, holding.rank) == (kind, rank):
                    return holding
            await self.next()


@asynccontextmanager
async def telling(engine: CheckpointEngine) -> AsyncIterator[Told]:
    """Read an engine's holdings; close them at the end."""
    news = engine.holdings()
    try:
        yield Told(news)
    finally:
        await cast(Any, news).aclose()


async def fetched(
    rig: Rig, *gets: GetPart, folder: Folder = FOLDER, deadline_s: float = 60.0
) -> list[FetchProgress]:
    """Fetch parts; return all progress. The server has told where it gives parts."""
    async with telling(rig.engine) as told:
        await told.all()
    return [p async for p in rig.engine.fetch(SERVER, folder, STEP, gets, deadline_s)]


async def verified(rig: Rig, key: Key | None, folder: str = RED) -> list[Verified]:
    """Read parts again."""
    return [v async for v in rig.engine.verify_steps(SERVER, folder, key, 60)]


class CheckpointContract:
    """The tests of the contract."""

    async def test_everything_is_told_first_and_then_changes(self, rig: Rig) -> None:
        rig.holder.report(own(0))
        rig.holder.report(own(1, kind=HoldingKind.AWAITS, digest="", written_s=None))
        async with telling(rig.engine) as told:
            first = await told.next()
            assert first.began
            assert len(first.boot_id) == 36
            both = await told.all()
            assert [(h.rank, h.kind) for h in both] == [
                (0, HoldingKind.OWN),
                (1, HoldingKind.AWAITS),
            ]
            assert both[0] == Holding(
                server=SERVER,
                folder=RED,
                key=STEP,
                rank=0,
                endpoint="gpu0",
                kind=HoldingKind.OWN,
                digest="0000beef",
                bytes=4096,
                written_s=0.5,
                seen_at=1000.0,
            )
            assert both[1].written_s is None
            rig.holder.report(own(0, kind=HoldingKind.REFUSED, digest="", why="a link"))
            refused = await told.says(HoldingKind.REFUSED)
            assert refused.why == "a link"
            assert len(told.began) == 1

    async def test_names_that_are_no_steps_are_told(self, rig: Rig) -> None:
        rig.holder.report(own(0))
        rig.holder.report(own(1, Key(0, 1), kind=HoldingKind.IGNORED, digest="", why="'final'"))
        async with telling(rig.engine) as told:
            assert {h.kind for h in await told.all()} == {HoldingKind.OWN, HoldingKind.IGNORED}
            named = await told.says(HoldingKind.IGNORED, 1)
            assert (named.why, named.key) == ("'final'", Key(0, 1))

    async def test_a_large_inventory_arrives_whole(self, rig: Rig) -> None:
        steps = [Key(number, 1) for number in range(2_345)]
        for key in steps:
            rig.holder.report(own(0, key))
        async with telling(rig.engine) as told:
            assert [holding.key for holding in await told.all()] == steps

    async def test_who_reads_again_is_told_everything_again(self, rig: Rig) -> None:
        rig.holder.report(own(0))
        for _ in range(2):
            async with telling(rig.engine) as told:
                assert len(await told.all()) == 1
                assert len(told.began) == 1
        await until(_now(lambda: rig.holder.streams["ended"]), lambda ended: ended == 2)

    async def test_an_agent_that_restarts_begins_again(self, rig: Rig) -> None:
        rig.holder.report(own(0))
        rig.holder.report(own(1))
        async with telling(rig.engine) as told:
            assert len(await told.all()) == 2
            rig.holder.report(own(1, kind=HoldingKind.MISSING, digest=""))
            await told.says(HoldingKind.MISSING, 1)
            await rig.restart()
            assert [holding.rank for holding in await told.all()] == [0]
            assert len(told.began) == 2
            assert len(set(told.began)) == 1  # the machine did not start again

    async def test_a_stream_that_breaks_begins_again(self, rig: Rig) -> None:
        rig.holder.report(own(0))
        rig.holder.news_breaks = True
        async with telling(rig.engine) as told:
            await told.all()
            await told.all()
            rig.holder.news_breaks = False
            await told.all()
            assert len(told.began) >= 3
            rig.holder.report(own(1))
            await told.says(HoldingKind.OWN, 1)

    async def test_keeps_are_queued_and_told_of(self, rig: Rig) -> None:
        async with telling(rig.engine) as told:
            await told.all()
            for _ in range(2):
                await rig.engine.keep(SERVER, RED, [COPY, PARITY, STORED], 10**9, 60)
            copy = await told.says(HoldingKind.COPY, 1)
            assert (copy.endpoint, copy.digest, copy.bytes) == ("gpu0", "0000beef", 4096)
            parity = await told.says(HoldingKind.PARITY)
            assert parity.covers == (Member(0, "0000beef", 4096), Member(1, "0000beef", 4096))
            await told.says(HoldingKind.STORED)
        assert [type(keep).__name__ for keep in rig.transfers.queued[RED]] == [
            "KeepCopy",
            "KeepParity",
            "KeepStored",
        ]
        assert rig.transfers.paces == [10**9, 10**9]

    async def test_later_keeps_replace_earlier_ones(self, rig: Rig) -> None:
        await rig.engine.keep(SERVER, RED, [COPY, PARITY], 0, 60)
        await rig.engine.keep(SERVER, "blue.0123abcd", [COPY], 0, 60)
        await rig.engine.keep(SERVER, RED, [], 0, 60)
        assert rig.transfers.queued[RED] == ()
        assert len(rig.transfers.queued["blue.0123abcd"]) == 1

    async def test_what_cannot_be_kept_is_named(self, rig: Rig) -> None:
        with pytest.raises(EngineError) as failed:
            await rig.engine.keep(SERVER, RED, [COPY, replace(COPY, rank=3)], 0, 60)
        assert (failed.value.code, failed.value.obj) == ("not_found", RED)
        assert len(failed.value.faults) == 1
        assert len(rig.transfers.queued[RED]) == 2  # the other is queued

    async def test_a_closed_step_is_summed(self, rig: Rig) -> None:
        rig.holder.report(own(0, kind=HoldingKind.AWAITS, digest=""))
        async with telling(rig.engine) as told:
            await told.all()
            for _ in range(2):
                await rig.engine.close_step(SERVER, RED, STEP, 60)
            assert (await told.says(HoldingKind.OWN)).digest == "0000c105"
        await rig.engine.close_step(SERVER, RED, Key(99, 1), 60)

    async def test_parts_are_fetched(self, rig: Rig) -> None:
        local = replace(GET, rank=1, endpoint="gpu1", how=GetLocal("gpu1"))
        stored = replace(GET, rank=2, endpoint="gpu2", part=2, how=GetStored(STORE))
        covers = (Member(0, "0000beef", 4096), Member(1, "0000beef", 4096))
        sources = (replace(SOURCE, rank=0),)
        parities = (replace(SOURCE, rank=0, digest="", bytes=0),)
        rebuilt = replace(GET, rank=3, endpoint="gpu3", how=GetRebuilt(covers, sources, parities))
        *_, last = await fetched(rig, GET, local, stored, rebuilt)
        assert last == FetchProgress(4 * 4096, 4 * 4096, done=True)
        ((folder, key, gets),) = rig.transfers.fetches
        assert (folder.name, folder.key, folder.size_bytes, key) == (RED, SECRET, 1 << 20, STEP)
        assert [get.endpoint for get in gets] == ["gpu0", "gpu1", "gpu2", "gpu3"]
        assert getattr(gets[0].how, "source").address == "127.0.0.1:7410"  # noqa: B009
        assert getattr(gets[3].how, "parities")[0].address == "127.0.0.1:7410"  # noqa: B009

    async def test_equal_fetches_are_one(self, rig: Rig) -> None:
        rig.transfers.going = asyncio.Event()
        async with telling(rig.engine) as told:
            await told.all()
        left = rig.engine.fetch(SERVER, FOLDER, STEP, [GET], 60)
        assert not (await anext(left)).done
        await left.aclose()
        joined = rig.engine.fetch(SERVER, FOLDER, STEP, [GET], 60)
        assert not (await anext(joined)).done
        rig.transfers.going.set()
        assert [p.done async for p in joined] == [True]
        assert [p.done for p in await fetched(rig, GET)][-1]
        assert len(rig.transfers.fetches) == 1

    async def test_a_fetch_says_which_parts_could_not_be_had(self, rig: Rig) -> None:
        rig.transfers.lost[1] = "its files differ from the manifest"
        *_, last = await fetched(rig, GET)
        assert last.done
        (fault,) = last.faults
        assert (fault.rank, fault.part, fault.endpoint) == (0, 1, "gpu1")
        assert "manifest" in fault.message

    async def test_a_fetch_that_is_refused_says_why(self, rig: Rig) -> None:
        rig.transfers.refusal = AgentError("conflict", RED, "the folders have another key")
        with pytest.raises(EngineError) as refused:
            await fetched(rig, GET)
        assert refused.value.code == "conflict"
        assert "another key" in str(refused.value)

    async def test_a_fetch_without_an_end_is_not_done(self, rig: Rig) -> None:
        rig.transfers.told_end = False
        with pytest.raises(EngineError) as failed:
            await fetched(rig, GET)
        assert failed.value.code == "failed"

    async def test_a_fetch_has_a_deadline(self, rig: Rig) -> None:
        rig.transfers.going = asyncio.Event()
        with pytest.raises(EngineError) as failed:
            await fetched(rig, GET, deadline_s=1.0)
        assert failed.value.code == "timeout"

    async def test_dropped_steps_are_no_longer_held(self, rig: Rig) -> None:
        for step in (1, 2, 3):
            rig.holder.report(own(0, Key(step, 1)))
        async with telling(rig.engine) as told:
            await told.all()
            for _ in range(2):
                keys = [Key(1, 1), Key(2, 1), Key(9, 9)]
                await rig.engine.drop_steps(SERVER, RED, keys, 60)
            assert (await told.says(HoldingKind.MISSING)).key == Key(1, 1)
        await rig.engine.drop_steps(SERVER, "never.00000000", [STEP], 60)
        async with telling(rig.engine) as told:
            assert [holding.key for holding in await told.all()] == [Key(3, 1)]

    async def test_parts_are_read_again(self, rig: Rig) -> None:
        rig.holder.report(own(0))
        rig.holder.report(own(1))
        rig.holder.report(own(0, Key(11, 1)))
        damaged = (RED, STEP, 1, "gpu1", HoldingKind.OWN)
        rig.holder.damages[damaged] = tuple(f"file-{n}: content" for n in range(999))
        assert await verified(rig, Key(11, 1)) == [
            Verified(Key(11, 1), 0, "gpu0", HoldingKind.OWN, server=SERVER)
        ]
        everything = await verified(rig, None)
        assert len(everything) == 3
        (found,) = [one for one in everything if one.damages]
        assert (found.rank, found.damages[0]) == (1, "file-0: content")
        assert found.damages[-1] == "and 992 more"
        assert await verified(rig, None, "never.00000000") == []

    async def test_forgetting_removes_all_once_no_rank_runs(self, rig: Rig) -> None:
        rig.holder.report(own(0))
        rig.holder.in_use.add(RED)
        with pytest.raises(EngineError) as refused:
            await rig.engine.forget_checkpoints(SERVER, RED, 60)
        assert refused.value.code == "conflict"
        rig.holder.in_use.clear()
        assert await rig.engine.forget_checkpoints(SERVER, RED, 60)
        assert not await rig.engine.forget_checkpoints(SERVER, RED, 60)

    async def test_a_server_of_no_site_is_not_found(self, rig: Rig) -> None:
        for call in calls(rig, "srv9").values():
            with pytest.raises(EngineError) as unknown:
                await call()
            assert (unknown.value.code, unknown.value.obj) == ("not_found", "server/srv9")

    async def test_a_slow_disk_is_a_timeout_and_not_a_lost_server(self, rig: Rig) -> None:
        await until(rig.engine.observe, lambda _: all(rig.engine.reachable().values()))
        rig.holder.stuck = True
        for what in ("close_step", "drop_steps", "verify_steps", "forget_checkpoints"):
            with pytest.raises(EngineError) as late:
                await calls(rig, SERVER, 0.5)[what]()
            assert late.value.code == "timeout"
        assert all(rig.engine.reachable().values())

    async def test_what_is_no_folder_or_step_is_refused(self, rig: Rig) -> None:
        for name in ("../etc.01234567", "red", "Red.01234567", "", f"{'x' * 64}.01234567"):
            for what, call in calls(rig, SERVER, folder=name).items():
                with pytest.raises(EngineError) as refused:
                    await call()
                assert refused.value.code == "invalid", what
        with pytest.raises(EngineError) as impossible:
            await rig.engine.close_step(SERVER, RED, Key(-1, 1), 60)
        assert impossible.value.code == "invalid"
        assert not rig.holder.calls
        assert not rig.transfers.queued
        assert not rig.transfers.fetches

    async def test_only_the_newest_controller_changes_checkpoints(self, rig: Rig) -> None:
        rig.holder.report(own(0))
        rig.engine.command(2)
        await rig.engine.confirm_command([SERVER], 60)
        rig.engine.command(1)
        for what, call in calls(rig, SERVER).items():
            if what == "verify_steps":
                continue
            with pytest.raises(Fenced) as fenced:
                await call()
            assert "term 2" in str(fenced.value), what
        assert not rig.holder.calls
        assert len(await verified(rig, None)) == 1
        async with telling(rig.engine) as told:
            assert len(await told.all()) == 1

    async def test_a_rank_with_checkpoints_that_cannot_be_is_refused(self, rig: Rig) -> None:
        good = RankCheckpoint(RED, 2, "rename", Where.DISK, 1 << 20, SECRET)
        for bad in (
            replace(good, folder="../red.01234567"),
            replace(good, ranks=0),
            replace(good, rule="marker: ../x"),
            replace(good, size_bytes=0),
            replace(good, where=Where.MEMORY, size_bytes=1 << 45),
            replace(good, key=SECRET[:31]),
            replace(good, resumed=Key(2**63, 1)),
        ):
            with pytest.raises(EngineError) as refused:
                await rig.engine.start([replace(rig.spec(0, *SLEEP), checkpoint=bad)], 60)
            assert refused.value.code == "invalid"
            assert repr(SECRET[:31])[2:-1] not in repr(refused.value)


def calls(
    rig: Rig, server: str, deadline_s: float = 60.0, *, folder: str = RED
) -> dict[str, Callable[[], Coroutine[Any, Any, Any]]]:
    """Return each call about checkpoints of one job on a server."""
    engine = rig.engine

    async def fetch() -> None:
        local = replace(GET, how=GetLocal("gpu0"))
        named = replace(FOLDER, name=folder)
        async for _ in engine.fetch(server, named, STEP, [local], deadline_s):
            pass

    async def verify() -> None:
        async for _ in engine.verify_steps(server, folder, STEP, deadline_s):
            pass

    return {
        "keep": lambda: engine.keep(server, folder, [COPY], 0, deadline_s),
        "close_step": lambda: engine.close_step(server, folder, STEP, deadline_s),
        "fetch": fetch,
        "drop_steps": lambda: engine.drop_steps(server, folder, [STEP], deadline_s),
        "verify_steps": verify,
        "forget_checkpoints": lambda: engine.forget_checkpoints(server, folder, deadline_s),
    }


def _now(value: Callable[[], int]) -> Callable[[], Coroutine[Any, Any, int]]:
    async def ask() -> int:
        return value()

    return ask
