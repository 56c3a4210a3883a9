"""Moves parts between the ranks and servers of a job, and to stores."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import structlog

from agentlink.checkpoints import FetchProgress, Folder, GetPart, Keep, KeepCopy, KeepStored
from agentlink.ranks import PREFIX
from agentlink.values import VolumeMount
from checkpoints.ledger import Key
from container_mgr.checkpoints.contract import Holder
from container_mgr.transfers import keeping, sockets, threads, wire
from container_mgr.transfers.fetching import Fetching
from container_mgr.transfers.gate import SendGate
from container_mgr.transfers.keeping import Keeper
from container_mgr.transfers.part_sources import PeerRoutes
from container_mgr.transfers.pulling import OverLight, OverManagement, Stop
from container_mgr.transfers.serving import PartListener, Serving
from container_mgr.transfers.threads import Held
from container_mgr.users import RankUser
from container_mgr.values import AgentError
from container_mgr.volumes.volumes import Volumes
from pki import Credentials

FIRST_RETRY_S = 0.05
"""A rank that starts has no address for a moment; doubles with every attempt up to ``RETRY_S``."""
RETRY_S = 5.0
"""Between two attempts to listen where a rank's program holds the port."""
AT_ONCE = 8
"""Copies, parities and writes to stores that run at a time."""

_log = structlog.get_logger("container_mgr.transfers")


class RunningRank(NamedTuple):
    """A rank that runs with checkpoints."""

    folder: str
    rank: int
    endpoint: str
    namespace: str


@dataclass(slots=True, eq=False)
class _Lane:
    """What one rank keeps: one thing at a time."""

    queue: list[tuple[Keep, int]] = field(default_factory=list)
    now: tuple[Keep, int] | None = None
    stop: Stop = field(default_factory=Stop)
    task: asyncio.Task[None] | None = None


