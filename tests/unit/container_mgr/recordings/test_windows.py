"""When the agent asks profilers, and what comes of it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
import pytest_asyncio

from agentlink.ranks import RankKey
from agentlink.values import Record
from container_mgr.recordings import recordings, xspace
from container_mgr.recordings.asking import AskError, Failure
from container_mgr.recordings.bursts import Bursts
from container_mgr.recordings.recordings import MARK, Recordings
from container_mgr.recordings.xspace import WindowProfile
from container_mgr.rpc import messages
from tests.parts.agent.profiles import BEGAN_AT, made
from tests.unit.container_mgr.recordings.parts import FakeRank

PORT = 12345
STEPS = Bursts(window_s=5.0, bursts=10, period_s=0.5)
WINDOW = xspace.read(made(*[("a:CollectiveReduceV2", at, at + 20) for at in range(0, 2000, 100)]))


class World:
    """Recordings over ranks of a fake /proc; a test says what profilers answer."""

    def __init__(self, proc: Path) -> None:
        self.proc = proc
        self.ranks: list[FakeRank] = []
        self.paused: set[str] = set()
        self.asked: list[str] = []
        self.seconds: list[float] = []
        self.answer: WindowProfile | Failure = WINDOW
        self.meanwhile: Callable[[], None] = lambda: None
        self.kept = self.made()

    def made(self) -> Recordings:
        return Recordings(
            paused=self.paused.__contains__,
            ask=self.ask,
            proc=self.proc,
            clock=lambda: BEGAN_AT / 1e9 + 2,
            monotonic=lambda: 60.0 * (1 + len(self.asked)),
        )

    async def ask(self, pidfd: int, address: str, seconds: float) -> WindowProfile:
        self.asked.append(address)
        self.seconds.append(seconds)
        self.meanwhile()
        if isinstance(self.answer, str):
            raise AskError(self.answer)
        return self.answer

    def rank(
        self,
        number: int = 0,
        port: int = PORT,
        record: Record = Record.FULL,
        *,
        steps: bool = True,
    ) -> FakeRank:
        key = RankKey("red", number, 1)
        one = FakeRank(self.proc, key, record=record, profiler_port=port)
        self.ranks.append(one)
        self.kept.begin(one.container)
        if steps:
            self.steps()
        return one

    def steps(self) -> None:
        """Let the NICs of all ranks have shown steps."""
        for watched in self.kept._watched.values():
            watched.wire = STEPS

    def state(self) -> tuple[str, int]:
        (found,) = self.kept.of()
        return found.read.state, sum(row.calls for row in found.read.operations)


@pytest_asyncio.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    one = World(tmp_path)
    yield one
    await one.kept.close()
    for rank in one.ranks:
        rank.end()


async def test_a_window_is_reported(world: World) -> None:
    world.rank()
    await world.kept.ask()
    await world.kept.read()
    assert world.asked == [f"10.77.0.1:{PORT}"]
    (found,) = messages.recordings_of(world.kept.of()).recordings
    assert found.state == "recording"
    (row,) = found.operations
    assert (row.op, row.source, row.calls, row.bytes) == ("all_reduce", "tf", 20, 0)
    assert len(found.calls) == 20
    assert found.profiler.comm_s == pytest.approx(0.4)
    assert found.profiler.exposed_s == pytest.approx(0.4)
    assert 0 < found.coverage < 0.1


async def test_without_full_nobody_is_asked(world: World) -> None:
    world.rank(port=0, record=Record.COUNTS)
    await world.kept.ask()
    assert world.asked == []


async def test_a_program_that_profiles_itself_is_asked_once_by_all_agents(world: World) -> None:
    rank = world.rank()
    world.answer = "busy"
    await world.kept.ask()
    await world.kept.ask()
    assert len(world.asked) == 1
    assert world.state()[0] == "refused"
    await world.kept.close()
    world.kept = world.made()  # the agent has restarted
    world.kept.begin(rank.container)
    await world.kept.ask()
    assert len(world.asked) == 1
    assert world.state()[0] == "refused"


async def test_a_mark_that_cannot_be_left_is_no_error(world: World) -> None:
    rank = world.rank()
    (rank.directory / MARK).symlink_to("/etc/passwd")
    world.answer = "busy"
    await world.kept.ask()
    assert world.state()[0] == "refused"


async def test_a_frozen_rank_is_not_asked(world: World) -> None:
    rank = world.rank()
    world.paused.add(rank.key.container)
    await world.kept.ask()
    assert world.asked == []


@pytest.mark.parametrize("answer", [WINDOW, "silent", "busy", "closed"])
async def test_a_freeze_spoils_a_window(world: World, answer: WindowProfile | Failure) -> None:
    world.rank()
    world.answer = answer
    world.meanwhile = lambda: world.kept.disturb("red")
    await world.kept.ask()
    assert world.state() == ("absent", 0)
    world.meanwhile, world.answer = (lambda: None), WINDOW
    await world.kept.ask()
    assert world.state() == ("recording", 20)


async def test_a_rank_that_ends_while_it_is_asked_keeps_its_windows(world: World) -> None:
    rank = world.rank()
    await world.kept.ask()
    world.answer = "closed"
    world.meanwhile = rank.end
    await world.kept.ask()
    name = rank.key.container
    world.kept.end(name)
    closing = world.kept._watched[name].closing
    assert closing is not None
    await closing
    assert world.state() == ("recording", 20)
    await world.kept.ask()
    assert len(world.asked) == 2


async def test_those_asked_least_come_first(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recordings, "MOST_ASKED", 2)
    for number in range(4):
        world.rank(number)
    await world.kept.ask()
    await world.kept.ask()
    assert [r.read.state for r in world.kept.of()] == ["recording"] * 4


async def test_a_process_that_cannot_start_is_no_failure_of_the_rank(world: World) -> None:
    world.rank()

    def full() -> None:
        raise BlockingIOError(11, "no more processes")

    world.meanwhile = full
    await world.kept.ask()
    world.meanwhile = lambda: None
    await world.kept.ask()
    assert world.state() == ("recording", 20)


async def test_a_rank_is_not_asked_before_it_makes_steps(world: World) -> None:
    """TensorFlow that is profiled while it starts corrupts its heap and aborts later."""
    world.rank(steps=False)
    await world.kept.ask()
    assert world.asked == []
    (found,) = world.kept.of()
    assert found.read.reason == "its NIC has shown no steps yet: its profiler is not asked before"
    world.steps()
    await world.kept.ask()
    await world.kept.read()
    assert len(world.asked) == 1
    (found,) = world.kept.of()
    assert (found.read.state, found.read.reason) == ("recording", "")
