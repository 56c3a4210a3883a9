"""Asks an engine for its ranks, their output, and commands in them."""

from __future__ import annotations

import asyncio
import os
import select
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TypeVar

from agentlink.ranks import RankSpec
from agentlink.values import Typed, WindowSize
from base import clock
from controller.devices.engine import (
    ExecEnd,
    ExecOutput,
    ExecStart,
    ExecutionEngine,
    RankState,
    RankStatus,
)

T = TypeVar("T")
TICKS = ("sh", "-c", "i=0; while :; do i=$((i+1)); echo $i; sleep 0.05; done")
SLEEP = ("sleep", "600")


class Rig(Protocol):
    """An engine with at least two endpoints and no ranks."""

    engine: ExecutionEngine

    def spec(self, rank: int, *command: str, job: str = "red", epoch: int = 1) -> RankSpec:
        """Return a rank on the endpoint of the same number."""
        ...


async def until(ask: Callable[[], Awaitable[T]], good: Callable[[T], bool]) -> T:
    """Ask until the answer is good; fail after a minute."""
    deadline = clock.monotonic() + 60
    while not good(answer := await ask()):
        assert clock.monotonic() < deadline, f"still {answer!r}"
        await asyncio.sleep(0.05)
    return answer


async def when_ended(rig: Rig, rank: int) -> RankStatus:
    """Wait until a rank has exited; return its status."""

    def ended(statuses: list[RankStatus]) -> bool:
        return any(s.rank == rank and s.state is RankState.EXITED for s in statuses)

    return next(s for s in await until(rig.engine.observe, ended) if s.rank == rank)


def has_ended(pid: int) -> bool:
    """Wait until a process has ended, half a minute at most; a zombie has ended."""
    try:
        pidfd = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    try:
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        return bool(poll.poll(30_000))
    finally:
        os.close(pidfd)


async def all_ended(word: str) -> None:
    """Wait until no process has ``word`` in its command line."""

    def found() -> bool:
        for entry in Path("/proc").iterdir():
            with suppress(OSError):
                if entry.name.isdecimal() and word.encode() in (entry / "cmdline").read_bytes():
                    return True
        return False

    await until(lambda: asyncio.to_thread(found), lambda left: not left)


async def output(rig: Rig, rank: int, job: str = "red") -> list[str]:
    """Return the output of a rank so far."""
    return [line.text async for line in rig.engine.logs(job, rank, None, False)]


async def seen(rig: Rig) -> list[RankStatus]:
    """Return all ranks once every server has answered: a late answer does not mean no ranks."""
    found: list[RankStatus] = []

    async def answered() -> bool:
        found[:] = await rig.engine.observe()
        return all(rig.engine.reachable().values())

    await until(answered, bool)
    return found


async def states(rig: Rig) -> dict[int, RankState]:
    """Return rank -> state."""
    return {s.rank: s.state for s in await seen(rig)}


async def quiet(rig: Rig, rank: int) -> list[str]:
    """Wait until a rank's output stops growing, and return it.

    Some output from before a freeze may reach the log later.
    """
    lines: list[str] = []

    async def same() -> bool:
        before = await output(rig, rank)
        await asyncio.sleep(1)
        lines[:] = await output(rig, rank)
        return lines == before

    await until(same, bool)
    return lines


@dataclass
class Exec:
    """A command in a rank, and what came of it so far."""

    pieces: AsyncGenerator[ExecOutput | ExecEnd]
    inputs: asyncio.Queue[Typed | WindowSize]
    out: bytes = b""
    err: bytes = b""

    async def next(self) -> ExecEnd | None:
        """Take one piece; return the end if it is that."""
        piece = await anext(self.pieces)
        if isinstance(piece, ExecEnd):
            return piece
        if piece.stream == "stdout":
            self.out += piece.data
        else:
            self.err += piece.data
        return None

    async def end(self) -> ExecEnd:
        """Take everything."""
        while (end := await self.next()) is None:
            pass
        return end

    async def shows(self, text: bytes) -> None:
        """Wait until stdout contains ``text``."""
        while text not in self.out:
            assert await self.next() is None, f"it ended with {self.out!r}"


@asynccontextmanager
async def executing(
    rig: Rig, *command: str, rank: int = 0, job: str = "red", epoch: int = 1, **options: Any
) -> AsyncIterator[Exec]:
    """Run a command in a rank; leave it at the end."""
    inputs: asyncio.Queue[Typed | WindowSize] = asyncio.Queue()

    async def given() -> AsyncIterator[Typed | WindowSize]:
        while True:
            yield await inputs.get()

    server = rig.spec(0).server
    limits = {"idle_s": 60.0, "total_s": 60.0, **options}
    pieces = rig.engine.exec(ExecStart(job, rank, epoch, server, command, **limits), given())
    async with aclosing(pieces), asyncio.timeout(90):
        yield Exec(pieces, inputs)
