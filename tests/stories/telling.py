"""Tells a story: a simulation by seed, and a log of what happened in it."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from base import clock
from testbed.simulated.loop import VirtualLoop, simulation


class Log:
    """What happened, a line each; the same for the same story and seed, byte for byte."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def note(self, text: str) -> None:
        """Add a line with the time of the simulation."""
        self.lines.append(f"{clock.time() % 1e6:12.6f} {text}")

    def __str__(self) -> str:
        return "\n".join(self.lines)


def tell(story: Callable[[Log], Awaitable[None]], seed: int) -> Log:
    """Run ``story`` with the order that ``seed`` draws; return what happened."""
    log = Log()

    async def told() -> None:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, VirtualLoop)
        try:
            await story(log)
        except Exception as error:
            error.add_note(str(log))
            raise
        finally:
            for life in loop.lives:
                life.clear()

    with simulation() as time, asyncio.Runner(loop_factory=lambda: VirtualLoop(time, seed)) as run:
        run.run(told())
    return log
