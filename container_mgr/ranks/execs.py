"""Runs commands in running ranks for callers who watch them.

A command lives no longer than its caller watches: when it ends, the caller leaves or a time-out
passes, all processes of its cgroup get SIGHUP and, a second later, SIGKILL. Its place is free when
the kernel has none of them any more, and after ``PLACE_S`` in any case: a freeze, or a process that
waits in the kernel, can delay their end. Output that is not read stays in the kernel's buffers,
and the command waits.
"""

from __future__ import annotations

import asyncio
import signal
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import structlog

from agentlink.values import Typed, WindowSize
from base import clock
from container_mgr.docker.attached import Attached, Stream
from container_mgr.docker.engine import DockerHost, EngineFailure, EngineRefusedError
from container_mgr.kernel.commands import CommandGroup, CommandGroups, waiting
from container_mgr.ranks import policy
from container_mgr.ranks.batch import fault_of
from container_mgr.values import AgentError, Container

MOST = 32
MOST_PER_RANK = 8
MAX_IDLE_S = 24 * 3600.0
MAX_TOTAL_S = 24 * 3600.0
MAX_CELLS = 4096
"""The largest number of rows, and of columns, of a terminal."""

GRACE_S = 1.0
PLACE_S = 120.0
"""How long an ending command may occupy its place."""
_TICK_S = 0.5
_END_S = 5.0
"""How long the engine may take to report the exit code once the output has ended."""
_BEGIN_S = 10.0
"""How long a started command may take until it waits for its cgroup."""
_RESIZE_S = 5.0
"""How long a new command may refuse the size of its terminal."""
_LATE_S = 30.0
"""How long a command that the engine has not started may still start."""
_FIRST_PAUSE_S = 0.01
_LONGEST_PAUSE_S = 1.0

_log = structlog.get_logger("container_mgr.ranks.execs")


Input = Typed | WindowSize


@dataclass(slots=True, frozen=True)
class ExecCommand:
    """A command to run, and its limits in seconds.

    ``epoch`` is the run that it is meant for; None is the newest one.
    """

    job: str
    rank: int
    command: tuple[str, ...]
    terminal: bool
    window: WindowSize | None
    idle_s: float
    total_s: float
    epoch: int | None = None


@dataclass(slots=True, frozen=True)
class Ending:
    """How a command ended: by itself with ``exit_code``, or by a limit, the ``reason``."""

    exit_code: int | None
    reason: str = ""


@dataclass(slots=True)
class ExecDeadline:
    """Decides when a command has run for too long. Pure: times are arguments, in seconds.

    A frozen rank can neither read nor write, so the idle time stands still; the total goes on.
    """

    idle_s: float
    total_s: float
    began: float
    active: float
    """When there was input or output, moved on by the time of freezes."""
    seen: float

    @classmethod
    def at(cls, start: ExecCommand, now: float) -> ExecDeadline:
        """Start with the limits of a command, as far as this agent allows them."""
        return cls(
            _limited(start.idle_s, MAX_IDLE_S), _limited(start.total_s, MAX_TOTAL_S), now, now, now
        )

    def passed(self, now: float, *, frozen: bool) -> str:
        """Return which limit has passed at ``now``; empty when none has."""
        if frozen:
            self.active += now - self.seen
        self.seen = now
        if now - self.began >= self.total_s:
            return f"it ran for {self.total_s:g} s, its time limit"
        if now - self.active >= self.idle_s:
            return f"it had no input and no output for {self.idle_s:g} s"
        return ""


@dataclass(slots=True, eq=False)
class _Command:
    """One command from its place to its end."""

    start: ExecCommand
    container: Container
    token: str
    """Names its cgroup."""
    ident: str = ""
    """The engine's name for it; empty before it has one."""
    begins: asyncio.Task[CommandGroup | None] | None = None
    """The last attempt to put it into its cgroup."""
    end: asyncio.Task[None] | None = None


