"""The ledger of a job's checkpoints, folded from agents' reports. Pure.

A step of one run (``Key``) is *written* when the part of every rank has a manifest, *protected*
when no single failure of the kind in ``apart`` destroys it, *persistent* when a store has every
part. All three follow from what is held now: a lost server reverts a state. Steps are ordered by
their numbers, never by times; parts of two runs, or with two digests, are never put together.

Agents can report all that they hold again, in any order: only runs and spoiled steps, which no
agent holds, must outlive the controller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import NamedTuple

from checkpoints.schemes import Layout
from checkpoints.values import MAX_RANKS, MAX_STEP, Place, Places, Scheme, are_apart

MAX_KEPT = 256
"""Steps in a ledger; beyond that the oldest is dropped, but never the newest written one."""
MAX_RUNS = 4096
"""Runs of a job that are known: the newest. Steps of others are not believed."""
MAX_HOLDERS = 8
"""Holders of one part or parity."""
GIVEN_UP = "the job resumed from an older step"


class Key(NamedTuple):
    """A step of one run. Ordered by step, then by run."""

    step: int
    epoch: int


NOTHING = Key(-1, -1)
"""Before every step."""


class State(StrEnum):
    """How safe a step is now."""

    PARTIAL = "partial"
    WRITTEN = "written"
    PROTECTED = "protected"
    PERSISTENT = "persistent"
    DROPPED = "dropped"
    """It is not to be used: its time line was given up, or it killed the job when loaded."""


@dataclass(slots=True, frozen=True)
class LedgerRun:
    """One run of the job, from a start of its ranks to the next."""

    ranks: int
    layout: Layout = field(default_factory=Layout)
    resumed: Key | None = None
    """What it loaded; None when it began at 0. Later steps of earlier runs are given up."""
    identical: bool = False
    """``replicas: identical``: any rank's part is the whole state."""


@dataclass(slots=True, frozen=True)
class Part:
    """One rank's part of a step."""

    digest: str
    """Digest of its manifest."""
    bytes: int
    own: bool = False
    """The digest was reported by who wrote it; copies must have the same."""
    holders: frozenset[str] = frozenset()
    """Endpoints whose folders have it whole, its writer's and copies'."""
    stored: bool = False
    """A store has it."""


class Member(NamedTuple):
    """One part in a parity."""

    rank: int
    digest: str
    bytes: int


@dataclass(slots=True, frozen=True)
class Parity:
    """The parity that a rank keeps for its set."""

    covers: tuple[Member, ...]
    """The set, in the order of its ring, the keeper included."""
    holders: frozenset[str] = frozenset()


@dataclass(slots=True, frozen=True)
class StepRecord:
    """Agents' reports of one step of one run."""

    parts: Mapping[int, Part] = field(default_factory=dict)
    parities: Mapping[int, Parity] = field(default_factory=dict)


@dataclass(slots=True, frozen=True)
class Ledger:
    """A job's checkpoints. Begins empty; only ``fold`` makes others."""

    runs: Mapping[int, LedgerRun] = field(default_factory=dict)
    """By epoch. To be kept durably."""
    spoiled: Mapping[Key, str] = field(default_factory=dict)
    """Steps never to be restored again, and why. To be kept durably."""
    steps: Mapping[Key, StepRecord] = field(default_factory=dict)
    limits: Mapping[int, Key] = field(default_factory=dict)
    """For each run with later ones: its newest step that none of them gave up."""


@dataclass(slots=True, frozen=True)
class Wrote:
    """An agent found a whole part and wrote its manifest."""

    key: Key
    rank: int
    holder: str
    digest: str
    bytes: int


@dataclass(slots=True, frozen=True)
class Copied:
    """An agent has a copy whose files it compared with the manifest."""

    key: Key
    rank: int
    holder: str
    digest: str
    bytes: int


@dataclass(slots=True, frozen=True)
class Coded:
    """An agent has the parity that ``rank`` keeps of its set.

    ``covers`` are the set's parts in the order of its ring.
    """

    key: Key
    rank: int
    holder: str
    covers: tuple[Member, ...]


@dataclass(slots=True, frozen=True)
class Flushed:
    """A store has a part, flushed and compared."""

    key: Key
    rank: int
    digest: str
    bytes: int


@dataclass(slots=True, frozen=True)
class Missing:
    """A holder no longer has a part (or parity) whole: deleted, damaged, never arrived."""

    key: Key
    rank: int
    holder: str


