"""What servers are to keep of a job's steps, and what may go. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from agentlink.checkpoints import Keep, KeepCopy, KeepParity, KeepStored, Source
from agentlink.values import VolumeMount
from checkpoints.ledger import (
    NOTHING,
    Key,
    Ledger,
    Member,
    Part,
    StepRecord,
    is_complete,
    prune,
    state,
    unprotected,
)
from checkpoints.ledger import State as Safety
from checkpoints.schemes import Layout
from checkpoints.values import Places, Scheme, are_apart
from sitefile import CabledSite

PACE = 0.1
"""Part of an access link that copies of checkpoints may take: the rest is the training's."""

Wanted = Mapping[str, tuple[Keep, ...]]
"""By server: what it is to keep."""


@dataclass(slots=True, frozen=True)
class RunningRanks:
    """A job's ranks as they run now."""

    epoch: int
    endpoints: tuple[str, ...]
    """In rank order."""
    ips: Mapping[str, str]
    """By endpoint."""
    layout: Layout
    """How steps are protected at the places of now."""


@dataclass(slots=True, frozen=True)
class Flush:
    """A step that goes to a store."""

    key: Key
    store: VolumeMount


def pace_bps(site: CabledSite) -> int:
    """Return the limit of one copy in bits per second; 0, no limit, without the site's rates."""
    rates = site.scheduling.regroup.rates or site.emulation
    return 0 if rates is None else max(1, int(PACE * rates.access_bps))


def target(
    ledger: Ledger,
    running: RunningRanks,
    places: Places,
    safety: Mapping[Key, Safety],
    now: Key | None,
) -> Key | None:
    """Return the step worth a copy; None when the newest has one.

    ``now`` is the step that is being copied: it is finished before another begins, as a job that
    writes faster than its servers copy would have no protected step otherwise. Then it is the
    newest written step, and what this run writes after that while nothing else is to be done.
    A step that the running ranks can never protect gives up its turn, which it would keep for
    ever: only a lost endpoint has one of its parts, or its sets of parities have changed.
    """
    written = [k for k, s in safety.items() if s not in {Safety.PARTIAL, Safety.DROPPED}]
    newest = max(written, default=None)
    for key in (now, newest):
        if key is None or safety.get(key) is not Safety.WRITTEN:
            continue
        if _within_reach(key, ledger, running, places):
            return key
    return max(
        (
            key
            for key, found in safety.items()
            if found is Safety.PARTIAL
            and key.epoch == running.epoch
            and (newest is None or key > newest)
        ),
        default=None,
    )


def _within_reach(key: Key, ledger: Ledger, running: RunningRanks, places: Places) -> bool:
    """Whether the running ranks have what it takes to protect a written step."""
    if key not in ledger.steps:  # its files went since
        return False
    parts, here = ledger.steps[key].parts, frozenset(running.endpoints)
    if ledger.runs[key.epoch].identical:
        return any(part.holders & here for part in parts.values())
    if running.layout.scheme is Scheme.PARTNER:
        sources = {rank for rank, part in parts.items() if part.holders & here}
    else:
        if not _parities(key, ledger.steps[key], running, places):  # its old parities stand
            return False
        sources = {rank for rank, part in parts.items() if _at_home(rank, part, running)}
    sets = {rank: members for members in running.layout.sets for rank in members}
    return all(
        sources.issuperset(sets.get(rank, (rank,))) for rank in unprotected(ledger, key, places)
    )


def wanted(
    ledger: Ledger,
    running: RunningRanks,
    places: Places,
    copying: Key | None,
    flush: Flush | None,
) -> Wanted:
    """Return what each server of the running ranks is to make now, besides what is held.

    ``copying`` is the step that is worth a copy, ``flush`` what goes to a store.
    Copies and parities move between the addresses of running ranks: a part that only other
    endpoints hold is not copied.
    """
    found: list[tuple[int, Keep]] = []
    if copying is not None and copying in ledger.steps:
        record, identical = ledger.steps[copying], ledger.runs[copying.epoch].identical
        comes = identical and _comes_apart(copying, ledger, running, places)
        if running.layout.scheme is Scheme.PARTNER and not comes:
            found += _copies(copying, record, running, places, identical)
        elif running.layout.scheme is Scheme.XOR and not identical:
            found += _parities(copying, record, running, places)
    if flush is not None and flush.key in ledger.steps:
        found += _stored(flush, ledger, running)
    keeps: dict[str, list[Keep]] = {}
    for rank, keep in found:
        keeps.setdefault(places[running.endpoints[rank]].server, []).append(keep)
    return {server: tuple(some) for server, some in keeps.items()}


