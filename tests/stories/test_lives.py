"""A program dies between two turns of the loop, and nothing of it runs after."""

from __future__ import annotations

import asyncio

import pytest

from testbed.simulated.lives import DiedError, Life
from tests.stories.telling import Log, tell

LINES = 10


async def _program(log: Log) -> None:
    async def beside() -> None:
        while True:
            await asyncio.to_thread(log.note, "a thread")
            await asyncio.sleep(0.5)

    task = asyncio.create_task(beside())
    try:
        for line in range(LINES):
            log.note(f"line {line}")
            await asyncio.sleep(1.0)
    finally:
        log.note("cleanup")
        task.cancel()


@pytest.mark.parametrize("turns", range(0, 40, 3))
def test_nothing_of_the_dead_runs(turns: int) -> None:
    at_death: list[str] = []

    async def told(log: Log) -> None:
        life = Life()
        life.end(turns)
        with pytest.raises(DiedError):
            await life.run(_program(log))
        at_death.extend(log.lines)
        await asyncio.sleep(2.0 * LINES)
        assert log.lines == at_death

    tell(told, seed=turns)
    assert not any("cleanup" in line for line in at_death)


def test_who_lives_on_answers() -> None:
    async def told(log: Log) -> None:
        life = Life()
        life.end(100_000)
        life.end(None)
        await life.run(_program(log))
        assert sum("line" in line for line in log.lines) == LINES

    tell(told, seed=1)