@dataclass(slots=True, frozen=True)
class ServerLost:
    """A server and all that its endpoints hold is gone (memory after a reset)."""

    endpoints: frozenset[str]


@dataclass(slots=True, frozen=True)
class Spoiled:
    """A step is never to be restored again."""

    key: Key
    why: str


@dataclass(slots=True, frozen=True)
class Began:
    """A run begins."""

    epoch: int
    run: LedgerRun


Report = Wrote | Copied | Coded | Flushed | Missing | ServerLost | Spoiled | Began


def fold(ledger: Ledger, report: Report) -> Ledger:
    """Return the ledger after a report. Reports may come twice, late and in any order.

    What cannot be true changes nothing: a run that is not known, a rank that it does not have, a
    copy with another digest than its writer's.
    """
    match report:
        case Began(epoch, run):
            return _began(ledger, epoch, run)
        case Spoiled(key, why):
            return replace(ledger, spoiled={**ledger.spoiled, key: why})
        case ServerLost(endpoints):
            steps = {key: _without(r, endpoints) for key, r in ledger.steps.items()}
            return replace(ledger, steps=steps)
        case Missing(key, rank, holder):
            record = _without(ledger.steps.get(key, StepRecord()), {holder}, rank)
            return _with(ledger, key, record) if key in ledger.steps else ledger
    return _reported(ledger, report)


def _began(ledger: Ledger, epoch: int, run: LedgerRun) -> Ledger:
    if epoch < 0 or epoch in ledger.runs or not 0 < run.ranks <= MAX_RANKS:
        return ledger
    runs = {**ledger.runs, epoch: run}
    if len(runs) > MAX_RUNS:
        needed = {key.epoch for key in ledger.steps if not dropped(ledger, key)}
        del runs[min(runs.keys() - needed, default=min(runs))]
    limits: dict[int, Key] = {}
    least: Key | None = None
    for one in sorted(runs, reverse=True):
        if least is not None:
            limits[one] = least
        resumed = runs[one].resumed or NOTHING
        least = resumed if least is None else min(least, resumed)
    spoiled = {key: why for key, why in ledger.spoiled.items() if key.epoch in runs}
    steps = {key: record for key, record in ledger.steps.items() if key.epoch in runs}
    return Ledger(runs, spoiled, steps, limits)


def _reported(ledger: Ledger, report: Wrote | Copied | Coded | Flushed) -> Ledger:
    key = report.key
    run = ledger.runs.get(key.epoch)
    if run is None or not 0 <= key.step <= MAX_STEP or not 0 <= report.rank < run.ranks:
        return ledger
    record = ledger.steps.get(key, StepRecord())
    if isinstance(report, Coded):
        members = [member.rank for member in report.covers]
        whole = len(set(members)) == len(members) >= 2 and report.rank in members
        if not whole or not all(0 <= rank < run.ranks for rank in members):
            return ledger
        return _with(ledger, key, _coded(record, report))
    return _with(ledger, key, _held(record, report))


def _held(record: StepRecord, report: Wrote | Copied | Flushed) -> StepRecord:
    part = record.parts.get(report.rank)
    writes = isinstance(report, Wrote)
    if part is None or (part.digest != report.digest and writes):
        # The writer's report replaces the others': their holders have something else.
        part = Part(report.digest, max(0, report.bytes))
    elif part.digest != report.digest:
        return record
    part = replace(part, own=part.own or writes)
    if isinstance(report, Flushed):
        part = replace(part, stored=True)
    elif len(part.holders) < MAX_HOLDERS:
        part = replace(part, holders=part.holders | {report.holder})
    return replace(record, parts={**record.parts, report.rank: part})


def _coded(record: StepRecord, report: Coded) -> StepRecord:
    parity = record.parities.get(report.rank)
    if parity is None or parity.covers != report.covers:
        parity = Parity(report.covers)
    if len(parity.holders) < MAX_HOLDERS:
        parity = replace(parity, holders=parity.holders | {report.holder})
    return replace(record, parities={**record.parities, report.rank: parity})


def _without(record: StepRecord, endpoints: Collection[str], rank: int | None = None) -> StepRecord:
    gone = frozenset(endpoints)
    parts = {
        r: replace(part, holders=part.holders - gone)
        for r, part in record.parts.items()
        if rank in {None, r} and not part.holders.isdisjoint(gone)
    }
    parities = {
        r: replace(parity, holders=parity.holders - gone)
        for r, parity in record.parities.items()
        if rank in {None, r} and not parity.holders.isdisjoint(gone)
    }
    if not parts and not parities:
        return record
    return StepRecord({**record.parts, **parts}, {**record.parities, **parities})


