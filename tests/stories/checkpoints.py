"""Whatever happens, a job goes on from the newest step that can be had, whole and of one run."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Collection, Sequence
from dataclasses import dataclass
from typing import Literal

from agentlink.checkpoints import FetchProgress, Folder, GetPart, HoldingKind, Keep
from checkpoints.ledger import Key
from checkpoints.values import Scheme
from controller.state.writes import Write
from testbed.simulated.lives import DiedError
from testbed.simulated.loop import answered
from tests.parts.controller.checkpoint_rig import MemoryStore, Rig
from tests.parts.controller.checkpoints import FakeCheckpointEngine, Place
from tests.stories.dying import Dying
from tests.stories.telling import Log, tell

RANKS = 4
SERVERS = [f"srv{n}" for n in range(4)]
DISK_S = 0.1
"""Longest time of a commit, once before and once after it is made."""
QUIET_S = 1.0
"""By then all has happened that was begun."""


@dataclass(frozen=True)
class Step:
    """Something that happens when the step before it is over."""

    what: Literal[
        "write",
        "settle",
        "lose",
        "away",
        "back",
        "damage",
        "restart",
        "start",
        "prefetch",
        "die",
        "die at",
    ]
    number: int = 0
    """Of a server, or of a place. ``die``: within what follows, after so many turns of the loop;
    ``die at`` the failpoint of that number."""
    picks: tuple[int, ...] = ()
    """Ranks that write, all without any; endpoints of a start."""


@dataclass(frozen=True)
class Script:
    """A job's scheme of copies, and what happens to it."""

    scheme: Scheme
    holds_fetched: bool
    """What a server fetched counts as held there."""
    steps: tuple[Step, ...]


class LateStore(MemoryStore):
    """A store as slow as the seed draws."""

    async def commit(self, *writes: Write) -> None:
        await answered(DISK_S)
        await super().commit(*writes)
        await answered(DISK_S)


class LateServers(FakeCheckpointEngine):
    """Servers whose answers take a time by seed."""

    async def keep(
        self, server: str, folder: str, keeps: Sequence[Keep], pace_bps: int, deadline_s: float
    ) -> None:
        await super().keep(server, folder, keeps, pace_bps, deadline_s)
        await answered()

    async def fetch(
        self, server: str, folder: Folder, key: Key, gets: Sequence[GetPart], deadline_s: float
    ) -> AsyncGenerator[FetchProgress]:
        await answered()
        async for progress in super().fetch(server, folder, key, gets, deadline_s):
            yield progress
            await answered()

    async def drop_steps(
        self, server: str, folder: str, keys: Sequence[Key], deadline_s: float
    ) -> None:
        await answered()
        await super().drop_steps(server, folder, keys, deadline_s)
        await answered()


class LateRig(Rig):
    """A keeper over late servers and a late store."""

    def __init__(self) -> None:
        super().__init__()
        self.store = LateStore()
        self.kept = LateServers(
            self.site, silent=lambda: self.away, beside=self._beside, running=self._runs
        )

    async def quiet(self) -> None:
        await asyncio.sleep(QUIET_S)