def _comes_apart(key: Key, ledger: Ledger, running: RunningRanks, places: Places) -> bool:
    """Whether ranks on servers apart are about to have written an identical step: none is copied.

    Those that wrote the step before this one write this one as well, if not at the same moment.
    """
    earlier = max((k for k in ledger.steps if k.epoch == key.epoch and k < key), default=None)
    if earlier is None:
        return False
    writers = ledger.steps[earlier].parts.keys()
    homes = [running.endpoints[rank] for rank in writers if rank < len(running.endpoints)]
    awaited = writers - ledger.steps[key].parts.keys()
    return bool(awaited) and _any_apart(homes, running.layout, places)


def _copies(
    key: Key, record: StepRecord, running: RunningRanks, places: Places, identical: bool
) -> list[tuple[int, Keep]]:
    partner, found = running.layout.partner, list[tuple[int, Keep]]()
    apart = running.layout.apart
    index = {endpoint: rank for rank, endpoint in enumerate(running.endpoints)}
    parts = sorted(record.parts.items())
    if identical:  # each part is the whole state: copies of one are enough
        if _any_apart([h for _, p in parts for h in p.holders], running.layout, places):
            return []
        parts = [(rank, part) for rank, part in parts if part.holders & index.keys()][:1]
    for rank, part in parts:
        if _any_apart(part.holders, running.layout, places):
            continue
        own = running.endpoints[rank] if rank < len(running.endpoints) else ""
        sources = sorted(part.holders & index.keys(), key=lambda name: (name != own, name))
        if not sources:
            continue
        keeper = partner[index[sources[0]]]
        at = running.endpoints[keeper]
        if at in part.holders or not are_apart(places[at], places[sources[0]], apart):
            continue
        copy = KeepCopy(keeper, key, _source(rank, part, sources[0], running, places))
        found.append((keeper, copy))
    return found


def _parities(
    key: Key, record: StepRecord, running: RunningRanks, places: Places
) -> list[tuple[int, Keep]]:
    found: list[tuple[int, Keep]] = []
    for ring in running.layout.sets:
        parts = [record.parts.get(rank) for rank in ring]
        covers = []
        for rank, part in zip(ring, parts, strict=True):
            if part is None or running.endpoints[rank] not in part.holders:
                break
            covers.append(Member(rank, part.digest, part.bytes))
        else:
            members = tuple(
                Source(
                    member.rank,
                    member.digest,
                    member.bytes,
                    running.endpoints[member.rank],
                    places[running.endpoints[member.rank]].server,
                    running.ips.get(running.endpoints[member.rank], ""),
                )
                for member in covers
            )
            for rank in ring:
                parity = record.parities.get(rank)
                held = parity is not None and running.endpoints[rank] in parity.holders
                if held and parity is not None and parity.covers == tuple(covers):
                    continue
                if parity is None or not _stands(record, parity.covers):
                    found.append((rank, KeepParity(rank, key, members)))
    return found


def _stands(record: StepRecord, ring: tuple[Member, ...]) -> bool:
    """Whether a lost part of a set can be rebuilt: its parities are not to be replaced then."""
    return all(
        (part := record.parts.get(member.rank)) is not None
        and part.holders
        and (parity := record.parities.get(member.rank)) is not None
        and parity.holders
        and parity.covers == ring
        for member in ring
    )


def _stored(flush: Flush, ledger: Ledger, running: RunningRanks) -> list[tuple[int, Keep]]:
    record = ledger.steps[flush.key]
    parts = sorted(record.parts.items())
    if ledger.runs[flush.key.epoch].identical:
        if any(part.stored for _, part in parts):
            return []
        parts = [(r, p) for r, p in parts if _at_home(r, p, running)][:1]
    return [
        (rank, KeepStored(rank, flush.key, flush.store))
        for rank, part in parts
        if not part.stored and _at_home(rank, part, running)
    ]


