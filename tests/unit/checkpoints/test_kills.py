"""Random kills against a model that holds the real bytes of every part, copy and parity."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from random import Random

import pytest

from checkpoints.ledger import (
    Began,
    Coded,
    Copied,
    Flushed,
    Key,
    Ledger,
    LedgerRun,
    Member,
    Missing,
    Report,
    ServerLost,
    Spoiled,
    Wrote,
    fold,
    prune,
)
from checkpoints.manifest import FileSums, Manifest, Sum, measure
from checkpoints.restore import Get, How, Restore, choose_spares, plan
from checkpoints.schemes import Layout, NotApartError, lay_out, parity, rebuild
from checkpoints.values import Apart, Place, Scheme

SCHEDULES = 200
PACES = 120


@dataclass
class World:
    """Servers with files, a store, a job, and a controller that folds what it is told."""

    random: Random
    places: dict[str, Place] = field(default_factory=dict)
    ranks: list[str] = field(default_factory=list)
    alive: set[str] = field(default_factory=set)
    silent: set[str] = field(default_factory=set)
    """Servers that do not answer and hold what they held."""
    unfit: set[str] = field(default_factory=set)
    files: dict[tuple[str, Key, int], bytes] = field(default_factory=dict)
    parities: dict[tuple[str, Key, int], tuple[tuple[Member, ...], bytes]] = field(
        default_factory=dict
    )
    store: dict[tuple[Key, int], bytes] = field(default_factory=dict)
    made: dict[tuple[Key, int], bytes] = field(default_factory=dict)
    """Every whole part that a program of a run still on the time line ever wrote."""
    runs: dict[int, LedgerRun] = field(default_factory=dict)
    spoiled: set[Key] = field(default_factory=set)
    ledger: Ledger = field(default_factory=Ledger)
    scheme: Scheme = Scheme.SINGLE
    epoch: int = 0
    steps: list[int] = field(default_factory=list)
    restores: int = 0

    def begin(self, key: Key | None) -> None:
        try:
            places = [self.places[name] for name in self.ranks]
            layout = lay_out(self.scheme, places, Apart.SERVER, 2)
        except NotApartError:
            layout = Layout()
        self.epoch += 1
        run = LedgerRun(len(self.ranks), layout, key)
        self.runs[self.epoch] = run
        self.steps = [key.step if key else 0] * len(self.ranks)
        self.made = {
            (k, rank): content for (k, rank), content in self.made.items() if key and k <= key
        }
        self.tell(Began(self.epoch, run))

    def tell(self, report: Report) -> None:
        self.ledger = fold(self.ledger, report)

    def reach(self) -> list[tuple[str, Key, int]]:
        """Return the files on servers that answer."""
        return sorted(f for f in self.files if self.places[f[0]].server in self.alive)

    def write(self) -> None:
        rank = self.random.randrange(len(self.ranks))
        if self.steps[rank] > min(self.steps) + 2:
            return
        self.steps[rank] += 1
        key = Key(self.steps[rank], self.epoch)
        content = self.random.randbytes(self.random.randrange(1, 40))
        self.made[key, rank] = content
        if self.random.random() < 0.1:
            del self.made[key, rank]  # killed while it wrote: no manifest, nobody is told
            return
        self.files[self.ranks[rank], key, rank] = content
        self.tell(Wrote(key, rank, self.ranks[rank], digest(key, rank, content), len(content)))

    def copy(self) -> None:
        layout = self.runs[self.epoch].layout
        mine = [f for f in self.reach() if f[1].epoch == self.epoch]
        if not layout.partner or not mine:
            return
        holder, key, rank = self.random.choice(mine)
        other = self.ranks[layout.partner[rank]]
        content = self.files[holder, key, rank]
        self.files[other, key, rank] = content
        self.tell(Copied(key, rank, other, digest(key, rank, content), len(content)))

    def code(self) -> None:
        sets = self.runs[self.epoch].layout.sets
        if not sets:
            return
        members = self.random.choice(sets)
        whole = [
            key
            for key in sorted({key for _, key, _ in self.files if key.epoch == self.epoch})
            if all((self.ranks[rank], key, rank) in self.files for rank in members)
        ]
        if not whole:
            return
        key = self.random.choice(whole[-2:])
        contents = [self.files[self.ranks[rank], key, rank] for rank in members]
        at = self.random.randrange(len(members))
        out = io.BytesIO()
        parity(at, [io.BytesIO(c) for c in contents], [len(c) for c in contents], out)
        ring = tuple(
            Member(rank, digest(key, rank, content), len(content))
            for rank, content in zip(members, contents, strict=True)
        )
        holder = self.ranks[members[at]]
        self.parities[holder, key, members[at]] = (ring, out.getvalue())
        self.tell(Coded(key, members[at], holder, ring))

    def flush(self) -> None:
        if self.reach():
            holder, key, rank = self.random.choice(self.reach())
            content = self.files[holder, key, rank]
            self.store[key, rank] = content
            self.tell(Flushed(key, rank, digest(key, rank, content), len(content)))

    def damage(self) -> None:
        if self.reach():
            found = self.random.choice(self.reach())
            del self.files[found]
            self.parities.pop(found, None)
            self.tell(Missing(found[1], found[2], found[0]))

    def prune(self) -> None:
        before = self.newest(up=False)
        for key in prune(self.ledger, self.random.randrange(1, 3), self.places):
            for holder, k, rank in [*self.files, *self.parities]:
                if k == key and self.places[holder].server in self.alive:
                    self.files.pop((holder, k, rank), None)
                    self.parities.pop((holder, k, rank), None)
                    self.tell(Missing(key, rank, holder))
        assert self.newest(up=False) == before

    def kill_controller(self) -> None:
        """Only runs and spoiled steps are durable; agents and the store tell the rest again."""
        self.ledger = Ledger()
        reports: list[Report] = [Began(epoch, run) for epoch, run in self.runs.items()]
        reports += [Spoiled(key, "it kills") for key in self.spoiled]
        for (key, rank), content in self.store.items():
            reports.append(Flushed(key, rank, digest(key, rank, content), len(content)))
        for server in self.alive:
            reports += self.inventory(server)
        told = reports[len(self.runs) :]
        self.random.shuffle(told)
        for report in (*reports[: len(self.runs)], *told):
            self.tell(report)

    def inventory(self, server: str) -> list[Report]:
        """Return what a server's agent reports when it is asked for all it holds."""
        reports: list[Report] = []
        for (holder, key, rank), content in self.files.items():
            if self.places[holder].server == server:
                kind = Wrote if self.random.random() < 0.5 else Copied
                reports.append(kind(key, rank, holder, digest(key, rank, content), len(content)))
        for (holder, key, rank), (ring, _) in self.parities.items():
            if self.places[holder].server == server:
                reports.append(Coded(key, rank, holder, ring))
        return reports

    def come_back(self) -> None:
        """A server that was silent answers again, with all that it held."""
        gone = sorted(self.silent)
        if gone:
            server = self.random.choice(gone)
            self.silent.discard(server)
            self.alive.add(server)
            self.unfit -= {n for n, p in self.places.items() if p.server == server}
            for report in self.inventory(server):
                self.tell(report)

    def kill(self) -> None:
        """Lose endpoints, or a server with or without what it holds; then restore."""
        kind = self.random.random()
        if kind < 0.3:
            server = self.random.choice(sorted(self.alive))
            self.alive.discard(server)
            self.silent.add(server)
            self.unfit |= {n for n, p in self.places.items() if p.server == server}
        elif kind < 0.6:
            server = self.random.choice(sorted(self.alive))
            self.alive.discard(server)
            gone = frozenset(n for n, p in self.places.items() if p.server == server)
            self.unfit |= gone
            self.files = {f: c for f, c in self.files.items() if f[0] not in gone}
            self.parities = {f: c for f, c in self.parities.items() if f[0] not in gone}
            self.tell(ServerLost(gone))
        else:
            self.unfit.add(self.random.choice(self.ranks))
        if self.random.random() < 0.2:
            self.kill_controller()
        self.recover()

    def recover(self) -> None:
        dead = {name: rank for rank, name in enumerate(self.ranks) if name in self.unfit}
        idle = [n for n in self.places if n not in self.ranks and n not in self.unfit]
        swaps, without = choose_spares(
            dead, {n: dict.fromkeys(dead, 1) for n in idle}, None, self.places, self.alive
        )
        if without:
            return
        for swap in swaps:
            self.ranks[dead[swap.dead]] = swap.spare
        assert len(set(self.ranks)) == len(self.ranks), "an endpoint is held twice"
        assert not set(self.ranks) & self.unfit
        up = self.random.random() < 0.8
        found = plan(self.ledger, self.ranks, self.places, self.alive, store=up)
        assert found.key == self.newest(up), found.why
        assert bool(found.why) or found.key is not None
        self.check(found)
        self.restores += 1
        if found.key is not None and self.random.random() < 0.1:
            self.spoiled.add(found.key)
            self.tell(Spoiled(found.key, "it kills"))
            self.recover()
            return
        for get in found.gets:
            key = self.of(found)
            content, holder = self.made[key, get.way.rank], self.ranks[get.rank]
            self.files[holder, key, get.way.rank] = content
            self.tell(Copied(key, get.way.rank, holder, get.way.digest, len(content)))
        self.begin(found.key)

    def of(self, found: Restore) -> Key:
        assert found.key is not None
        return found.key

    def newest(self, up: bool) -> Key | None:
        """Return the newest step of which all bytes can be had, by looking at the bytes."""
        keys = {key for key, _ in self.made} - self.spoiled
        for key in sorted(keys, reverse=True):
            run = self.runs[key.epoch]
            if all(self.has(key, rank, up) or self.coded(key, rank) for rank in range(run.ranks)):
                return key
        return None

    def has(self, key: Key, rank: int, up: bool = False) -> bool:
        held = any((k, r) == (key, rank) for _, k, r in self.reach())
        return held or (up and (key, rank) in self.store)

    def coded(self, key: Key, rank: int) -> bool:
        members = self.runs[key.epoch].layout.set_of(rank)
        kept = {r for h, k, r in self.parities if k == key and self.places[h].server in self.alive}
        others = [other for other in members if other != rank]
        return bool(others) and all(o in kept and self.has(key, o) for o in others)

    def check(self, found: Restore) -> None:
        """Carry the plan out, and compare every byte with what the run's program wrote."""
        if found.key is None:
            return
        assert [get.rank for get in found.gets] == list(range(len(self.ranks)))
        for get in found.gets:
            assert get.way.rank == get.rank
            wanted = self.made[found.key, get.rank]
            assert self.carried(found.key, get) == wanted
            assert get.way.digest == digest(found.key, get.rank, wanted)

    def carried(self, key: Key, get: Get) -> bytes:
        how, way, source = get.how, get.way, get.source
        if how is How.STORE:
            return self.store[key, way.rank]
        if how is not How.REBUILD:
            here = self.places[self.ranks[get.rank]].server
            assert self.places[source].server in self.alive
            assert (self.places[source].server == here) is (how is How.LOCAL)
            return self.files[source, key, way.rank]
        ring = [member.rank for member in way.ring]
        parts = [
            io.BytesIO(self.files[way.parts_from[r], key, r]) if r != way.rank else None
            for r in ring
        ]
        kept = [
            io.BytesIO(self.parities[way.parities_from[r], key, r][1]) if r != way.rank else None
            for r in ring
        ]
        out = io.BytesIO()
        rebuild(ring.index(way.rank), parts, kept, [m.bytes for m in way.ring], out)
        return out.getvalue()