class Execs:
    """All commands of one server. Belongs to one event loop."""

    def __init__(
        self,
        engine: DockerHost,
        observe: Callable[[str], Awaitable[list[Container]]],
        frozen: Callable[[Container], bool],
        *,
        groups: CommandGroups,
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        """``observe`` returns a job's containers; ``frozen`` reads the kernel's freezer."""
        self._engine = engine
        self._observe = observe
        self._frozen = frozen
        self._groups = groups
        self._clock = clock
        self._places: set[_Command] = set()
        self._ends: set[asyncio.Task[None]] = set()

    async def recover(self, containers: Sequence[Container]) -> None:
        """End commands whose callers an earlier agent lost."""
        for container in containers:
            if not container.alive:
                continue
            try:
                left = await asyncio.to_thread(self._groups.left, container)
            except (OSError, LookupError):  # it has ended, or no command could begin in it
                continue
            for group in left:
                self._in_background(self._clear(group))

    async def close(self) -> None:
        """Give the commands of the last callers their grace time, then stop."""
        if self._ends:
            _, late = await asyncio.wait(self._ends, timeout=3 * GRACE_S)
            for task in late:
                task.cancel()

    async def run(
        self,
        start: ExecCommand,
        given: AsyncIterator[Input],
        tell: Callable[[tuple[Stream, bytes]], Awaitable[None]],
    ) -> Ending:
        """Run a command; ``tell`` receives its output, piece by piece.

        Cancel to end it. Raises AgentError when it cannot start or the engine is lost.
        """
        check(start)
        name = _rank(start)
        container = await self._container(start, name)
        self._require_place(container, name)
        command = _Command(start, container, uuid.uuid4().hex)
        self._places.add(command)
        try:
            command.ident = await self._engine.exec_create(
                container.id, waiting(start.command), terminal=start.terminal
            )
            return await self._attached(command, given, tell)
        except EngineRefusedError as error:
            raise AgentError("conflict", name, str(error)) from error
        except EngineFailure as error:
            raise fault_of(name, error) from error
        except OSError as error:
            raise AgentError("unavailable", name, f"the engine was lost: {error}") from error
        finally:
            self._begin_end(command)

    async def _container(self, start: ExecCommand, name: str) -> Container:
        try:
            found = await self._observe(start.job)
        except EngineFailure as error:
            raise fault_of(name, error) from error
        mine = [c for c in found if c.key.rank == start.rank]
        newest = max(mine, key=lambda c: c.key.epoch, default=None)
        if newest is None:
            raise AgentError("not_found", name, "it is not on this server")
        if start.epoch not in (None, newest.key.epoch):
            raise AgentError(
                "conflict",
                name,
                f"the command is meant for run {start.epoch}, here is run {newest.key.epoch}",
                "start the command again",
            )
        if newest.state == "paused":
            raise AgentError("conflict", name, "it is frozen", "resume the job first")
        if newest.state != "running":
            raise AgentError("conflict", name, f"its container is {newest.state}, not running")
        return newest

    def _require_place(self, container: Container, name: str) -> None:
        here = sum(c.container.id == container.id for c in self._places)
        for found, most, where in (
            (here, MOST_PER_RANK, "in this rank"),
            (len(self._places), MOST, "on this server"),
        ):
            if found >= most:
                raise AgentError(
                    "conflict", name, f"{most} commands run {where} already", "end one of them"
                )

    async def _attached(
        self,
        command: _Command,
        given: AsyncIterator[Input],
        tell: Callable[[tuple[Stream, bytes]], Awaitable[None]],
    ) -> Ending:
        start = command.start
        streams = await self._engine.exec_attach(command.ident, terminal=start.terminal)
        try:
            await self._begin(command)
        except BaseException:
            streams.close()
            raise
        clock = ExecDeadline.at(start, self._clock())

        async def show() -> None:
            while (piece := await streams.read()) is not None:
                clock.active = self._clock()
                await tell(piece)
                clock.active = self._clock()

        async def watch() -> str:
            while True:
                frozen = self._frozen(command.container)
                if why := clock.passed(self._clock(), frozen=frozen):
                    self._begin_end(command)
                    return why
                await asyncio.sleep(_TICK_S)

        loop = asyncio.get_running_loop()
        shows, watches = loop.create_task(show()), loop.create_task(watch())
        feeds = loop.create_task(self._feed(command, streams, given, clock))
        try:
            await shows  # also after a limit: output from before the end is sent before it
            if watches.done():
                return Ending(None, watches.result())
            return Ending(await self._exit_code(command))
        finally:
            streams.close()
            for task in (shows, watches, feeds):
                task.cancel()
            await asyncio.gather(shows, watches, feeds, return_exceptions=True)

    async def _begin(self, command: _Command) -> None:
        """Put a started command into its cgroup and release it. AgentError."""
        name = _rank(command.start)
        end, pause_s = self._clock() + _BEGIN_S, _FIRST_PAUSE_S / 4
        while (state := await self._engine.exec_state(command.ident)) and state.exit_code is None:
            if state.pid:
                work = asyncio.to_thread(
                    self._groups.begin, command.container, command.token, state.pid
                )
                # Also when the caller leaves meanwhile: what is in the cgroup must end.
                command.begins = asyncio.get_running_loop().create_task(work)
                try:
                    if await asyncio.shield(command.begins) is not None:
                        return
                except ProcessLookupError:
                    pass  # the engine reports how it ended
                except (OSError, LookupError) as error:
                    raise AgentError(
                        "unavailable", name, f"no cgroup for the command: {error}",
                        "give the agent a writable /sys/fs/cgroup of its server",
                    ) from error  # fmt: skip
            if self._clock() >= end:
                raise AgentError("failed", name, f"the command did not begin within {_BEGIN_S:g} s")
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    async def _feed(
        self,
        command: _Command,
        streams: Attached,
        given: AsyncIterator[Input],
        clock: ExecDeadline,
    ) -> None:
        """Pass on input until the command reads no more; a terminal's input has no end."""
        start = command.start
        if start.window is not None:
            await self._resize(command.ident, start.window)
        with suppress(OSError):
            async for item in given:
                match item:
                    case WindowSize() if fits(item):
                        await self._resize(command.ident, item)
                    case Typed(data=None) if not start.terminal:
                        streams.close_input()
                    case Typed(data=bytes(data)):
                        clock.active = self._clock()
                        await streams.write(data)

    async def _resize(self, ident: str, window: WindowSize) -> None:
        """Set the size of the terminal; a command that is just starting refuses it for a moment."""
        end, pause_s = self._clock() + _RESIZE_S, _FIRST_PAUSE_S
        while True:
            try:
                await self._engine.exec_resize(ident, window.rows, window.columns)
            except EngineRefusedError:
                if self._clock() >= end:
                    return
                await asyncio.sleep(pause_s)
                pause_s *= 2
            except EngineFailure as error:
                _log.warning("terminal not resized", reason=str(error))
                return
            else:
                return

    async def _exit_code(self, command: _Command) -> int:
        """Return the exit code of a command whose output has ended. AgentError without one."""
        name = _rank(command.start)
        end, pause_s = self._clock() + _END_S, _FIRST_PAUSE_S
        while (state := await self._engine.exec_state(command.ident)) and state.running:
            if self._clock() >= end:
                raise AgentError("failed", name, "the command closed its output and ran on")
            await asyncio.sleep(pause_s)
            pause_s *= 2
        if state is None or state.exit_code is None:
            raise AgentError("conflict", name, "its container ended")
        return state.exit_code

    def _begin_end(self, command: _Command) -> None:
        """End what is left of a command, once."""
        if command.end is None:
            command.end = self._in_background(self._end(command))

    def _in_background(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work)
        self._ends.add(task)
        task.add_done_callback(self._ends.discard)
        return task

    async def _end(self, command: _Command) -> None:
        """End what is left of a command, then free its place; the latter within ``PLACE_S``."""
        late = asyncio.get_running_loop().call_later(PLACE_S, self._leave_late, command)
        try:
            began = self._clock()
            await self._repeat(lambda: self._is_over(command, self._clock() - began))
        finally:
            late.cancel()
            self._places.discard(command)

    def _leave_late(self, command: _Command) -> None:
        _log.warning("processes of a command are left", rank=_rank(command.start))
        self._places.discard(command)

    async def _clear(self, group: CommandGroup) -> None:
        await self._repeat(lambda: self._is_gone(group, signal.SIGKILL))

    async def _repeat(self, done: Callable[[], Awaitable[bool]]) -> None:
        pause_s = _FIRST_PAUSE_S
        while not await done():
            await asyncio.sleep(pause_s)
            pause_s = min(_LONGEST_PAUSE_S, 2 * pause_s)

    async def _is_over(self, command: _Command, waited_s: float) -> bool:
        """End a command; return whether nothing of it is left, and nothing will begin.

        An engine that was hung may start it late. It then waits for its cgroup and does nothing.
        """
        if command.begins is not None:
            with suppress(OSError, LookupError):
                if (group := await command.begins) is not None:
                    late = waited_s >= GRACE_S
                    return await self._is_gone(group, signal.SIGKILL if late else signal.SIGHUP)
        if not command.ident:
            return True
        try:
            state = await self._engine.exec_state(command.ident)
        except EngineFailure:
            return waited_s >= PLACE_S
        if state is None:
            return True
        if state.running and state.pid:
            with suppress(OSError):
                await asyncio.to_thread(self._groups.refuse, command.container, state.pid)
        return not state.running and (state.exit_code is not None or waited_s >= _LATE_S)

    async def _is_gone(self, group: CommandGroup, signum: signal.Signals) -> bool:
        try:
            return await asyncio.to_thread(group.end, signum)
        except OSError as error:
            _log.error("cgroup of a command not read", reason=str(error))
            return False


def check(start: ExecCommand) -> None:
    """Raise AgentError(invalid) for a command that cannot be run."""
    policy.check_job(start.job)
    obj = _rank(start)
    if not start.command:
        raise AgentError("invalid", obj, "the command is empty")
    policy.check_command(obj, start.command)
    if start.window is not None and not fits(start.window):
        raise AgentError("invalid", obj, f"a terminal has 1 to {MAX_CELLS} rows and columns")


def _rank(start: ExecCommand) -> str:
    return f"rank {start.rank} of job {start.job}"


def fits(window: WindowSize) -> bool:
    """Return whether a terminal may have this size."""
    return 1 <= window.rows <= MAX_CELLS and 1 <= window.columns <= MAX_CELLS


def _limited(seconds: float, most: float) -> float:
    return min(most, seconds) if seconds > 0 else most
