"""Fakes of an agent's two halves of checkpoints: tables in place of folders, no network."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field, replace

from agentlink.checkpoints import (
    FetchFault,
    FetchProgress,
    Folder,
    GetFrom,
    GetPart,
    Holding,
    HoldingKind,
    Keep,
    KeepCopy,
    KeepParity,
    KeepStored,
    Verified,
)
from checkpoints.ledger import Key, Member
from container_mgr.checkpoints.contract import News
from container_mgr.values import AgentError

Held = tuple[str, Key, int, str, HoldingKind]


@dataclass
class FakeHolder:
    """Has the methods of ``contract.Holder`` that the agent's calls need."""

    held: dict[Held, Holding] = field(default_factory=dict)
    in_use: set[str] = field(default_factory=set)
    """Folders that a rank uses."""
    damages: dict[Held, tuple[str, ...]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)
    streams: Counter[str] = field(default_factory=Counter)
    """Streams of news that ``began`` and ``ended``."""
    stuck: bool = False
    """Nothing that is asked ends."""
    news_breaks: bool = False
    """The stream of news fails after everything has been told."""
    _told: asyncio.Queue[Holding | None] | None = None

    async def news(self) -> AsyncIterator[News]:
        if self._told is not None:
            self._told.put_nowait(None)
        mine = self._told = asyncio.Queue()
        self.streams["began"] += 1
        try:
            yield News(tuple(self.held.values()))
            yield News(caught_up=True)
            if self.news_breaks:
                raise OSError("inotify is gone")
            while (holding := await mine.get()) is not None:
                yield News((holding,))
        finally:
            self.streams["ended"] += 1

    def report(self, holding: Holding) -> None:
        where = (holding.folder, holding.key, holding.rank, holding.endpoint)
        if holding.kind in {HoldingKind.MISSING, HoldingKind.REFUSED}:
            for kind in HoldingKind:
                self.held.pop((*where, kind), None)
        else:
            self.held[*where, holding.kind] = holding
        if self._told is not None:
            self._told.put_nowait(holding)

    async def close_step(self, folder: str, key: Key) -> None:
        await self._asked("close_step")
        for one in list(self.held.values()):
            if (one.folder, one.key, one.kind) == (folder, key, HoldingKind.AWAITS):
                del self.held[one.folder, one.key, one.rank, one.endpoint, one.kind]
                self.report(replace(one, kind=HoldingKind.OWN, digest="0000c105"))

    async def drop(self, folder: str, keys: Collection[Key]) -> None:
        await self._asked("drop")
        for one in sorted(self.held.values(), key=lambda h: h.key):
            if one.folder == folder and one.key in keys:
                self.report(replace(one, kind=HoldingKind.MISSING, digest="", why="dropped"))

    async def verify(self, folder: str, key: Key | None) -> AsyncIterator[tuple[Verified, ...]]:
        await self._asked("verify")
        for where, one in list(self.held.items()):
            if one.folder == folder and key in (None, one.key):
                damages = self.damages.get(where, ())
                yield (Verified(one.key, one.rank, one.endpoint, one.kind, damages),)

    async def forget(self, folder: str) -> bool:
        await self._asked("forget")
        if folder in self.in_use:
            raise AgentError("conflict", folder, "rank 0 of the job runs here", "stop it first")
        mine = [where for where in self.held if where[0] == folder]
        for where in mine:
            del self.held[where]
        return bool(mine)

    async def _asked(self, call: str) -> None:
        self.calls[call] += 1
        if self.stuck:
            await asyncio.sleep(3600)


@dataclass
class FakeTransfers:
    """Has the methods of ``contract.Transfers`` that the agent's calls need."""

    holder: FakeHolder
    port: int = 7410
    queued: dict[str, tuple[Keep, ...]] = field(default_factory=dict)
    paces: list[int] = field(default_factory=list)
    fetches: list[tuple[Folder, Key, tuple[GetPart, ...]]] = field(default_factory=list)
    """Each that began; an equal one joins."""
    lost: dict[int, str] = field(default_factory=dict)
    """Parts that no source has, and why."""
    going: asyncio.Event | None = None
    """A fetch ends when this is set; None ends it at once."""
    refusal: AgentError | None = None
    told_end: bool = True
    """A fetch says how it ended."""
    paused: set[str] = field(default_factory=set)
    """Jobs in whose networks nothing may be sent."""

    async def pause(self, job: str) -> None:
        self.paused.add(job)

    def resume(self, job: str) -> None:
        self.paused.discard(job)

    def ranks_changed(self, running: Callable[[], Collection[tuple[str, int, str, str]]]) -> None:
        pass

    async def keep(self, folder: str, keeps: Sequence[Keep], pace_bps: int) -> list[AgentError]:
        self.queued[folder] = tuple(keeps)
        self.paces.append(pace_bps)
        faults = []
        for keep in keeps:
            if keep.rank > 1:
                text = f"rank {keep.rank} is not on this server"
                faults.append(AgentError("not_found", folder, text))
                continue
            self.holder.report(_kept(folder, keep))
        return faults

    async def fetch(
        self, folder: Folder, key: Key, gets: Sequence[GetPart]
    ) -> AsyncIterator[FetchProgress]:
        if self.refusal is not None:
            raise self.refusal
        asked = (folder, key, tuple(gets))
        if asked not in self.fetches:
            self.fetches.append(asked)
        total = sum(get.bytes for get in gets)
        yield FetchProgress(0, total)
        if self.going is not None:
            await self.going.wait()
        faults = tuple(
            FetchFault(get.rank, get.part, _source(get), self.lost[get.part])
            for get in gets
            if get.part in self.lost
        )
        if self.told_end:
            yield FetchProgress(total, total, done=True, faults=faults)


def _source(get: GetPart) -> str:
    return get.how.source.endpoint if isinstance(get.how, GetFrom) else ""


def _kept(folder: str, keep: Keep) -> Holding:
    """Return what the server holds once it has done what it was asked for."""
    held = Holding(
        folder=folder,
        key=keep.key,
        rank=keep.rank,
        endpoint=f"gpu{keep.rank}",
        kind=HoldingKind.COPY,
    )
    match keep:
        case KeepCopy(source=source):
            return replace(held, rank=source.rank, digest=source.digest, bytes=source.bytes)
        case KeepParity(members=members):
            covers = tuple(Member(one.rank, one.digest, one.bytes) for one in members)
            return replace(held, kind=HoldingKind.PARITY, digest="000000f0", covers=covers)
        case KeepStored():
            return replace(held, kind=HoldingKind.STORED, digest="00005703", bytes=1)
