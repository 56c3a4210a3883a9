"""A command in a rank that repeats its input, complains, and ends with 3."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator

from agentlink.values import Typed, WindowSize
from controller.devices.engine import ExecEnd, ExecOutput, ExecStart
from tests.parts.controller.engine import FakeEngine


class Repeater:
    """Every command of a rack's engine from now on."""

    def __init__(self, engine: FakeEngine) -> None:
        self.begun: list[ExecStart] = []
        self.ended = 0
        self.windows: list[WindowSize] = []
        self.end = ExecEnd(3)
        engine.exec = self.exec  # type: ignore[method-assign]

    async def exec(
        self, start: ExecStart, given: AsyncIterator[Typed | WindowSize]
    ) -> AsyncGenerator[ExecOutput | ExecEnd]:
        """Repeat the input to its end."""
        self.begun.append(start)
        try:
            async for item in given:
                match item:
                    case WindowSize():
                        self.windows.append(item)
                    case Typed(data=None):
                        break
                    case Typed(data=bytes(data)):
                        yield ExecOutput("stdout", data)
            yield ExecOutput("stderr", b"no more\n")
            yield self.end
        finally:
            self.ended += 1
