"""Commands in ranks: their clocks, and their ends when engine or agent fail."""

from __future__ import annotations

import os
import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from agentlink.values import WindowSize
from container_mgr.ranks import execs
from container_mgr.ranks.execs import ExecCommand, ExecDeadline, check, fits
from container_mgr.values import AgentError
from controller.devices.engine import EngineError, ExecEnd, Fenced
from tests.parts.agent.ranks import SLEEP, TICKS, all_ended, executing, until
from tests.parts.agent.rig import AgentRig, agent_rig


@pytest_asyncio.fixture
async def rig(tmp_path: Path) -> AsyncIterator[AgentRig]:
    async with agent_rig(tmp_path) as one:
        await one.engine.start([one.spec(0, *SLEEP)], 60)
        yield one


def start(*command: str, job: str = "red", window: WindowSize | None = None) -> ExecCommand:
    return ExecCommand(job, 0, command, False, window, 10, 100)


def test_silence_and_time_end_a_command() -> None:
    clock = ExecDeadline.at(start("true"), 1000)
    assert clock.passed(1009, frozen=False) == ""
    assert "no input and no output for 10 s" in clock.passed(1010, frozen=False)
    clock.active = 1099
    assert "time limit" in clock.passed(1100, frozen=False)


def test_a_freeze_is_no_silence_but_takes_time() -> None:
    clock = ExecDeadline.at(start("true"), 0)
    assert clock.passed(9, frozen=False) == ""
    assert clock.passed(90, frozen=True) == ""
    assert clock.passed(90.5, frozen=False) == ""
    assert "no input" in clock.passed(91.5, frozen=False)
    assert "time limit" in clock.passed(100, frozen=True)


@given(st.lists(st.tuples(st.floats(0, 5), st.booleans()), max_size=40))
def test_a_command_is_silent_as_long_as_it_was_awake(steps: list[tuple[float, bool]]) -> None:
    clock, now, awake = (
        ExecDeadline.at(ExecCommand("red", 0, ("true",), False, None, 10, 1e6), 0),
        0.0,
        0.0,
    )
    for pause, frozen in steps:
        now, awake = now + pause, awake + (0 if frozen else pause)
        if abs(awake - 10) > 1e-6:
            assert bool(clock.passed(now, frozen=frozen)) == (awake >= 10)


def test_limits_are_those_of_the_agent_at_most() -> None:
    for asked in (0, -1, 1e12):
        clock = ExecDeadline.at(ExecCommand("red", 0, ("true",), False, None, asked, asked), 0)
        assert (clock.idle_s, clock.total_s) == (execs.MAX_IDLE_S, execs.MAX_TOTAL_S)


@pytest.mark.parametrize(
    "wrong",
    [
        start(),
        start("a\0b"),
        start("x" * 2**20),
        start("true", job="../x"),
        start("true", window=WindowSize(0, 80)),
        start("true", window=WindowSize(24, 2**31)),
    ],
)
def test_what_cannot_run_is_invalid(wrong: ExecCommand) -> None:
    with pytest.raises(AgentError) as refused:
        check(wrong)
    assert refused.value.code == "invalid"
    assert not fits(WindowSize(24, 0))


@pytest.mark.real_time
async def test_a_command_that_an_earlier_agent_left_is_ended(rig: AgentRig) -> None:
    word = uuid.uuid4().hex
    async with executing(rig, *TICKS, word) as run:
        await run.shows(b"1\n")
        await rig.ranks.recover()
        await all_ended(word)
        assert (await run.end()).exit_code == 137


@pytest.mark.real_time
async def test_a_start_without_an_answer_is_ended_when_it_happens(
    rig: AgentRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine hangs, its caller is told, and then the engine begins the command."""
    monkeypatch.setattr(execs, "_LATE_S", 60.0)
    rig.docker.lost["exec_attach"] = 1
    word = uuid.uuid4().hex
    async with executing(rig, *TICKS, word) as run:
        with pytest.raises(EngineError) as failed:
            await run.end()
    assert failed.value.code == "timeout"
    (late,) = rig.docker.execs.values()
    await late.begin()
    await all_ended(word)
    late.close()


async def again(rig: AgentRig) -> None:
    """Run a command as soon as there is a place for it."""

    async def run() -> ExecEnd | None:
        try:
            async with executing(rig, "true") as command:
                return await command.end()
        except EngineError as error:
            assert error.code == "conflict"
            return None

    assert await until(run, lambda end: end is not None) == ExecEnd(0)


@pytest.mark.real_time
@pytest.mark.parametrize("words", [("env", "-i"), ("sh", "-c", 'env -i "$@" & :', "x")])
async def test_a_command_without_an_environment_gives_its_place_back(
    rig: AgentRig, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    monkeypatch.setattr(execs, "MOST", 1)
    word = str(10**9 + uuid.uuid4().int % 10**9)
    async with executing(rig, *words, "sh", "-c", f"echo 1; exec sleep {word}") as run:
        await run.shows(b"1\n")
    await all_ended(word)
    await again(rig)


@pytest.mark.real_time
async def test_a_place_is_given_back_also_while_the_kernel_keeps_a_process(
    rig: AgentRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(execs, "MOST", 1)
    rig.groups.stuck.append(1)
    async with executing(rig, *TICKS) as run:
        await run.shows(b"1\n")
    async with executing(rig, "true") as second:
        with pytest.raises(EngineError) as refused:
            await second.end()
    assert refused.value.code == "conflict"
    monkeypatch.setattr(execs, "PLACE_S", 0.1)
    rig.groups.stuck.clear()
    await again(rig)
    rig.groups.stuck.append(1)
    for _ in range(2):
        await again(rig)


async def test_an_older_controller_runs_no_command(rig: AgentRig) -> None:
    rig.fence.raise_to(7)
    with pytest.raises(Fenced):
        async with executing(rig, "true") as run:
            await run.end()
    assert rig.docker.calls["exec_create"] == 0


@pytest.mark.real_time
async def test_a_command_whose_container_ends_was_killed(rig: AgentRig) -> None:
    async with executing(rig, "sh", "-c", "echo $$; exec sleep 600") as run:
        await run.shows(b"\n")
        os.kill(int(run.out), 9)  # as the end of its container does
        assert await run.end() == ExecEnd(137)
