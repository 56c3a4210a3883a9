"""Freezes and thaws the processes of jobs that another scheduler started, by their cgroups.

The kernel holds all state: what is frozen stays frozen without the agent, and a new agent sees it.
This module only remembers which scopes are frozen now, so that a step that begins meanwhile is
frozen too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakValueDictionary

import structlog

from agentlink.values import ScopeState
from base import clock
from base.engines import number_in
from container_mgr.kernel import freezer, in_flight
from container_mgr.kernel.freezer import Freezer, FreezerState
from container_mgr.scopes import processes
from container_mgr.scopes.groups import JobGroups
from container_mgr.values import AgentError

LIMIT_S = 2.0
"""A process that waits in the kernel longer (a dead NFS server, a driver) is not frozen."""
HOLD_S = 120.0
"""Later than this after its freeze, a step that begins is no longer frozen."""
LOOK_S = 0.1
"""Between two looks for steps that began while their scope is frozen."""
MAX_HELD = 1024

_log = structlog.get_logger("container_mgr.scopes")


@dataclass(slots=True, frozen=True)
class Done:
    """What came of a freeze or a thaw. ``cgroups`` are as they should be; none that has ended."""

    cgroups: int
    faults: tuple[AgentError, ...] = ()
    settled: bool | None = None
    """After a freeze: whether all data that they sent is acknowledged; None when unknown."""


@dataclass(slots=True)
class _Held:
    """A frozen scope."""

    until: float
    """Of the monotonic clock."""
    known: set[Freezer]
    """Of these, what another program thaws stays thawed: Slurm does that to kill a step."""


class Scopes:
    """All scopes of one server. Belongs to one event loop."""

    def __init__(
        self,
        groups: JobGroups,
        *,
        limit_s: float = LIMIT_S,
        proc: Path = Path("/proc"),
        sysfs: Path = Path("/sys"),
    ) -> None:
        self._groups = groups
        self._limit_s = limit_s
        self._proc = proc
        self._sysfs = sysfs
        self._held: dict[str, _Held] = {}
        # One freeze or thaw at a time per scope: concurrent ones would undo each other.
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    async def freeze(self, scope: str, settle_s: float = 0.0) -> Done:
        """Freeze all steps; then wait, ``settle_s`` at most, for acknowledgements of their data.

        A step that cannot be frozen within the limit keeps running and is a fault; the others
        stay frozen until they are thawed. Raises AgentError when none can be found.
        """
        job = self._job(scope)
        async with self._lock(scope):
            frozen, faults = await self._freeze(scope, job)
            if faults:
                self._held.pop(scope, None)
            else:
                self._hold(scope, frozen)
            return Done(len(frozen), tuple(faults), await self._settled(frozen, settle_s))

    async def thaw(self, scope: str) -> Done:
        """Thaw all steps, also those that another program froze. Raises AgentError."""
        job = self._job(scope)
        async with self._lock(scope):
            self._held.pop(scope, None)
            found = (await asyncio.to_thread(self._groups.steps, job)).freezers
            refused = [_requested(scope, one, frozen=False) for one in found]
            faults = [error for error in refused if error is not None]
            late = await freezer.settle(found, frozen=False, limit_s=self._limit_s)
            faults += [
                AgentError(
                    "failed",
                    _object(scope),
                    f"{one.group} is still frozen: the cgroup above it is frozen",
                    "thaw its parent cgroup on the server",
                )
                for one, state in late.items()
                if state is not None
            ]
            return Done(len(found) - len(late), tuple(faults))

    async def states(self) -> dict[str, ScopeState]:
        """Return the scopes that have processes on this server. Raises AgentError."""
        return await asyncio.to_thread(self._states)

    async def hold_forever(self) -> None:
        """Freeze the steps that begin while their scope is frozen."""
        while True:
            await asyncio.sleep(LOOK_S)
            for scope in tuple(self._held):
                if self._lock(scope).locked():  # it is being frozen or thawed
                    continue
                try:
                    await self.hold(scope, clock.monotonic())
                except AgentError as error:
                    _log.warning("frozen scope not looked at", scope=scope, reason=str(error))

    async def hold(self, scope: str, now: float) -> None:
        """Freeze the steps that began since the freeze of a scope. Raises AgentError."""
        async with self._lock(scope):
            held = self._held.get(scope)
            if held is None:
                return
            if now > held.until:
                del self._held[scope]
                return
            found = (await asyncio.to_thread(self._groups.steps, self._job(scope))).freezers
            for one in found:
                if one in held.known:
                    continue
                held.known.add(one)
                error = _requested(scope, one, frozen=True)
                _log.info(
                    "a step began while its job is frozen",
                    scope=scope,
                    cgroup=str(one.group),
                    frozen=error is None,
                )
            held.known &= set(found)

    async def _freeze(self, scope: str, job: str) -> tuple[list[Freezer], list[AgentError]]:
        """Freeze until a look finds nothing new; return what is frozen, and faults."""
        end = clock.monotonic() + self._limit_s
        seen: set[Freezer] = set()
        frozen: list[Freezer] = []
        faults: list[AgentError] = []
        while True:
            steps = await asyncio.to_thread(self._groups.steps, job)
            fresh = [one for one in steps.freezers if one not in seen]
            if not seen and not fresh:
                await asyncio.to_thread(self._groups.check_absent, job, known=steps.known)
            if not fresh:
                return frozen, faults
            if seen and clock.monotonic() >= end:
                faults.append(
                    AgentError(
                        "timeout",
                        _object(scope),
                        f"its steps begin faster than they are frozen, {fresh[0].group} for one",
                        "try again once the job has started its steps",
                    )
                )
                return frozen, faults
            seen.update(fresh)
            asked = []
            for one in fresh:
                if error := _requested(scope, one, frozen=True):
                    faults.append(error)
                else:
                    asked.append(one)
            left_s = max(0.0, end - clock.monotonic())
            late = await freezer.settle(asked, frozen=True, limit_s=left_s)
            faults += [
                self._not_frozen(scope, one) for one, state in late.items() if state is not None
            ]
            frozen += [one for one in asked if one not in late]

    def _hold(self, scope: str, frozen: Sequence[Freezer]) -> None:
        self._held.pop(scope, None)
        self._held[scope] = _Held(clock.monotonic() + HOLD_S, set(frozen))
        while len(self._held) > MAX_HELD:
            del self._held[next(iter(self._held))]

    def _states(self) -> dict[str, ScopeState]:
        found = {}
        for job, steps in self._groups.jobs().items():
            cold = [
                state is not FreezerState.THAWED
                for one in steps
                if (state := freezer.read_state(one)) is not None
            ]
            found[f"{self._groups.kind}:{job}"] = (
                ScopeState.FROZEN
                if cold and all(cold)
                else ScopeState.PARTLY
                if any(cold)
                else ScopeState.RUNNING
            )
        return found

    async def _settled(self, frozen: Sequence[Freezer], limit_s: float) -> bool | None:
        if await asyncio.to_thread(processes.has_rdma, self._sysfs):
            return None  # the adapter sends by itself, and no socket shows it
        pids = await asyncio.to_thread(
            processes.one_per_namespace, [one.group for one in frozen], self._proc
        )
        return await in_flight.settle(pids, limit_s, self._proc) if pids else None

    def _not_frozen(self, scope: str, one: Freezer) -> AgentError:
        _requested(scope, one, frozen=False)
        return AgentError(
            "timeout",
            _object(scope),
            f"{one.group} is not frozen within {self._limit_s:g} s: one of its processes waits in"
            " the kernel",
            "it keeps running; `ps -eo pid,stat,wchan,cmd` on its server shows it in state D",
        )

    def _lock(self, scope: str) -> asyncio.Lock:
        return self._locks.setdefault(scope, asyncio.Lock())

    def _job(self, scope: str) -> str:
        """Return the number of a scope's job. Raises AgentError for any other text."""
        kind = self._groups.kind
        job = number_in(scope, kind)
        if job is None:
            raise AgentError("invalid", _object(scope), "is not a scope", f"e.g. {kind}:4711")
        return job


def _object(scope: str) -> str:
    return f"scope/{scope[:80]}"


def _requested(scope: str, one: Freezer, *, frozen: bool) -> AgentError | None:
    """Ask the kernel to freeze or thaw; return a fault when it refuses."""
    try:
        freezer.request(one, frozen=frozen)
    except OSError as error:
        return AgentError(
            "failed",
            _object(scope),
            f"{one.group} cannot be {'frozen' if frozen else 'thawed'}: {error.strerror}",
            "does the agent run as root, with the server's cgroups mounted writable?",
        )
    return None
