"""Freezing and thawing with the kernel's freezer and an engine that keeps its own state."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from agentlink.ranks import RankKey
from agentlink.values import NicSpec
from container_mgr.docker.engine import EngineRefusedError
from container_mgr.kernel.freezer import Freezer, FreezerState
from container_mgr.ranks.freezing import Freezing, with_kernel_state
from container_mgr.ranks.living import LiveContainer
from container_mgr.values import AgentError, Container


@dataclass
class Engine:
    """An engine that knows only its own pauses, and refuses as runc does."""

    believes: dict[str, Container] = field(default_factory=dict)
    freezers: dict[str, Freezer] = field(default_factory=dict)
    calls: list[str] = field(default_factory=list)

    async def inspect(self, name: str) -> Container | None:
        return self.believes.get(name)

    async def pause(self, name: str) -> None:
        self._turn(name, "pause", FreezerState.THAWED, frozen=True)

    async def unpause(self, name: str) -> None:
        self._turn(name, "unpause", FreezerState.FROZEN, frozen=False)

    def _turn(self, name: str, call: str, need: FreezerState, *, frozen: bool) -> None:
        self.calls.append(f"{call} {name}")
        one = self.freezers.get(name)
        if one is not None:
            if one.state() is not need:
                raise EngineRefusedError(f"{name} is {one.state()}")
            one.request(frozen=frozen)
        state = "paused" if frozen else "running"
        self.believes[name] = replace(self.believes[name], state=state, engine_paused=frozen)


@dataclass
class World:
    """Two ranks of one job in a tree of plain files."""

    tmp_path: Path
    engine: Engine = field(default_factory=Engine)

    def rank(self, number: int, *, own_freezer: bool = True) -> LiveContainer:
        container = Container(
            id=f"{number}" * 64,
            key=RankKey("red", number, 1),
            endpoint=f"gpu{number}",
            digest="d",
            nic=NicSpec("e", "10.0.0.1", 24, "02:00:00:00:00:01"),
            share=None,
            state="running",
            pid=100 + number,
        )
        one = None
        if own_freezer:
            group = self.tmp_path / container.id
            group.mkdir()
            (group / "freezer.state").write_text("THAWED\n")
            one = self.engine.freezers[container.key.container] = Freezer(1, group)
        net = self.tmp_path / "proc" / str(container.pid) / "net"
        net.mkdir(parents=True)
        (net / "sockstat").write_text("TCP: inuse 0\n")
        self.engine.believes[container.key.container] = container
        return LiveContainer(container, -1, None, one)

    def freezing(self, limit_s: float = 30.0) -> Freezing:
        return Freezing(
            self.engine,  # type: ignore[arg-type]
            limit_s=limit_s,
            proc=self.tmp_path / "proc",
        )


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def cold(rank: LiveContainer) -> FreezerState:
    assert rank.freezer is not None
    return rank.freezer.state()


async def test_a_job_freezes_and_thaws_without_the_engine(world: World) -> None:
    ranks = [world.rank(0), world.rank(1)]
    done = await world.freezing().freeze(ranks)
    assert [c.state for c in done.containers] == ["paused", "paused"]
    assert done.settled
    assert [cold(r) for r in ranks] == [FreezerState.FROZEN] * 2
    done = await world.freezing().thaw(ranks)
    assert [c.state for c in done.containers] == ["running", "running"]
    assert [cold(r) for r in ranks] == [FreezerState.THAWED] * 2
    assert world.engine.calls == []


async def test_the_state_is_the_kernels_not_the_engines(world: World) -> None:
    rank = world.rank(0)
    await world.freezing().freeze([rank])
    says = await world.engine.inspect("ll-red-0-1")
    assert says is not None
    assert says.state == "running"
    assert with_kernel_state(says, rank).state == "paused"
    assert with_kernel_state(replace(says, state="exited"), rank).state == "exited"
    assert with_kernel_state(says, None).state == "running"


async def test_the_engine_unpauses_what_it_paused(world: World) -> None:
    rank, freezing = world.rank(0), world.freezing()
    await world.engine.pause("ll-red-0-1")
    await freezing.freeze([rank])  # already frozen: the agent did not freeze it
    await freezing.thaw([rank])
    assert world.engine.calls == ["pause ll-red-0-1", "unpause ll-red-0-1"]
    assert cold(rank) is FreezerState.THAWED


async def test_a_rank_that_an_earlier_agent_froze_is_thawed(world: World) -> None:
    rank = world.rank(0)
    await world.freezing().freeze([rank])
    rank.frozen_by_us = False  # as in a new agent
    assert with_kernel_state(rank.container, rank).state == "paused"
    await world.freezing().thaw([rank])
    assert cold(rank) is FreezerState.THAWED
    assert world.engine.calls == []


async def test_an_engine_with_a_stale_pause_is_corrected(world: World) -> None:
    rank = world.rank(0)
    await world.engine.pause("ll-red-0-1")
    rank.freezer.request(frozen=False)  # type: ignore[union-attr]
    now = world.engine.believes["ll-red-0-1"]
    await world.freezing().release(now, rank)
    assert not world.engine.believes["ll-red-0-1"].engine_paused
    assert cold(rank) is FreezerState.THAWED


async def test_without_a_freezer_the_engine_pauses(world: World) -> None:
    ranks = [world.rank(0), world.rank(1, own_freezer=False)]
    done = await world.freezing().freeze(ranks)
    assert [c.state for c in done.containers] == ["paused", "paused"]
    await world.freezing().thaw(ranks)
    assert world.engine.calls == ["pause ll-red-1-1", "unpause ll-red-1-1"]


async def test_the_engine_pauses_a_rank_whose_freezer_refuses(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    rank = world.rank(0)
    refused = PermissionError("read-only")

    def no(self: Freezer, *, frozen: bool) -> None:
        raise refused

    world.engine.freezers.clear()
    monkeypatch.setattr(Freezer, "request", no)
    done = await world.freezing().freeze([rank])
    assert done.faults == ()
    assert world.engine.calls == ["pause ll-red-0-1"]


async def test_a_rank_that_cannot_be_frozen_is_a_fault_and_keeps_running(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    good, stuck = world.rank(0), world.rank(1)
    state = Freezer.state

    def freezing(self: Freezer) -> FreezerState:
        seen = state(self)
        return (
            FreezerState.FREEZING if self == stuck.freezer and seen is FreezerState.FROZEN else seen
        )

    monkeypatch.setattr(Freezer, "state", freezing)
    done = await world.freezing(limit_s=0.01).freeze([good, stuck])
    assert [(f.code, f.obj) for f in done.faults] == [("timeout", "ll-red-1-1")]
    assert [c.key.rank for c in done.containers] == [0]
    assert (cold(good), cold(stuck)) == (FreezerState.FROZEN, FreezerState.THAWED)
    await world.freezing().thaw([good, stuck])
    assert cold(good) is FreezerState.THAWED


async def test_a_frozen_parent_is_a_fault(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    rank = world.rank(0)
    await world.freezing().freeze([rank])
    monkeypatch.setattr(Freezer, "state", lambda self: FreezerState.FROZEN)
    done = await world.freezing(limit_s=0.01).thaw([rank])
    assert [(f.code, f.obj) for f in done.faults] == [("failed", "ll-red-0-1")]
    with pytest.raises(AgentError, match="the cgroup above it"):
        await world.freezing(limit_s=0.01).release(rank.container, rank)


async def test_a_rank_that_is_being_stopped_is_not_frozen(world: World) -> None:
    rank = world.rank(0)
    rank.ending = True
    await world.freezing().freeze([rank])
    assert cold(rank) is FreezerState.THAWED


async def test_a_rank_that_ended_meanwhile_is_not_a_fault(world: World) -> None:
    rank = world.rank(0)
    assert rank.freezer is not None
    (rank.freezer.group / "freezer.state").unlink()
    rank.freezer.group.rmdir()
    done = await world.freezing().freeze([rank])
    assert (done.containers, done.faults) == ((), ())
    assert (await world.freezing().thaw([rank])).faults == ()


async def test_data_in_flight_of_an_rdma_adapter_is_unknown(world: World) -> None:
    rank = world.rank(0)
    rank.container = replace(rank.container, rdma_device="mlx5_0")
    assert (await world.freezing().freeze([rank])).settled is None