def _at_home(rank: int, part: Part, running: RunningRanks) -> bool:
    return rank < len(running.endpoints) and running.endpoints[rank] in part.holders


def _source(rank: int, part: Part, holder: str, running: RunningRanks, places: Places) -> Source:
    server, ip = places[holder].server, running.ips.get(holder, "")
    return Source(rank, part.digest, part.bytes, holder, server, ip)


def _any_apart(holders: Collection[str], layout: Layout, places: Places) -> bool:
    known = [places[name] for name in holders if name in places]
    return any(
        are_apart(one, other, layout.apart)
        for i, one in enumerate(known)
        for other in known[i + 1 :]
    )


def next_flush(
    now: Key | None, safety: Mapping[Key, Safety], complete: Sequence[Key], every: int
) -> Key | None:
    """Return the step that is to go to the store: the newest, at every ``every``-th complete one.

    ``complete`` are those that were seen complete, the newest first, also those that went since;
    steps are counted from the last persistent one. ``now`` is the step that is on its way.
    """
    persistent = max((k for k, s in safety.items() if s is Safety.PERSISTENT), default=None)
    if now is not None and safety.get(now) in {Safety.WRITTEN, Safety.PROTECTED}:
        return now
    since = [key for key in complete if persistent is None or key > persistent]
    usable = [k for k in since if safety.get(k) in {Safety.WRITTEN, Safety.PROTECTED}]
    return max(usable, default=None) if len(since) >= every else None


def droppable(
    ledger: Ledger,
    keep: int,
    places: Places,
    stays: Collection[Key],
    flushing: Key | None,
    *,
    all_told: bool = True,
) -> tuple[Key, ...]:
    """Return the steps whose local files may go, the oldest first.

    ``all_told``: every server of the job has said what it holds, so that a partial step is one.

    The step that goes to the store stays, as one of the ``keep``: the space of ranks is for so
    many. With ``keep`` 1 the newest is worth more. A written step without copies goes once a
    newer one is written, unless it ``stays``: it was seen complete, or it is being copied.
    """
    going = set(prune(ledger, keep, places))
    written = {key for key in ledger.steps if state(ledger, key, places) is Safety.WRITTEN}
    going |= written - {*stays, flushing, max(written, default=None)}
    if all_told:
        going |= _given_up(ledger, keep, places) - {*stays}
    if flushing in going and flushing is not None and keep > 1:
        if not is_complete(ledger, flushing, places):
            return tuple(sorted(going))
        complete = sorted((k for k in ledger.steps if _held(ledger, k, places)), reverse=True)
        going.discard(flushing)
        going |= set(complete[keep - 1 :]) - {flushing}
    return tuple(sorted(going))


def _given_up(ledger: Ledger, keep: int, places: Places) -> set[Key]:
    """Return the partial steps that no rank completes any more.

    They are older than a complete one of the run or of a later run, or than ``keep`` + 1 partial
    ones of the same run: a rank may never write its part. A rank that has a newer part may still
    report an older one: agents hold the newest first. What parities rebuild is not partial.
    """
    complete: list[Key] = []
    of_runs: dict[int, list[Key]] = {}
    for key, record in sorted(ledger.steps.items(), reverse=True):
        if not any(part.holders or part.stored for part in record.parts.values()):
            continue
        if is_complete(ledger, key, places):
            complete.append(key)
            continue
        coded = any(parity.holders for parity in record.parities.values())
        if state(ledger, key, places) is Safety.PARTIAL and not coded:
            of_runs.setdefault(key.epoch, []).append(key)
    going: set[Key] = set()
    for epoch, partial in of_runs.items():
        newest = max((key for key in complete if key.epoch >= epoch), default=NOTHING)
        going |= {*partial[keep + 1 :], *(key for key in partial if key < newest)}
    return going


def _held(ledger: Ledger, key: Key, places: Places) -> bool:
    parts = ledger.steps[key].parts.values()
    return any(part.holders for part in parts) and is_complete(ledger, key, places)


def holders_of(record: StepRecord) -> frozenset[str]:
    """Return the endpoints that hold a part or a parity of a step."""
    return frozenset().union(
        *(part.holders for part in record.parts.values()),
        *(parity.holders for parity in record.parities.values()),
    )