def _with(ledger: Ledger, key: Key, record: StepRecord) -> Ledger:
    steps = {**ledger.steps, key: record}
    if len(steps) > MAX_KEPT:
        known = replace(ledger, steps=steps)
        spent = [k for k in steps if dropped(known, k)]
        written = [k for k in steps if not dropped(known, k) and _manifested(known, k)]
        newest = max(written, default=None)
        del steps[min(spent or [k for k in steps if k != newest])]
    return replace(ledger, steps=steps)


def dropped(ledger: Ledger, key: Key) -> str:
    """Return why a step is not to be used; empty when it may be."""
    if key.epoch not in ledger.runs:
        return "its run is not known"
    if key in ledger.spoiled:
        return ledger.spoiled[key]
    return GIVEN_UP if key > ledger.limits.get(key.epoch, key) else ""


def _manifested(ledger: Ledger, key: Key) -> bool:
    run, record = ledger.runs[key.epoch], ledger.steps[key]
    return bool(record.parts) if run.identical else len(record.parts) == run.ranks


def state(ledger: Ledger, key: Key, places: Places) -> State:
    """Return how safe a step is, with what is held now and where endpoints are homed now."""
    if dropped(ledger, key):
        return State.DROPPED
    if not _manifested(ledger, key):
        return State.PARTIAL
    run, parts = ledger.runs[key.epoch], ledger.steps[key].parts
    if run.identical:
        # Each part is the whole state: together they are one part with many holders.
        holders = frozenset().union(*(part.holders for part in parts.values()))
        parts = {0: Part("", 0, holders=holders, stored=any(p.stored for p in parts.values()))}
    if all(part.stored for part in parts.values()):
        return State.PERSISTENT
    if not all(part.holders or part.stored for part in parts.values()):
        return State.PARTIAL
    alone = next(unprotected(ledger, key, places), None)
    return State.PROTECTED if alone is None else State.WRITTEN


def unprotected(ledger: Ledger, key: Key, places: Places) -> Iterator[int]:
    """Yield the ranks whose part of a written step can be lost with one server or aggregator.

    Of an identical run one part that is held apart is enough for all ranks.
    """
    run, parts = ledger.runs[key.epoch], ledger.steps[key].parts
    if run.identical:
        everywhere = frozenset().union(*(part.holders for part in parts.values()))
        parts = {rank: replace(part, holders=everywhere) for rank, part in parts.items()}
    for rank, part in sorted(parts.items()):
        if run.layout.scheme is Scheme.SINGLE or not (
            part.stored
            or _any_apart(part.holders, run, places)
            or _set_stands(ledger, key, rank, places)
        ):
            yield rank


def is_complete(ledger: Ledger, key: Key, places: Places) -> bool:
    """Return whether older steps may go: protected, or written where nothing protects."""
    found = state(ledger, key, places)
    return found in {State.PROTECTED, State.PERSISTENT} or (
        found is State.WRITTEN and ledger.runs[key.epoch].layout.scheme is Scheme.SINGLE
    )


def _any_apart(holders: Iterable[str], run: LedgerRun, places: Places) -> bool:
    known = [places[name] for name in sorted(holders) if name in places]
    return any(
        are_apart(one, other, run.layout.apart)
        for i, one in enumerate(known)
        for other in known[i + 1 :]
    )


def _set_stands(ledger: Ledger, key: Key, rank: int, places: Places) -> bool:
    """Return whether a rank's set has all parts and parities, each member's on its own place."""
    run, record = ledger.runs[key.epoch], ledger.steps[key]
    parity = record.parities.get(rank)
    homes: list[Place] = []
    for member, _, _ in parity.covers if parity else ():
        part = record.parts.get(member)
        both = (part.holders if part else frozenset()) & _keepers(record, member)
        home = next((places[name] for name in sorted(both) if name in places), None)
        if home is None:
            return False
        homes.append(home)
    return len(homes) >= 2 and all(
        are_apart(one, other, run.layout.apart)
        for i, one in enumerate(homes)
        for other in homes[i + 1 :]
    )