def digest(key: Key, rank: int, content: bytes) -> str:
    sums: dict[str, Sum] = {f"step-{key.step}": measure(io.BytesIO(content))}
    return Manifest("train", key.epoch, key.step, rank, rank + 1, "rename", FileSums(sums)).digest


def world(seed: int) -> World:
    random = Random(seed)  # noqa: S311
    one = World(random, scheme=random.choice(list(Scheme)))
    per_server = random.randrange(1, 3)
    for server in range(random.randrange(4, 9)):
        one.alive.add(f"srv{server}")
        for i in range(per_server):
            name = f"gpu{server}-{i}"
            one.places[name] = Place(name, f"srv{server}", f"as{server % 3}")
    names = sorted(one.places)
    random.shuffle(names)
    one.ranks = names[: random.randrange(2, min(6, len(names)))]
    one.begin(None)
    return one


def run(seed: int) -> int:
    one = world(seed)
    usual = [one.write] * 6 + [one.copy] * 5 + [one.code] * 5 + [one.flush, one.prune]
    rare = [one.kill, one.kill_controller, one.damage, one.come_back]
    for _ in range(PACES):
        if one.alive and not set(one.ranks) & one.unfit:
            one.random.choice(rare if one.random.random() < 0.08 else usual)()
    return one.restores


@pytest.mark.parametrize("first", range(0, SCHEDULES, 20))
def test_kills_never_mix_steps_and_lose_nothing_that_can_be_had(first: int) -> None:
    restores = [run(seed) for seed in range(first, first + 20)]
    assert sum(restores) > 20