class Checkpoints:
    """One job; knows the truth from the servers themselves."""

    def __init__(self, log: Log, script: Script) -> None:
        self.rig = LateRig()
        self.rig.kept.holds_fetched = script.holds_fetched
        self._script = script
        self._log = log
        self._dying = Dying(log)
        self.step = 0
        self.runs: list[tuple[int, Key | None]] = []
        """Epochs of runs that are durable, and what they resumed from."""
        self.written: set[Key] = set()

    async def run(self) -> None:
        """Let a job start, carry out all steps, and let it start again."""
        rig = self.rig
        with self._dying.hooked():
            await self._up()
            rig.submit("red", ["gpu0"] * RANKS, self._script.scheme)
            await rig.state.journal.flush()
            assert await self.start((0, 2, 4, 6)) is None
            for step in self._script.steps:
                self._log.note(f"{step.what} {step.number} {step.picks}")
                await self._do(step)
            self._dying.doom()
            await self.start((1, 3, 5, 7))

    async def _up(self) -> None:
        while True:
            self._dying.begin()
            try:
                return await self._dying.do(self.rig.up())
            except DiedError:
                self._log.note("the controller dies")

    async def start(self, picks: Sequence[int]) -> Key | None:
        """Start the ranks, again when the controller dies; what they resume from is the newest."""
        rig, endpoints = self.rig, [f"gpu{n}" for n in picks]
        if self._away(endpoints):
            return None
        while True:
            await rig.quiet()
            expected = self.newest()
            try:
                resumed = await self._dying.do(rig.start("red", endpoints))
            except DiedError:
                await self._again()
                continue
            self._log.note(f"resumes from {resumed}")
            assert resumed == expected, f"{resumed} is restored and {expected} can be had"
            self.runs.append((rig.jobs["red"].epoch, resumed))
            return resumed

    async def _again(self) -> None:
        """Let another controller start; a run that began may be durable."""
        self._log.note("the controller dies")
        (record,) = self.rig.store.records()
        known = {epoch for epoch, _ in self.runs}
        self.runs += [(r.epoch, r.run.resumed) for r in record.runs if r.epoch not in known]
        await self._up()

    def _away(self, endpoints: Collection[str]) -> bool:
        return any(self.rig.state.cables[e].server in self.rig.away for e in endpoints)

    async def _do(self, step: Step) -> None:
        rig, server = self.rig, SERVERS[step.number % len(SERVERS)]
        match step.what:
            case "write":
                self.step += 10
                self.written.add(rig.write("red", self.step, step.picks or None))
            case "lose":
                rig.kept.lose(server)
                await rig.back(server)
            case "away" if len(rig.away) < 2:
                rig.away.add(server)
            case "back" if server in rig.away:
                await rig.back(server)
            case "damage":
                places = sorted(
                    (p for p in rig.kept.held if p.kind is not HoldingKind.PARITY), key=str
                )
                if places:
                    rig.kept.bad.add(places[step.number % len(places)])
            case "start":
                await self.start(step.picks)
            case "die":
                self._dying.doom(turns=step.number)
            case "die at":
                self._dying.doom(points=step.number)
            case "settle" | "prefetch" | "restart":
                try:
                    await self._keep(step)
                except DiedError:
                    await self._again()

    async def _keep(self, step: Step) -> None:
        """Let the keeper do something in which it may die."""
        rig = self.rig
        endpoints = [f"gpu{n}" for n in step.picks]
        if step.what == "settle":
            await self._dying.do(rig.settle())
            await self.check_protected()
        elif step.what == "restart":
            await self._dying.do(rig.down())
            await self._up()
        elif not self._away(endpoints):
            await self._dying.do(rig.keeper.prefetch("red", endpoints))

    # --- the truth ------------------------------------------------------------------------

    def newest(self, without: str = "") -> Key | None:
        """Return the newest step that servers which answer have whole."""
        for key in sorted(self.written, reverse=True):
            given_up = any(
                key.epoch < epoch and key > (resumed or Key(-1, -1)) for epoch, resumed in self.runs
            )
            if not given_up and all(self.can_be_had(key, r, without) for r in range(RANKS)):
                return key
        return None

    def can_be_had(self, key: Key, rank: int, without: str) -> bool:
        if self.has_part(key, rank, without):
            return True
        rings = {
            held.covers
            for place, held in self.rig.kept.held.items()
            if place.kind is HoldingKind.PARITY and place.key == key
        }
        return any(
            all(
                self.has_part(key, m.rank, without) and self.has_parity(key, m.rank, without, ring)
                for m in ring
                if m.rank != rank
            )
            for ring in rings
            if rank in {m.rank for m in ring}
        )

    def lives(self, place: Place, without: str) -> bool:
        server = self.rig.state.cables[place.endpoint].server
        return server not in self.rig.away and server != without

    def has_part(self, key: Key, rank: int, without: str) -> bool:
        return any(
            place.kind in {HoldingKind.OWN, HoldingKind.COPY}
            and (place.key, place.rank) == (key, rank)
            and self.lives(place, without)
            and place not in self.rig.kept.bad
            for place in self.rig.kept.held
        )

    def has_parity(self, key: Key, rank: int, without: str, ring: object) -> bool:
        return any(
            place.kind is HoldingKind.PARITY
            and (place.key, place.rank) == (key, rank)
            and held.covers == ring
            and self.lives(place, without)
            for place, held in self.rig.kept.held.items()
        )

    async def check_protected(self) -> None:
        """A step called protected outlives any one server that answers, damage apart."""
        if self.rig.kept.bad & self.rig.kept.held.keys() or self.rig.away:
            return
        key = self.rig.keeper.newest("red", protected=True)
        for server in SERVERS:
            left = self.newest(without=server)
            assert key is None or (left is not None and left >= key), f"{key} goes with {server}"


def story(script: Script, seed: int) -> Log:
    """Tell a story of checkpoints; AssertionError when an older step is restored."""

    async def told(log: Log) -> None:
        await Checkpoints(log, script).run()

    return tell(told, seed)
