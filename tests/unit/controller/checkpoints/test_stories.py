"""Whatever happens, a job goes on from the newest step that can be had, whole and of one run."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given, note, settings
from hypothesis import strategies as st

from checkpoints.ledger import Key
from checkpoints.schemes import Scheme
from controller.devices.checkpoints import HoldingKind
from tests.parts.controller.checkpoint_rig import Rig
from tests.parts.controller.checkpoints import Place

RANKS = 4
SERVERS = [f"srv{n}" for n in range(4)]
FOLDER = "red.00000001"

OPS = st.one_of(
    st.tuples(st.just("write"), st.just(())),
    st.tuples(st.just("write"), st.sets(st.integers(0, RANKS - 1), min_size=1).map(tuple)),
    st.tuples(st.just("settle"), st.just(())),
    st.tuples(st.just("write"), st.just(())),
    st.tuples(st.just("settle"), st.just(())),
    st.tuples(st.just("lose"), st.sampled_from(SERVERS)),
    st.tuples(st.just("away"), st.sampled_from(SERVERS)),
    st.tuples(st.just("back"), st.sampled_from(SERVERS)),
    st.tuples(st.just("damage"), st.integers(0, 20)),
    st.tuples(st.just("controller"), st.just(())),
    st.tuples(st.just("crash"), st.just(())),
    st.tuples(st.just("start"), st.permutations(range(8)).map(lambda p: tuple(p[:RANKS]))),
    st.tuples(st.just("prefetch"), st.permutations(range(8)).map(lambda p: tuple(p[:RANKS]))),
)


class Story:
    """One job; knows the truth from the servers themselves."""

    def __init__(self, scheme: Scheme, holds_fetched: bool) -> None:
        self.rig = Rig()
        self.rig.kept.holds_fetched = holds_fetched
        self.scheme = scheme
        self.step = 0
        self.runs: list[tuple[int, Key | None]] = []
        self.written: set[Key] = set()

    async def begin(self) -> None:
        await self.rig.up()
        self.rig.submit("red", ["gpu0"] * RANKS, self.scheme)
        assert await self.start((0, 2, 4, 6)) is None

    async def start(self, picks: tuple[int, ...]) -> Key | None:
        endpoints = [f"gpu{n}" for n in picks]
        if any(self.rig.state.cables[e].server in self.rig.away for e in endpoints):
            return None
        await self.rig.quiet()
        expected = self.newest()
        resumed = await self.rig.start("red", endpoints)
        assert resumed == expected, f"{resumed} is restored and {expected} can be had"
        self.runs.append((self.rig.jobs["red"].epoch, resumed))
        return resumed

    async def do(self, name: str, what: object) -> None:  # noqa: PLR0912 - one case an op
        rig = self.rig
        match name, what:
            case "write", tuple(ranks):
                self.step += 10
                self.written.add(rig.write("red", self.step, ranks or None))
            case "settle", _:
                await rig.settle()
                await self.check_protected()
            case "lose", str(server):
                rig.kept.lose(server)
                await rig.back(server)
            case "away", str(server):
                if len(rig.away) < 2:
                    rig.away.add(server)
            case "back", str(server):
                if server in rig.away:
                    await rig.back(server)
            case "damage", int(number):
                places = sorted(
                    (p for p in rig.kept.held if p.kind is not HoldingKind.PARITY), key=str
                )
                if places:
                    rig.kept.bad.add(places[number % len(places)])
            case "controller", _:
                await rig.down()
                await rig.up()
            case "crash", _:
                await rig.crash()
                await rig.up()
            case "start", tuple(picks):
                await self.start(picks)
            case "prefetch", tuple(picks):
                endpoints = [f"gpu{n}" for n in picks]
                if not any(rig.state.cables[e].server in rig.away for e in endpoints):
                    await rig.keeper.prefetch("red", endpoints)
            case _:
                raise AssertionError(name)

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


async def told(scheme: Scheme, holds_fetched: bool, ops: list[tuple[str, object]]) -> None:
    note(f"{scheme} {holds_fetched} {ops}")
    story = Story(scheme, holds_fetched)
    await story.begin()
    try:
        for name, what in ops:
            await story.do(name, what)
        await story.start((1, 3, 5, 7))
    finally:
        await story.rig.crash()


@pytest.mark.parametrize("scheme", [Scheme.PARTNER, Scheme.XOR, Scheme.SINGLE])
@settings(max_examples=40, deadline=None)
@given(st.booleans(), st.lists(OPS, max_size=25))
def test_the_newest_step_that_can_be_had_is_restored(
    scheme: Scheme, holds_fetched: bool, ops: list[tuple[str, object]]
) -> None:
    asyncio.run(told(scheme, holds_fetched, ops))