class PartMover:
    """See ``Transfers``. Belongs to one event loop; all that blocks is in threads."""

    def __init__(
        self,
        holder: Holder,
        volumes: Volumes,
        server: str,
        credentials: Credentials,
        *,
        address: tuple[str, int],
    ) -> None:
        """``address`` is the management network's: host and port, 0 for any port.

        Call :meth:`start` before anything else.
        """
        self._holder = holder
        self._volumes = volumes
        self._server = server
        self._credentials = credentials
        self._address = address
        self._port = 0
        self._running: Callable[[], Collection[tuple[str, int, str, str]]] = tuple
        self._gates: dict[str, SendGate] = {}
        self._listeners: dict[str, tuple[int, PartListener]] = {}
        """By namespace, with the identity that distinguishes two of one name."""
        self._refused: dict[str, str] = {}
        self._changed = asyncio.Event()
        self._chore: asyncio.Task[None] | None = None
        self._lanes: dict[tuple[str, int], _Lane] = {}
        self._room = asyncio.Semaphore(AT_ONCE)

    async def start(self) -> None:
        """Give parts from now on. Raises OSError when the address is in use."""
        loop = asyncio.get_running_loop()
        self._held = Held(self._holder, loop)
        tls = await asyncio.to_thread(sockets.server_context, self._credentials)
        self._tls = await asyncio.to_thread(sockets.client_context, self._credentials)
        one = await asyncio.to_thread(sockets.listener, *self._address)
        self._port = int(one.getsockname()[1])
        self._serving = Serving(self._held, tls)
        self._serving.add(PartListener(one, "", SendGate()))
        self._fetching = Fetching(self._holder, self._reach, self._directory)
        self._chore = asyncio.create_task(self._follow())

    async def close(self) -> None:
        """End all transfers. In the network of a frozen job nothing is sent for that."""
        for lane in self._lanes.values():
            lane.queue.clear()
            lane.stop.stop()
        if self._chore is not None:
            self._chore.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._chore
        self._serving.close()
        await self._fetching.close()
        tasks = [lane.task for lane in self._lanes.values() if lane.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=threads.ANSWER_S)

    @property
    def port(self) -> int:
        """See :class:`Transfers`."""
        return self._port

    async def keep(self, folder: str, keeps: Sequence[Keep], pace_bps: int) -> list[AgentError]:
        """See :class:`Transfers`; ``pace_bps`` are bits per second. Faults name what cannot be."""
        faults: list[AgentError] = []
        running = {one.rank: one for one in self._ranks() if one.folder == folder}
        wanted: dict[int, list[Keep]] = {}
        for what in newest(keeps):
            if self._holder.folder(folder) is None:
                faults.append(AgentError("not_found", folder, "this server has no such folder"))
            elif what.rank not in running:
                faults.append(AgentError("not_found", f"{folder}/{what.rank}", "does not run here"))
            else:
                wanted.setdefault(what.rank, []).append(what)
        for (name, rank), lane in self._lanes.items():
            if name == folder:
                if lane.now is not None and lane.now[0] not in keeps:
                    lane.stop.stop()
                self._replace(lane, wanted.pop(rank, []), pace_bps // 8)
        for rank, queue in wanted.items():
            self._replace(self._lanes.setdefault((folder, rank), _Lane()), queue, pace_bps // 8)
        self._work_on(folder)
        return faults

    def fetch(
        self, folder: Folder, key: Key, gets: Sequence[GetPart]
    ) -> AsyncIterator[FetchProgress]:
        """See :class:`Transfers`."""
        return self._fetching.fetch(folder, key, gets)

    async def pause(self, job: str) -> None:
        """See :class:`Transfers`."""
        gates = [gate for name, gate in self._gates.items() if job_of(name) == job]
        await asyncio.gather(*(threads.run(gate.close, "transfer-pause") for gate in gates))

    def resume(self, job: str) -> None:
        """See :class:`Transfers`."""
        for name, gate in self._gates.items():
            if job_of(name) == job:
                gate.open()

    def ranks_changed(self, running: Callable[[], Collection[tuple[str, int, str, str]]]) -> None:
        """See :class:`Transfers`."""
        self._running = running
        self._match()
        self._changed.set()

    def _ranks(self) -> list[RunningRank]:
        return [RunningRank(*one) for one in self._running()]

    def _match(self) -> list[RunningRank]:
        """Have a gate for each namespace, and end what belongs to others."""
        ranks = self._ranks()
        names = {one.namespace for one in ranks}
        for name in self._gates.keys() - names:
            self._gates.pop(name).open()
            self._forget(name)
        for name in names - self._gates.keys():
            self._gates[name] = SendGate()
        there = {(one.folder, one.rank) for one in ranks}
        for key, lane in self._lanes.items():
            if key not in there:
                lane.queue.clear()
                lane.stop.stop()
        return ranks

    def _forget(self, namespace: str) -> None:
        self._refused.pop(namespace, None)
        found = self._listeners.pop(namespace, None)
        if found is not None:
            self._serving.remove(found[1])

    async def _follow(self) -> None:
        """Listen in every rank's namespace; try again where that failed."""
        pause_s = FIRST_RETRY_S
        while True:
            whole = True
            for one in self._match():
                number = sockets.inode(one.namespace)
                there = self._listeners.get(one.namespace)
                if there is not None and there[0] == number:
                    continue
                self._forget(one.namespace)
                whole = number is not None and await self._listen(one, number) and whole
            pause_s = FIRST_RETRY_S if whole else min(RETRY_S, 2 * pause_s)
            self._changed.clear()
            with contextlib.suppress(TimeoutError):
                # wait_for() may lose a cancellation that comes with the event (Python 3.11).
                async with asyncio.timeout(RETRY_S if whole else pause_s):
                    await self._changed.wait()
                    pause_s = FIRST_RETRY_S

    async def _listen(self, one: RunningRank, number: int) -> bool:
        make = partial(sockets.listener_in, one.namespace, wire.PORT)
        try:
            made = await threads.run(make, "transfer-listen")
        except OSError as error:
            if self._refused.get(one.namespace) != str(error):
                self._refused[one.namespace] = str(error)
                _log.warning(
                    "parts of a rank cannot be given: does its program use the port?",
                    namespace=one.namespace, port=wire.PORT, reason=str(error),
                )  # fmt: skip
            return False
        gate = self._gates.get(one.namespace)
        if gate is None:
            made.close()
            return True
        listener = PartListener(made, one.folder, gate)
        self._listeners[one.namespace] = number, listener
        self._serving.add(listener)
        return True

    def _reach(self, folder: Folder) -> PeerRoutes:
        dial = OverManagement(folder.name, folder.key, self._tls)
        return PeerRoutes(self._held, self._server, folder.name, dial)

    async def _directory(self, store: VolumeMount, user: RankUser | None = None) -> Path:
        return Path(await self._volumes.directory(store, user or RankUser(0, 0), store.volume))

    def _replace(self, lane: _Lane, queue: Sequence[Keep], pace: int) -> None:
        now = lane.now[0] if lane.now is not None else None
        lane.queue = [(one, pace) for one in queue if one != now]

    def _work_on(self, folder: str) -> None:
        for (name, rank), lane in self._lanes.items():
            if name == folder and lane.queue and (lane.task is None or lane.task.done()):
                lane.task = asyncio.create_task(self._work(name, rank, lane))

    async def _work(self, folder: str, rank: int, lane: _Lane) -> None:
        while lane.queue:
            async with self._room:
                if not lane.queue:
                    break
                lane.now, lane.stop = lane.queue.pop(0), Stop()
                what, pace = lane.now
                try:
                    await self._keep(folder, rank, what, pace, lane.stop)
                except Exception:
                    _log.exception("a copy was not made", folder=folder, rank=rank)
                finally:
                    lane.now = None
        if self._lanes.get((folder, rank)) is lane:
            del self._lanes[folder, rank]

    async def _keep(self, folder: str, rank: int, what: Keep, pace: int, stop: Stop) -> None:
        here = next((r for r in self._ranks() if (r.folder, r.rank) == (folder, rank)), None)
        known = self._holder.folder(folder)
        gate = None if here is None else self._gates.get(here.namespace)
        if here is None or known is None or gate is None:
            return
        dial = OverLight(folder, known.key, here.namespace, gate)
        keeper = Keeper(
            self._holder, PeerRoutes(self._held, self._server, folder, dial, pace), here.endpoint
        )
        if isinstance(what, KeepStored):
            try:
                owner = partial(self._holder.owner, folder, here.endpoint)
                user = await threads.run(owner, "transfer-owner")
                keeper = replace(keeper, store=await self._directory(what.store, user))
            except AgentError as error:
                self._holder.report(keeping.failure(keeper, what, error.message))
                return
        await threads.run(partial(keeping.keep, keeper, what, stop), "transfer-keep")


def newest(keeps: Sequence[Keep]) -> list[Keep]:
    """Return of each rank and kind only what is of the newest step, in the order given."""
    best: dict[tuple[int, type[Keep], int], Keep] = {}
    for what in keeps:
        whose = what.source.rank if isinstance(what, KeepCopy) else what.rank
        place = (what.rank, type(what), whose)
        if place not in best or best[place].key < what.key:
            best[place] = what
    return [what for what in keeps if what in best.values()]


def job_of(namespace: str) -> str:
    """Return the job whose rank is in a network namespace ``ll-c-JOB-RANK-EPOCH``."""
    return namespace.removeprefix(f"{PREFIX}c-").rsplit("-", 2)[0]