def _keepers(record: StepRecord, rank: int) -> frozenset[str]:
    """Return who holds a rank's parity of exactly the parts that the record has."""
    parity = record.parities.get(rank)
    if parity is None or any(
        record.parts[other].digest != digest
        for other, digest, _ in parity.covers
        if other in record.parts
    ):
        return frozenset()
    return parity.holders


@dataclass(slots=True, frozen=True)
class PartRoute:
    """How one rank's part can be had now."""

    rank: int
    digest: str
    bytes: int
    holders: tuple[str, ...] = ()
    """Endpoints that have it whole, sorted; empty when it must be rebuilt or comes from a store."""
    stored: bool = False
    ring: tuple[Member, ...] = ()
    """To rebuild: the set in the order of its ring, ``rank`` included."""
    parts_from: Mapping[int, str] = field(default_factory=dict)
    """To rebuild: an endpoint with the part of each other member of its set."""
    parities_from: Mapping[int, str] = field(default_factory=dict)


def ways(
    ledger: Ledger, key: Key, servers: Collection[str], places: Places, store: bool
) -> tuple[tuple[PartRoute, ...], str]:
    """Return how the parts of a step can be had from ``servers`` and a store that is up or not.

    One way for each rank; for identical replicas the ways of ranks whose part is left. Returns
    no ways and the reason when the step cannot be had. A part without a manifest can be had when
    the parities of its set name its digest.
    """
    why = dropped(ledger, key)
    if why:
        return (), why
    run = ledger.runs[key.epoch]
    found = []
    for rank in range(run.ranks):
        way = _way(ledger.steps[key], rank, servers, places, store)
        if way is not None:
            found.append(way)
        elif not run.identical:
            known = rank in ledger.steps[key].parts
            lost = "is lost on every server that is left" if known else "was never written whole"
            return (), f"rank {rank}'s part {lost}"
    return tuple(found), "" if found else "no rank's part is left"


def _way(
    record: StepRecord, rank: int, servers: Collection[str], places: Places, store: bool
) -> PartRoute | None:
    part = record.parts.get(rank)
    if part is not None:
        holders, stored = _living(part.holders, servers, places), part.stored and store
        if holders or stored:
            return PartRoute(rank, part.digest, part.bytes, holders, stored)
    return _rebuilt(record, rank, servers, places)


def _rebuilt(
    record: StepRecord, rank: int, servers: Collection[str], places: Places
) -> PartRoute | None:
    rings = {
        parity.covers
        for parity in record.parities.values()
        if any(member.rank == rank for member in parity.covers)
    }
    for ring in sorted(rings):
        way = _from_ring(record, rank, ring, servers, places)
        if way is not None:
            return way
    return None


def _from_ring(
    record: StepRecord,
    rank: int,
    ring: tuple[Member, ...],
    servers: Collection[str],
    places: Places,
) -> PartRoute | None:
    own, parts, parities = Member(rank, "", 0), {}, {}
    for member in ring:
        part, parity = record.parts.get(member.rank), record.parities.get(member.rank)
        if part is not None and part.digest != member.digest:
            return None
        if member.rank == rank:
            own = member
            continue
        if part is None or parity is None or parity.covers != ring:
            return None
        holders = _living(part.holders, servers, places)
        keepers = _living(parity.holders, servers, places)
        if not holders or not keepers:
            return None
        parts[member.rank], parities[member.rank] = holders[0], keepers[0]
    return PartRoute(
        rank, own.digest, own.bytes, ring=ring, parts_from=parts, parities_from=parities
    )


def _living(holders: Collection[str], servers: Collection[str], places: Places) -> tuple[str, ...]:
    return tuple(sorted(h for h in holders if h in places and places[h].server in servers))


def prune(ledger: Ledger, keep: int, places: Places) -> tuple[Key, ...]:
    """Return the steps whose local files may go, the oldest first.

    Dropped steps go at once. Of the others only those go that are older than the ``keep`` (>= 1)
    newest complete ones: nothing goes before that many newer ones are complete.
    """
    if keep < 1:
        raise ValueError("at least one checkpoint must be kept")
    held = {
        key: record
        for key, record in ledger.steps.items()
        if any(part.holders for part in record.parts.values())
        or any(parity.holders for parity in record.parities.values())
    }
    going = {key for key in held if dropped(ledger, key)}
    complete = sorted((k for k in held if is_complete(ledger, k, places)), reverse=True)
    if len(complete) >= keep:
        going |= {key for key in held if key < complete[keep - 1]}
    return tuple(sorted(going))
