"""Freezes and thaws the ranks of a job, all at once and without the engine.

The engine's pause takes tens of milliseconds per container; the kernel's freezer takes less
than one. The engine still reports a container frozen in this way as ``running``, so the agent
reads states from the freezer, which outlives the agent and also shows what others froze.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from pathlib import Path

import structlog

from container_mgr.docker.engine import DockerHost, EngineRefusedError, EngineTimeoutError
from container_mgr.kernel import freezer, in_flight
from container_mgr.kernel.freezer import Freezer, FreezerState
from container_mgr.ranks.batch import BatchOutcome, batch
from container_mgr.ranks.living import LiveContainer
from container_mgr.values import AgentError, Container

LIMIT_S = 2.0
"""A process that waits in the kernel longer (a dead NFS server, a driver) is not frozen."""

_log = structlog.get_logger("container_mgr.ranks.freezing")


class Freezing:
    """Belongs to one event loop. The engine pauses containers whose freezer cannot be written."""

    def __init__(
        self, engine: DockerHost, *, limit_s: float = LIMIT_S, proc: Path = Path("/proc")
    ) -> None:
        self._engine = engine
        self._limit_s = limit_s
        self._proc = proc

    async def freeze(self, ranks: Sequence[LiveContainer], settle_s: float = 0.0) -> BatchOutcome:
        """Freeze all; then wait, ``settle_s`` at most, until the data they sent is acknowledged.

        A rank that cannot be frozen within the limit keeps running and is a fault; the others
        stay frozen until they are thawed.
        """
        ranks = [rank for rank in ranks if not rank.ending]
        mine, others = _request_freeze(ranks)
        late = await freezer.settle(tuple(mine), frozen=True, limit_s=self._limit_s)
        faults = [self._not_frozen(mine[one]) for one, state in late.items() if state is not None]
        slow = await batch(others, _name, self._pause)
        frozen = [
            with_kernel_state(rank.container, rank) for one, rank in mine.items() if one not in late
        ]
        return BatchOutcome(
            (*frozen, *slow.containers),
            (*faults, *slow.faults),
            settled=await self._settled(ranks, settle_s),
        )

    async def thaw(self, ranks: Sequence[LiveContainer]) -> BatchOutcome:
        """Thaw all, also those that another program froze."""
        mine: dict[Freezer, LiveContainer] = {}
        others = []
        for rank in ranks:
            one = rank.freezer
            if one is None or not rank.frozen_by_us:
                others.append(rank)
                continue
            try:
                freezer.request(one, frozen=False)
            except OSError as error:
                _log.error("freezer not written", reason=str(error))
                others.append(rank)
            else:
                rank.frozen_by_us = False
                mine[one] = rank
        late = await freezer.settle(tuple(mine), frozen=False, limit_s=self._limit_s)
        faults = [
            _still_frozen(mine[one].container) for one, state in late.items() if state is not None
        ]
        slow = await batch(others, _name, self._thaw_by_engine)
        thawed = [
            with_kernel_state(rank.container, rank) for one, rank in mine.items() if one not in late
        ]
        return BatchOutcome((*thawed, *slow.containers), (*faults, *slow.faults))

    async def release(self, now: Container, rank: LiveContainer | None) -> None:
        """Thaw one container, which the engine has just reported as ``now``. AgentError.

        Also used before a stop: frozen processes get no signal, on cgroup v1 not even SIGKILL.
        """
        one = rank.freezer if rank is not None else None
        if now.engine_paused:
            if one is not None and freezer.read_state(one) is FreezerState.THAWED:
                # Thawed without the engine, which unpauses only frozen containers, and neither
                # stops nor removes a container whose state is paused.
                freezer.request(one, frozen=True)
                await freezer.settle([one], frozen=True, limit_s=self._limit_s)
            await self._engine_call(self._engine.unpause, now, done=lambda c: not c.engine_paused)
        if rank is not None:
            rank.frozen_by_us = False
        if one is not None and freezer.read_state(one) not in (None, FreezerState.THAWED):
            freezer.request(one, frozen=False)
            late = await freezer.settle([one], frozen=False, limit_s=self._limit_s)
            if late.get(one) is not None:
                raise _still_frozen(now)

    async def _thaw_by_engine(self, rank: LiveContainer) -> Container:
        name = _name(rank)
        now = await self._engine.inspect(name)
        if now is None or not now.alive:
            return now or rank.container
        await self.release(now, rank)
        return with_kernel_state(await self._engine.inspect(name) or now, rank)

    async def _pause(self, rank: LiveContainer) -> Container:
        now = await self._engine.inspect(_name(rank))
        if now is not None and now.state == "running":
            await self._engine_call(self._engine.pause, now, done=lambda c: c.state != "running")
        return await self._engine.inspect(_name(rank)) or rank.container

    async def _engine_call(
        self,
        act: Callable[[str], Awaitable[None]],
        container: Container,
        *,
        done: Callable[[Container], bool],
    ) -> None:
        """Act once; after a time-out or a refusal, inspect whether it took effect all the same."""
        name = container.key.container
        try:
            await act(name)
        except (EngineTimeoutError, EngineRefusedError):
            now = await self._engine.inspect(name)
            if now is not None and not done(now):
                raise

    async def _settled(self, ranks: Sequence[LiveContainer], limit_s: float) -> bool | None:
        if any(rank.container.rdma_device for rank in ranks):
            return None  # the adapter sends by itself, and no socket shows it
        return await in_flight.settle((rank.container.pid for rank in ranks), limit_s, self._proc)

    def _not_frozen(self, rank: LiveContainer) -> AgentError:
        if rank.frozen_by_us and rank.freezer is not None:
            rank.frozen_by_us = False
            freezer.request(rank.freezer, frozen=False)
        return AgentError(
            "timeout",
            _name(rank),
            f"not frozen within {self._limit_s:g} s: one of its processes waits in the kernel",
            "it keeps running; `ps -eo pid,stat,wchan,cmd` on its server shows it in state D",
        )


def with_kernel_state(container: Container, rank: LiveContainer | None) -> Container:
    """Return a container with the freezer's state, as the engine has no record of freezes."""
    if rank is None or rank.freezer is None or not container.alive:
        return container
    state = freezer.read_state(rank.freezer)
    if state is None:
        return container
    return replace(container, state="running" if state is FreezerState.THAWED else "paused")


def _request_freeze(
    ranks: Sequence[LiveContainer],
) -> tuple[dict[Freezer, LiveContainer], list[LiveContainer]]:
    """Ask all freezers to freeze; return those that did, and the ranks left to the engine."""
    mine: dict[Freezer, LiveContainer] = {}
    others = []
    for rank in ranks:
        one = rank.freezer
        if one is None:
            others.append(rank)
            continue
        try:
            # A container that is already frozen was frozen by the engine or by an operator.
            if freezer.read_state(one) is FreezerState.THAWED and freezer.request(one, frozen=True):
                rank.frozen_by_us = True
        except OSError as error:
            _log.warning("freezer not written, the engine pauses", reason=str(error))
            others.append(rank)
        else:
            mine[one] = rank
    return mine, others


def _still_frozen(container: Container) -> AgentError:
    return AgentError(
        "failed",
        container.key.container,
        "is still frozen: the cgroup above it is frozen",
        "thaw its parent cgroup on the server",
    )


def _name(rank: LiveContainer) -> str:
    return rank.container.key.container
