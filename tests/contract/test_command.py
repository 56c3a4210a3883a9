"""Agents decide which controller may change light."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
import pytest_asyncio

from controller.devices.agents.engine import AgentEngine
from controller.devices.engine import EngineError, Fenced
from pki import CONTROLLER
from protos import agent_pb2 as pb
from protos import agent_pb2_grpc
from tests.parts.agent.ranks import SLEEP
from tests.parts.agent.rig import AgentRig, agent_rig, raw


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AgentRig]:
    async with agent_rig(tmp_path) as one:
        yield one


@contextlib.asynccontextmanager
async def two_controllers(rig: AgentRig) -> AsyncIterator[tuple[AgentEngine, AgentEngine]]:
    """Yield an older controller with term 1 and its successor with term 2."""
    mine = raw(rig.directory / "controller", CONTROLLER)
    async with rig.controller(mine) as older, rig.controller(mine) as successor:
        older.command(1)
        successor.command(2)
        yield older, successor


async def test_a_controller_that_was_replaced_does_not_touch_light(rig: AgentRig) -> None:
    async with two_controllers(rig) as (older, successor):
        await older.confirm_command(["srv0"], 60)
        await successor.confirm_command(["srv0"], 60)
        for _ in range(2):  # permanently
            with pytest.raises(Fenced) as fenced:
                await older.confirm_command(["srv0"], 60)
        assert (fenced.value.code, fenced.value.obj) == ("forbidden", "server/srv0")
        assert "term 2" in str(fenced.value)
        await successor.confirm_command(["srv0"], 60)


async def test_a_successor_takes_command_with_its_first_observation(rig: AgentRig) -> None:
    """Before it has changed anything, although a read raises no term."""
    async with two_controllers(rig) as (older, successor):
        await older.confirm_command(["srv0"], 60)
        await successor.observe()
        assert rig.fence.term == 2
        with pytest.raises(Fenced):
            await older.confirm_command(["srv0"], 60)


async def test_a_fenced_controller_may_read_and_does_not_regain_command(rig: AgentRig) -> None:
    async with two_controllers(rig) as (older, successor):
        await successor.start([rig.spec(0, *SLEEP)], 30)
        for _ in range(2):
            assert len(await older.observe()) == 1
            assert older.reachable() == {"srv0": True}
        assert rig.fence.term == 2


async def test_confirming_touches_no_container(rig: AgentRig) -> None:
    await rig.engine.start([rig.spec(0, *SLEEP)], 30)
    before = rig.docker.calls.copy()
    await rig.engine.confirm_command(["srv0"], 60)
    assert rig.docker.calls == before


class Commander(agent_pb2_grpc.AgentServicer):
    """Confirms, refuses, or never answers."""

    def __init__(self, says: str) -> None:
        self.says = says
        self.asked = 0

    async def Command(  # noqa: N802
        self, request: pb.CommandRequest, context: grpc.aio.ServicerContext
    ) -> pb.CommandReply:
        self.asked += 1
        if self.says == "hangs":
            await asyncio.sleep(3600)
        if self.says == "refuses":
            await context.abort(grpc.StatusCode.FAILED_PRECONDITION, "a newer one commands")
        return pb.CommandReply(term=1)


@contextlib.asynccontextmanager
async def site(*says: str) -> AsyncIterator[tuple[AgentEngine, list[Commander]]]:
    """Yield an engine for servers of these kinds; ``dead`` ones accept no connection."""
    agents, commanders = {}, []
    async with contextlib.AsyncExitStack() as stack:
        for number, word in enumerate(says):
            commanders.append(Commander(word))
            if word == "dead":
                kept = stack.enter_context(socket.socket())
                kept.bind(("127.0.0.1", 0))
                agents[f"srv{number}"] = f"127.0.0.1:{kept.getsockname()[1]}"
                continue
            server = grpc.aio.server()
            agent_pb2_grpc.add_AgentServicer_to_server(commanders[-1], server)
            agents[f"srv{number}"] = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
            stack.push_async_callback(server.stop, 0)
        engine = AgentEngine(agents)
        stack.push_async_callback(engine.close)
        yield engine, commanders


@pytest.mark.parametrize(
    ("touched", "others"),
    [
        (("confirms",), ()),
        (("confirms", "dead"), ()),
        (("confirms", "hangs"), ("dead",)),
        (("dead",), ("confirms",)),
        (("dead", "hangs"), ("hangs", "confirms")),
        ((), ("confirms", "dead")),
    ],
)
async def test_a_dead_server_does_not_delay_light(
    touched: tuple[str, ...], others: tuple[str, ...]
) -> None:
    async with site(*touched, *others) as (engine, _):
        await engine.confirm_command([f"srv{n}" for n in range(len(touched))], 10)


@pytest.mark.parametrize(
    ("touched", "others"),
    [
        (("refuses",), ("confirms",)),
        (("confirms", "refuses"), ()),
        (("dead", "refuses"), ()),
        (("dead",), ("confirms", "refuses")),
    ],
)
async def test_one_refusal_is_enough(touched: tuple[str, ...], others: tuple[str, ...]) -> None:
    async with site(*touched, *others) as (engine, _):
        with pytest.raises(Fenced):
            await engine.confirm_command([f"srv{n}" for n in range(len(touched))], 60)


@pytest.mark.parametrize("says", [("dead",), ("hangs", "dead"), ("dead", "hangs")])
async def test_without_any_answer_light_is_not_changed(says: tuple[str, ...]) -> None:
    async with site(*says) as (engine, _):
        with pytest.raises(EngineError) as failed:
            await engine.confirm_command(["srv0"], 2)
        assert failed.value.code == "unavailable"
        assert not isinstance(failed.value, Fenced)
        assert failed.value.hint


async def test_other_servers_are_not_asked_when_a_touched_one_answers() -> None:
    """So an agent that lies can block the light of its own server only."""
    async with site("confirms", "refuses") as (engine, commanders):
        await engine.confirm_command(["srv0"], 60)
        assert commanders[1].asked == 0


async def test_a_server_that_is_not_in_the_site_is_ignored() -> None:
    async with site("confirms") as (engine, _):
        await engine.confirm_command(["srv9"], 60)
