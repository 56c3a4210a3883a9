"""Servers that hold checkpoints, in memory: they write, copy, lose, lie, are slow and silent."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Collection, Sequence
from dataclasses import dataclass, field

from agentlink.checkpoints import (
    FetchFault,
    FetchProgress,
    Folder,
    GetFrom,
    GetLocal,
    GetPart,
    GetRebuilt,
    GetStored,
    Holding,
    HoldingKind,
    Keep,
    KeepCopy,
    KeepParity,
    Verified,
)
from checkpoints.ledger import Key, Member
from controller.devices.checkpoints import HoldingsNews
from controller.devices.engine import EngineError, EngineFault
from sitefile import CabledSite

SIZE = 1000


@dataclass(slots=True, frozen=True)
class Place:
    """Where a part, a copy or a parity lies."""

    folder: str
    endpoint: str
    kind: HoldingKind
    key: Key
    rank: int


@dataclass(slots=True)
class Held:
    """What lies there."""

    digest: str
    bytes: int = SIZE
    covers: tuple[Member, ...] = ()
    damages: tuple[str, ...] = ()


def digest_of(folder: str, key: Key, rank: int) -> str:
    return f"{folder}/{key.step}.{key.epoch}/{rank}"


@dataclass
class FakeCheckpointEngine:
    """All servers of a site. Copies are made at once, unless ``lazy``."""

    site: CabledSite
    silent: Callable[[], Collection[str]] = frozenset
    """Servers that do not answer."""
    held: dict[Place, Held] = field(default_factory=dict)
    stored: dict[tuple[str, Key, int], str] = field(default_factory=dict)
    """What the store has: digests by folder, step and rank."""
    boots: dict[str, int] = field(default_factory=dict)
    holds_fetched: bool = True
    """What was fetched counts as held."""
    lazy: bool = False
    """Servers accept what they are to keep, and keep nothing."""
    bad: set[Place] = field(default_factory=set)
    """What proves damaged when it is read for another server."""
    broken: set[str] = field(default_factory=set)
    """Names of calls that fail."""
    late: asyncio.Event | None = None
    """Inventories end when this is set; None ends them at once."""
    beside: Callable[[str, int], str] = lambda folder, rank: ""
    """Where a rank of a folder's job runs."""
    running: Callable[[str], bool] = lambda folder: False
    """Whether ranks of a folder run: it is not forgotten then."""
    calls: list[tuple[str, str, object]] = field(default_factory=list)
    """Name, server and content of every call."""
    shown: dict[tuple[str, str], set[tuple[Key, int, str]]] = field(default_factory=dict)
    """By folder and endpoint: parts that the next rank there can load."""

    def __post_init__(self) -> None:
        self._server = {cable.name: cable.server for cable in self.site.endpoints}
        self._listeners: list[asyncio.Queue[HoldingsNews]] = []

    # --- what happens on servers ----------------------------------------------------------

    def write(self, folder: str, key: Key, rank: int, endpoint: str, digest: str = "") -> None:
        """A rank's program writes its part."""
        place = Place(folder, endpoint, HoldingKind.OWN, key, rank)
        self.put(place, Held(digest or digest_of(folder, key, rank)))

    def put(self, place: Place, held: Held) -> None:
        """A server has something, and tells it."""
        self.held[place] = held
        self._tell(self._holding(place, held))

    def remove(self, place: Place) -> None:
        """A server no longer has something, and tells it."""
        if self.held.pop(place, None) is not None:
            server = self._server[place.endpoint]
            self._tell(
                Holding(
                    server=server,
                    folder=place.folder,
                    key=place.key,
                    rank=place.rank,
                    endpoint=place.endpoint,
                    kind=HoldingKind.MISSING,
                )
            )

    def say(self, holding: Holding) -> None:
        """A server says something, true or not."""
        self._tell(holding)

    def lose(self, server: str) -> None:
        """A server's machine starts again: what was in memory is gone."""
        self.held = {p: h for p, h in self.held.items() if self._server[p.endpoint] != server}
        self.shown = {at: s for at, s in self.shown.items() if self._server[at[1]] != server}
        self.boots[server] = self.boots.get(server, 0) + 1

    def back(self, server: str) -> None:
        """A server's agent is connected again, and tells everything anew."""
        self.tell(*self.everything(server))

    def tell(self, *news: HoldingsNews) -> None:
        """Tell the controller."""
        for listener in self._listeners:
            for one in news:
                listener.put_nowait(one)

    def on(self, server: str) -> set[Place]:
        return {p for p in self.held if self._server[p.endpoint] == server}

    # --- the engine -----------------------------------------------------------------------

    async def holdings(self) -> AsyncIterator[HoldingsNews]:
        listener: asyncio.Queue[HoldingsNews] = asyncio.Queue()
        for server in self.site.servers:
            if server.name not in self.silent():
                for news in self.everything(server.name):
                    if news.caught_up and self.late is not None:
                        await self.late.wait()
                    listener.put_nowait(news)
        self._listeners.append(listener)
        try:
            while True:
                yield await listener.get()
        finally:
            self._listeners.remove(listener)

    async def keep(
        self, server: str, folder: str, keeps: Sequence[Keep], pace_bps: int, deadline_s: float
    ) -> None:
        self._check("keep", server, tuple(keeps))
        if self.lazy:
            return
        for keep in keeps:
            self._keep(server, folder, keep)

    def _keep(self, server: str, folder: str, keep: Keep) -> None:
        if isinstance(keep, KeepCopy):
            source = keep.source
            if source.server in self.silent():
                return
            if (found := self._find(folder, source.endpoint, keep.key, source.rank)) is None:
                return
            at = self._beside(server, folder, keep.rank)
            place = Place(folder, at, HoldingKind.COPY, keep.key, source.rank)
            self.put(place, Held(found.digest, found.bytes))
        elif isinstance(keep, KeepParity):
            if any(self._find(folder, m.endpoint, keep.key, m.rank) is None for m in keep.members):
                return
            if any(m.server in self.silent() for m in keep.members):
                return
            at = next(m.endpoint for m in keep.members if m.rank == keep.rank)
            covers = tuple(Member(m.rank, m.digest, m.bytes) for m in keep.members)
            place = Place(folder, at, HoldingKind.PARITY, keep.key, keep.rank)
            self.put(place, Held("", covers=covers))
        else:
            at = self._beside(server, folder, keep.rank)
            if (found := self._find(folder, at, keep.key, keep.rank)) is None:
                return
            self.stored[folder, keep.key, keep.rank] = found.digest
            self._tell(
                Holding(
                    server=server,
                    folder=folder,
                    key=keep.key,
                    rank=keep.rank,
                    endpoint=at,
                    kind=HoldingKind.STORED,
                    digest=found.digest,
                    bytes=found.bytes,
                )
            )

    def _beside(self, server: str, folder: str, rank: int) -> str:
        at = self.beside(folder, rank)
        assert self._server[at] == server, "a rank is told to keep what another server has"
        return at

    async def close_step(self, server: str, folder: str, key: Key, deadline_s: float) -> None:
        self._check("close_step", server, key)

    async def fetch(
        self, server: str, folder: Folder, key: Key, gets: Sequence[GetPart], deadline_s: float
    ) -> AsyncGenerator[FetchProgress]:
        self._check("fetch", server, tuple(gets))
        yield FetchProgress(0, sum(get.bytes for get in gets))
        faults = []
        for get in gets:
            assert self._server[get.endpoint] == server
            fault = self._get(folder.name, key, get)
            if fault is not None:
                faults.append(fault)
                continue
            shown = self.shown.setdefault((folder.name, get.endpoint), set())
            shown.add((key, get.part, get.digest))
            known = self._find(folder.name, get.endpoint, key, get.part)
            if known is None and self.holds_fetched:
                place = Place(folder.name, get.endpoint, HoldingKind.COPY, key, get.part)
                self.put(place, Held(get.digest, get.bytes))
        yield FetchProgress(done=True, faults=tuple(faults))

    def _get(self, folder: str, key: Key, get: GetPart) -> FetchFault | None:
        match get.how:
            case GetStored():
                if self.stored.get((folder, key, get.part)) == get.digest:
                    return None
                return FetchFault(get.rank, get.part, "", "the store does not have it")
            case GetLocal(endpoint):
                sources = [(get.part, endpoint)]
            case GetFrom(source):
                sources = [(get.part, source.endpoint)]
            case GetRebuilt(parts=parts, parities=parities):
                for one in parities:
                    place = Place(folder, one.endpoint, HoldingKind.PARITY, key, one.rank)
                    if place not in self.held or one.server in self.silent():
                        return FetchFault(get.rank, get.part, one.endpoint, "no parity there")
                sources = [(one.rank, one.endpoint) for one in parts]
        for rank, endpoint in sources:
            found = self._find(folder, endpoint, key, rank)
            away = self._server[endpoint] in self.silent()
            if found is None or away or self._is_bad(folder, endpoint, key, rank):
                return FetchFault(get.rank, get.part, endpoint, f"{endpoint} does not have it")
        return None

    def _is_bad(self, folder: str, endpoint: str, key: Key, rank: int) -> bool:
        kinds = (HoldingKind.OWN, HoldingKind.COPY)
        found = {Place(folder, endpoint, kind, key, rank) for kind in kinds} & self.bad
        for place in found:
            self.remove(place)
        return bool(found)

    async def drop_steps(
        self, server: str, folder: str, keys: Sequence[Key], deadline_s: float
    ) -> None:
        self._check("drop_steps", server, tuple(keys))
        for place in self.on(server):
            if place.folder == folder and place.key in keys:
                self.remove(place)

    async def verify_steps(
        self, server: str, folder: str, key: Key | None, deadline_s: float
    ) -> AsyncGenerator[Verified]:
        self._check("verify_steps", server, key)
        for place in sorted(self.on(server), key=str):
            if place.folder == folder and key in {None, place.key}:
                damages = self.held[place].damages
                yield Verified(place.key, place.rank, place.endpoint, place.kind, damages, server)

    async def forget_checkpoints(self, server: str, folder: str, deadline_s: float) -> bool:
        self._check("forget_checkpoints", server, folder)
        if self.running(folder):
            raise EngineError([EngineFault("conflict", f"server/{server}", "a rank runs")])
        gone = {place for place in self.on(server) if place.folder == folder}
        for place in gone:
            del self.held[place]
        return bool(gone)

    # --- helpers --------------------------------------------------------------------------

    def named(self, call: str) -> list[tuple[str, object]]:
        """Return server and content of all calls of a kind."""
        return [(server, what) for name, server, what in self.calls if name == call]

    def _check(self, call: str, server: str, what: object) -> None:
        self.calls.append((call, server, what))
        if server in self.silent():
            raise EngineError([EngineFault("unavailable", f"server/{server}", "no answer")])
        if call in self.broken:
            raise EngineError([EngineFault("failed", f"server/{server}", f"{call} broke")])

    def _find(self, folder: str, endpoint: str, key: Key, rank: int) -> Held | None:
        for kind in (HoldingKind.OWN, HoldingKind.COPY):
            found = self.held.get(Place(folder, endpoint, kind, key, rank))
            if found is not None:
                return found
        return None

    def everything(self, server: str) -> list[HoldingsNews]:
        """Return what a server tells of once it is connected."""
        held = tuple(self._holding(p, self.held[p]) for p in sorted(self.on(server), key=str))
        boot = f"boot-{self.boots.get(server, 0)}"
        return [
            HoldingsNews(server, began=True, boot_id=boot),
            HoldingsNews(server, held[: len(held) // 2]),
            HoldingsNews(server, held[len(held) // 2 :], caught_up=True),
        ]

    def _holding(self, place: Place, held: Held) -> Holding:
        return Holding(
            server=self._server[place.endpoint],
            folder=place.folder,
            key=place.key,
            rank=place.rank,
            endpoint=place.endpoint,
            kind=place.kind,
            digest=held.digest,
            bytes=held.bytes,
            covers=held.covers,
            written_s=0.5 if place.kind is HoldingKind.OWN else None,
            seen_at=1e9,
        )

    def _tell(self, holding: Holding) -> None:
        if holding.server in self.silent():
            return
        for listener in self._listeners:
            listener.put_nowait(HoldingsNews(holding.server, (holding,)))
