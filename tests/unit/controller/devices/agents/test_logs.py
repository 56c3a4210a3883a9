"""Reading logs asks the servers that have them, and no other."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import threading
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from container_mgr.ranks.logs import Joiner, OutputLine
from container_mgr.rpc import service
from controller.devices.agents.engine import AgentEngine
from controller.devices.engine import EngineError, LogLine
from protos import agent_pb2 as pb
from protos import agent_pb2_grpc
from tests.parts.agent.ranks import SLEEP, TICKS, output, until
from tests.parts.agent.rig import agent_rig
from tests.unit.controller.devices.agents.specs import SPEC


class Writer(agent_pb2_grpc.AgentServicer):
    """A server with at most one rank, which has written ``batches`` batches of a line each."""

    def __init__(self, *, holds: bool, batches: int = 1) -> None:
        self.holds = holds
        self.batches = batches
        self.asked: Counter[str] = Counter()
        self.closed = asyncio.Event()

    def _reply(self) -> pb.RanksReply:
        ranks = [pb.RankStatus(job="red", epoch=1, endpoint="gpu0", state=pb.STATE_RUNNING)]
        return pb.RanksReply(ranks=ranks if self.holds else [])

    async def Start(self, request: pb.StartRequest, context: object) -> pb.RanksReply:  # noqa: N802
        return self._reply()

    async def Stop(self, request: pb.StopRequest, context: object) -> pb.RanksReply:  # noqa: N802
        self.holds = False
        return pb.RanksReply()

    async def Observe(self, request: pb.ObserveRequest, context: object) -> pb.RanksReply:  # noqa: N802
        self.asked[f"Observe {request.job}"] += 1
        return self._reply()

    async def Logs(  # noqa: N802
        self, request: pb.LogsRequest, context: object
    ) -> AsyncIterator[pb.LogBatch]:
        self.asked["Logs"] += 1
        try:
            for _ in range(self.batches):
                yield pb.LogBatch(lines=[pb.LogLine(time=1.0, stream="stdout", text="hello")])
        finally:
            self.closed.set()


@contextlib.asynccontextmanager
async def site(*agents: Writer, away: str = "") -> AsyncIterator[AgentEngine]:
    """Serve these as srv0, srv1, ...; nothing listens at the address of ``away``."""
    addresses, servers = {away: "127.0.0.1:1"} if away else {}, []
    for number, agent in enumerate(agents):
        server = grpc.aio.server()
        agent_pb2_grpc.add_AgentServicer_to_server(agent, server)
        addresses[f"srv{number}"] = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
        await server.start()
        servers.append(server)
    engine = AgentEngine(addresses)
    try:
        yield engine
    finally:
        await engine.close()
        for server in servers:
            await server.stop(0)


async def texts(engine: AgentEngine, rank: int | None = None) -> list[str]:
    return [line.text async for line in engine.logs("red", rank, 10, False)]


async def test_a_reader_of_logs_bothers_the_jobs_servers_only() -> None:
    mine, other = Writer(holds=True), Writer(holds=False)
    async with site(mine, other) as engine:
        await engine.start([SPEC], 30)
        assert await texts(engine) == ["hello"]
        assert mine.asked == {"Observe red": 1, "Logs": 1}
        assert other.asked == {}


async def test_where_an_ended_job_was_is_known_for_its_logs() -> None:
    mine, other = Writer(holds=True), Writer(holds=False)
    async with site(mine, other) as engine:
        await engine.start([SPEC], 30)
        await engine.stop("red", 0)
        assert await texts(engine, 0) == ["hello"]
        assert other.asked == {}


async def test_removed_ranks_are_read_where_the_job_was_placed() -> None:
    """Also by a controller that did not start them."""
    first, second, other = Writer(holds=False), Writer(holds=False), Writer(holds=False)
    async with site(first, second, other) as engine:
        placed = {0: "srv0", 1: "srv1", 2: "gone"}
        found = [line.rank async for line in engine.logs("red", None, 10, False, placed)]
        assert sorted(found) == [0, 1]
        assert [line.rank async for line in engine.logs("red", 1, 10, False, placed)] == [1]
        assert (first.asked["Logs"], second.asked["Logs"], other.asked) == (1, 2, {})


async def test_the_missing_rank_of_a_running_job_is_read_beside_the_others() -> None:
    mine, other = Writer(holds=True), Writer(holds=False)
    async with site(mine, other) as engine:
        await engine.start([SPEC], 30)
        placed = {0: "srv0", 1: "srv1"}
        found = [line.rank async for line in engine.logs("red", None, 10, False, placed)]
        assert sorted(found) == [0, 1]


async def test_an_agent_gives_the_logs_of_all_ranks_that_it_removed(tmp_path: Path) -> None:
    async with agent_rig(tmp_path) as rig:
        specs = [rig.spec(0, "echo", "zero"), rig.spec(1, "echo", "one")]
        await rig.engine.start(specs, 60)
        for rank, text in enumerate(["zero", "one"]):
            await until(lambda rank=rank: output(rig, rank), lambda got, text=text: got == [text])
        await rig.engine.stop("red", 0)
        placed = {spec.key.rank: spec.server for spec in specs}
        found = rig.engine.logs("red", None, None, False, placed)
        assert {(line.rank, line.text) async for line in found} == {(0, "zero"), (1, "one")}


async def test_a_job_of_an_earlier_controller_is_looked_for_everywhere() -> None:
    mine, other = Writer(holds=False), Writer(holds=True)
    async with site(mine, other) as engine:
        assert await texts(engine) == ["hello"]
        assert mine.asked == {"Observe red": 1}


async def test_a_reader_that_goes_away_leaves_nothing_behind() -> None:
    """Far more is written than the controller keeps for one that does not read."""
    mine = Writer(holds=True, batches=100_000)
    async with site(mine) as engine:
        await engine.start([SPEC], 30)
        async with asyncio.timeout(60):
            async with contextlib.aclosing(engine.logs("red", 0, None, True)) as stream:
                assert (await anext(stream)).text == "hello"
                await asyncio.sleep(0.2)
            await mine.closed.wait()


@pytest.mark.real_time
async def test_an_agent_reads_logs_in_threads_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    parse = Joiner.feed

    def feed(joiner: Joiner, raw: bytes) -> OutputLine | None:
        threads.add(threading.get_ident())
        return parse(joiner, raw)

    monkeypatch.setattr(Joiner, "feed", feed)
    async with agent_rig(tmp_path) as rig:
        await rig.engine.start([rig.spec(0, "seq", "1", "3000"), rig.spec(1, *SLEEP)], 60)
        wanted = [str(n) for n in range(1, 3001)]
        await until(lambda: output(rig, 0), lambda lines: lines == wanted)
        log = rig.docker.containers["ll-red-0-1"].raw["LogPath"]
        shutil.copyfile(log, f"{log}.1")
        last = [line.text async for line in rig.engine.logs("red", 0, 10, False)]
        assert last == wanted[-10:]
    assert threads
    assert threading.get_ident() not in threads


async def test_an_agent_has_so_many_readers_at_most(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "MAX_LOG_READERS", 1)

    async def follow(engine: AgentEngine) -> AsyncIterator[LogLine] | None:
        """A reader that has its place, None when there was none."""
        stream = engine.logs("red", 1, None, True)
        try:
            await anext(stream)
        except EngineError:
            return None
        return stream

    async with agent_rig(tmp_path) as rig:
        await rig.engine.start([rig.spec(0, "echo", "one"), rig.spec(1, *TICKS)], 60)
        stream = await until(lambda: follow(rig.engine), lambda found: found is not None)
        for _ in range(3):
            with pytest.raises(EngineError):
                await output(rig, 0)
        await stream.aclose()  # type: ignore[union-attr]
        await until(lambda: quietly(rig.engine), lambda lines: lines == ["one"])


@pytest.mark.parametrize("job", ["*", "../../../etc", "re?", "red/../red", "x" * 300, "-red"])
async def test_a_name_that_is_none_finds_no_logs(tmp_path: Path, job: str) -> None:
    async with agent_rig(tmp_path) as rig:
        await rig.engine.start([rig.spec(0, "echo", "one"), rig.spec(1, *SLEEP)], 60)
        await until(lambda: output(rig, 0), lambda lines: lines == ["one"])
        await rig.engine.stop("red", 0)
        with pytest.raises(EngineError):
            await output(rig, 0, job=job)
        await rig.engine.stop(job, 0)  # a job that could not start can be ended
        assert await output(rig, 0) == ["one"]


async def quietly(engine: AgentEngine) -> list[str]:
    try:
        return await texts(engine, 0)
    except EngineError:
        return []


def test_the_places_of_ended_jobs_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ended() -> int:
        engine = AgentEngine({"srv0": "127.0.0.1:1"})
        for number in range(5000):
            engine.placed(f"job{number}", ["srv0"])
            engine._forget(f"job{number}")
        await engine.close()
        return len(engine._places_of_ended)

    assert asyncio.run(ended()) == 4096


async def test_a_server_that_is_away_is_named_in_place_of_its_output() -> None:
    mine, other = Writer(holds=False), Writer(holds=False)
    async with site(mine, other, away="srv2") as engine:
        placed = {0: "srv0", 1: "srv1", 2: "srv2"}
        found = [line async for line in engine.logs("red", None, 10, False, placed)]
        assert {(line.rank, line.stream) for line in found} == {
            (0, "stdout"),
            (1, "stdout"),
            (2, "missing"),
        }
        (missing,) = [line.text for line in found if line.stream == "missing"]
        assert missing == "output of rank 2 is missing here: srv2 does not answer"
        only = [line async for line in engine.logs("red", 2, 10, False, placed)]
        assert [line.stream for line in only] == ["missing"]


async def test_a_server_that_hangs_is_given_up() -> None:
    class Hanging(Writer):
        async def Logs(  # noqa: N802
            self, request: pb.LogsRequest, context: object
        ) -> AsyncIterator[pb.LogBatch]:
            yield pb.LogBatch(lines=[pb.LogLine(time=1.0, stream="stdout", text="hello")])
            await asyncio.Event().wait()

    async with site(Hanging(holds=False)) as engine:
        found = [line async for line in engine.logs("red", None, 10, False, {0: "srv0"})]
    assert [line.text for line in found] == [
        "hello",
        "output of rank 0 is missing here: srv0 does not answer in time",
    ]


async def test_output_is_chosen_by_run_time_and_text(tmp_path: Path) -> None:
    async with agent_rig(tmp_path) as rig:
        for epoch, word in ((1, "first"), (2, "second")):
            await rig.engine.start([rig.spec(0, "echo", word, epoch=epoch)], 60)
            await until(lambda: output(rig, 0), lambda got, word=word: got == [word])
            await rig.engine.stop("red", 0)

        async def found(**given: object) -> list[str]:
            lines = rig.engine.logs("red", 0, None, False, {0: "srv0"}, **given)  # type: ignore[arg-type]
            return [line.text async for line in lines]

        assert await found() == ["second"]
        assert await found(epoch=1) == ["first"]
        assert await found(epoch=1, search="irs") == ["first"]
        assert await found(search="irs") == []
        assert await found(since=0.0) == ["second"]
        assert await found(since=2.0**32) == []
        with pytest.raises(EngineError):  # a job of the same name ran before this one
            await found(epoch=3)


async def test_kept_output_is_read_while_the_engine_hangs(tmp_path: Path) -> None:
    async with agent_rig(tmp_path) as rig:
        await rig.engine.start([rig.spec(0, "echo", "one"), rig.spec(1, *SLEEP)], 60)
        await until(lambda: output(rig, 0), lambda got: got == ["one"])
        await rig.engine.stop("red", 0)
        rig.docker.lost["list"] = 100
        found = rig.engine.logs("red", None, None, False, {0: "srv0"})
        assert [line.text async for line in found] == ["one"]
