"""Scopes over agents with cgroups of plain files, and over the controller's fake of an engine."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import grpc
import pytest
import pytest_asyncio

from agentlink.values import ScopeState
from container_mgr.rpc.calls import RunningChanges
from container_mgr.rpc.scopes import ScopeCalls
from container_mgr.scopes.scopes import Scopes
from controller.devices.agents import scopes as agent_scopes
from controller.devices.agents.engine import AgentEngine
from controller.devices.agents.scopes import scopes_of
from controller.devices.engine import EngineError, Fenced
from pki import CONTROLLER
from protos import agent_pb2 as pb
from protos import agent_pb2_grpc
from sitefile import load_site
from tests.contract.scope_contract import BOTH, SCOPE, ScopeContract
from tests.parts.agent.rig import AgentRig, agent_rig, raw
from tests.parts.agent.trees import Tree, asked
from tests.parts.controller.engine import FakeEngine
from tests.parts.sites import PAPER


@dataclass
class Agents:
    """Two agents that serve nothing but scopes, in plain text."""

    directory: Path
    engine: AgentEngine = field(init=False)
    trees: dict[str, Tree] = field(default_factory=dict)
    calls: dict[str, ScopeCalls] = field(default_factory=dict)
    servers: dict[str, grpc.aio.Server] = field(default_factory=dict)

    async def up(self) -> None:
        agents = {}
        for name in BOTH:
            tree = self.trees[name] = Tree(self.directory / name, 1)
            tree.top()
            scopes = Scopes(tree.groups(), proc=tree.proc, sysfs=tree.sysfs)
            self.calls[name] = ScopeCalls(scopes, RunningChanges())
            server = self.servers[name] = grpc.aio.server()
            agent_pb2_grpc.add_AgentServicer_to_server(self.calls[name], server)
            agents[name] = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
            await server.start()
        self.engine = AgentEngine(agents)

    async def down(self) -> None:
        await self.engine.close()
        for server in self.servers.values():
            await server.stop(0)

    def begin(self, scope: str, server: str) -> None:
        self.trees[server].step(int(scope.partition(":")[2]))

    def frozen(self, scope: str, server: str) -> bool:
        steps = self.trees[server].groups().steps(scope.partition(":")[2]).freezers
        return bool(steps) and all(map(asked, steps))

    async def lose(self, server: str) -> None:
        await self.servers[server].stop(0)

    def without_cgroups(self, server: str) -> None:
        shutil.rmtree(self.trees[server].root)

    def forbid(self, server: str) -> None:
        self.calls[server]._scopes = None


@dataclass
class Faked:
    """The fake, which has more servers than two."""

    engine: FakeEngine

    def begin(self, scope: str, server: str) -> None:
        self.engine.scoped.setdefault(server, {})[scope] = ScopeState.RUNNING

    def frozen(self, scope: str, server: str) -> bool:
        return self.engine.scoped.get(server, {}).get(scope) is ScopeState.FROZEN

    async def lose(self, server: str) -> None:
        self.engine.lost.add(server)

    def without_cgroups(self, server: str) -> None:
        self.engine.unscoped[server] = "not_found"

    def forbid(self, server: str) -> None:
        self.engine.unscoped[server] = "forbidden"


class TestAgents(ScopeContract):
    @pytest_asyncio.fixture
    async def scope_rig(self, tmp_path: Path) -> AsyncIterator[Agents]:
        agents = Agents(tmp_path)
        await agents.up()
        yield agents
        await agents.down()

    async def test_it_is_settled_when_all_servers_say_so(self, scope_rig: Agents) -> None:
        for number, server in enumerate(BOTH):
            step = scope_rig.trees[server].step(4711)
            scope_rig.trees[server].process(50 + number, "net:[3]", step.group)
        assert await scope_rig.engine.freeze_scope(SCOPE, BOTH) is True
        (scope_rig.trees["srv1"].proc / "51" / "net" / "sockstat").unlink()
        assert await scope_rig.engine.freeze_scope(SCOPE, BOTH) is None

    async def test_an_invalid_scope_is_refused(self, scope_rig: Agents) -> None:
        for scope in ("red", "slurm:../1", "slurm:" + "9" * 400):
            with pytest.raises(EngineError) as refused:
                await scope_rig.engine.freeze_scope(scope, BOTH)
            assert refused.value.code == "invalid"


class TestFake(ScopeContract):
    @pytest.fixture
    def scope_rig(self) -> Faked:
        site = load_site(PAPER)
        engine = FakeEngine(site)
        engine.unscoped = {s.name: "forbidden" for s in site.servers if s.name not in BOTH}
        return Faked(engine)


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AgentRig]:
    tree = Tree(tmp_path / "tree", 1)
    tree.step(4711)
    scopes = Scopes(tree.groups(), proc=tree.proc, sysfs=tree.sysfs)
    async with agent_rig(tmp_path / "rig", scopes=scopes) as one:
        yield one


async def test_an_older_controller_may_look_but_not_touch(rig: AgentRig) -> None:
    mine = raw(rig.directory / "controller", CONTROLLER)
    async with rig.controller(mine) as older, rig.controller(mine) as successor:
        older.command(1)
        successor.command(2)
        await older.freeze_scope(SCOPE, ["srv0"])
        await successor.thaw_scope(SCOPE, ["srv0"])
        for call in (older.freeze_scope, older.thaw_scope):
            with pytest.raises(Fenced):
                await call(SCOPE, ["srv0"])
        assert await older.scopes(10.0) == {"srv0": {SCOPE: ScopeState.RUNNING}}
        assert rig.fence.term == 2


class Odd(agent_pb2_grpc.AgentServicer):
    """Says what it is told to say about scopes."""

    def __init__(self, **replies: Any) -> None:
        self.replies = replies

    async def FreezeScope(self, request: Any, context: Any) -> Any:  # noqa: N802
        return self.replies["FreezeScope"]

    async def ThawScope(self, request: Any, context: Any) -> Any:  # noqa: N802
        await asyncio.sleep(3600)

    async def Scopes(self, request: Any, context: Any) -> Any:  # noqa: N802
        await asyncio.sleep(3600)


async def asking(agent: agent_pb2_grpc.AgentServicer) -> tuple[grpc.aio.Server, AgentEngine]:
    server = grpc.aio.server()
    agent_pb2_grpc.add_AgentServicer_to_server(agent, server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    await server.start()
    return server, AgentEngine({"srv0": address}, call_timeout_s=0.5)


async def test_what_an_agent_says_is_bounded_and_silence_is_a_time_out() -> None:
    flood = pb.ScopeReply(
        faults=[pb.Fault(code="odd", object="server/srv1", message="x" * 5000)] * 500
    )
    server, engine = await asking(Odd(FreezeScope=flood))
    with pytest.raises(EngineError) as failed:
        await engine.freeze_scope(SCOPE, ["srv0"])
    assert len(failed.value.faults) == 16
    assert {(f.code, f.obj) for f in failed.value.faults} == {("failed", f"scope/{SCOPE}")}
    assert len(failed.value.faults[0].message) < 1100
    with pytest.raises(EngineError) as silent:
        await engine.thaw_scope(SCOPE, ["srv0"])
    assert silent.value.code == "timeout"
    assert await engine.scopes(0.2) == {}
    await engine.close()
    await server.stop(0)


async def test_an_older_agent_freezes_no_scope() -> None:
    server, engine = await asking(agent_pb2_grpc.AgentServicer())
    with pytest.raises(EngineError) as failed:
        await engine.freeze_scope(SCOPE, ["srv0"])
    assert "older" in failed.value.hint
    assert await engine.scopes(10.0) == {}
    assert engine.reachable() == {"srv0": True}
    await engine.close()
    await server.stop(0)


def test_scopes_without_a_name_or_a_state_are_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        pb.ScopeEntry(scope=scope, state=state)
        for scope, state in (
            ("slurm:1", pb.SCOPE_STATE_FROZEN),
            ("slurm:2", pb.SCOPE_STATE_UNSPECIFIED),
            ("slurm:3", 99),
            ("slurm:4\n", pb.SCOPE_STATE_FROZEN),
            ("x" * 500, pb.SCOPE_STATE_FROZEN),
            ("slurm:5", pb.SCOPE_STATE_PARTLY),
        )
    ]
    told = pb.ScopesReply(observes=True, scopes=entries)
    assert scopes_of(told) == {"slurm:1": ScopeState.FROZEN, "slurm:5": ScopeState.PARTLY}
    monkeypatch.setattr(agent_scopes, "MAX_SCOPES", 3)
    assert list(scopes_of(told)) == ["slurm:1"]
