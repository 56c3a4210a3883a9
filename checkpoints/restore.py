"""Which step a job goes on from, and how each rank gets its part. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from checkpoints.ledger import Key, Ledger, PartRoute, StepRecord, ways
from checkpoints.values import Places

MAX_REASONS = 8
DEATHS = 2
"""Deaths of a job on good endpoints before its first step that spoil the step it loaded."""


class How(StrEnum):
    """How a rank gets a part."""

    LOCAL = "local"
    FETCH = "fetch"
    REBUILD = "rebuild"
    STORE = "store"


@dataclass(slots=True, frozen=True)
class Get:
    """One part that a rank needs before its command starts."""

    rank: int
    """The rank in the new run."""
    how: How
    source: str
    """The endpoint whose folder has it (``local``: on the rank's server); else empty."""
    way: PartRoute
    """The part to read: another rank's where replicas are identical or parts are shared."""


@dataclass(slots=True, frozen=True)
class Restore:
    """What a run starts with. ``key`` is None for a start at 0."""

    key: Key | None
    gets: tuple[Get, ...] = ()
    """In the order of the ranks."""
    everywhere: tuple[PartRoute, ...] = ()
    """Parts that every server of the job needs besides, as its ranks may read all (``dcp``)."""
    why: str = ""
    """Warning why not a newer step, or why from 0. Empty when the newest serves."""

    @property
    def moved(self) -> int:
        """Bytes of ranks' parts that are fetched or rebuilt, ``everywhere`` not counted."""
        return sum(get.way.bytes for get in self.gets if get.how is not How.LOCAL)


def plan(
    ledger: Ledger,
    ranks: Sequence[str],
    places: Places,
    servers: Collection[str],
    *,
    store: bool,
    gathers: bool = False,
) -> Restore:
    """Plan the restore of ``ranks`` (endpoints in rank order) from the newest step that exists.

    ``servers`` are those that answer; ``store`` whether the job's store does. ``gathers``: a
    rank may read all parts (``dcp``), so their number may be another. Every part of a plan is of
    one step of one run: written by all its ranks (by any, where replicas are identical), and each
    is held, rebuildable or stored.
    """
    skipped: list[str] = []
    for key in sorted(ledger.steps, reverse=True):
        found, why = ways(ledger, key, servers, places, store)
        run = ledger.runs.get(key.epoch)
        identical = run is not None and run.identical
        if found and run and run.ranks != len(ranks) and not (gathers or identical):
            found, why = (), f"it has {run.ranks} parts and the job has {len(ranks)} ranks"
        if found:
            gets = (_any if identical else _own)(found, ranks, places)
            return Restore(key, gets, found if gathers else (), _reasons(skipped))
        skipped.append(f"step {key.step} of run {key.epoch}: {why}")
    if not skipped:
        return Restore(None, why="the job starts at step 0: it has no checkpoint")
    return Restore(None, why="the job starts at step 0: " + _reasons(skipped))


def _reasons(skipped: Sequence[str]) -> str:
    more = len(skipped) - MAX_REASONS
    text = "; ".join(skipped[:MAX_REASONS])
    return f"{text}; and {more} older ones" if more > 0 else text


def _own(found: Sequence[PartRoute], ranks: Sequence[str], places: Places) -> tuple[Get, ...]:
    """Return how each rank gets its own part; ranks beyond the parts get none."""
    by_rank = {way.rank: way for way in found}
    return tuple(
        _get(by_rank[rank], rank, places[endpoint].server, places)
        for rank, endpoint in enumerate(ranks)
        if rank in by_rank
    )


def _any(found: Sequence[PartRoute], ranks: Sequence[str], places: Places) -> tuple[Get, ...]:
    """Return how each rank gets a part that serves all: from its server, else spread over all."""
    here: dict[str, PartRoute] = {}
    for way in found:
        for holder in way.holders:
            here.setdefault(places[holder].server, way)
    held = [way for way in found if way.holders] or found
    gets = []
    for rank, endpoint in enumerate(ranks):
        server = places[endpoint].server
        way = here.get(server, held[rank % len(held)])
        gets.append(_get(way, rank, server, places))
    return tuple(gets)


def _get(way: PartRoute, rank: int, server: str, places: Places) -> Get:
    here = [name for name in way.holders if places[name].server == server]
    how, source = How.STORE, ""
    if here:
        how, source = How.LOCAL, here[0]
    elif way.holders:
        how, source = How.FETCH, way.holders[rank % len(way.holders)]
    elif not way.stored:
        how = How.REBUILD
    return Get(rank, how, source, way)


@dataclass(slots=True, frozen=True)
class Swap:
    """Which spare replaces a dead endpoint."""

    dead: str
    spare: str
    local: bool
    """The dead rank's part is on the spare's server already."""


def choose_spares(
    dead: Mapping[str, int],
    spares: Mapping[str, Mapping[str, int]],
    record: StepRecord | None,
    places: Places,
    servers: Collection[str],
) -> tuple[tuple[Swap, ...], tuple[str, ...]]:
    """Choose a spare for each dead endpoint: ``dead`` names its rank.

    ``spares`` names, for each idle endpoint, the dead ones whose port it can use and the moves
    of light that this needs. Preferred is a spare on a server with the dead rank's part, then
    fewest moves, then the name. As many dead endpoints as possible get one. Returns the swaps and
    the dead endpoints without a spare.
    """
    offers: dict[str, list[tuple[bool, int, str]]] = {}
    for name, rank in dead.items():
        part = record.parts.get(rank) if record else None
        holding = {places[h].server for h in part.holders if h in places} if part else set()
        offers[name] = sorted(
            (places[spare].server not in holding, moves[name], spare)
            for spare, moves in spares.items()
            if name in moves and places[spare].server in servers and spare not in dead
        )
    taken: dict[str, str] = {}
    chosen: dict[str, str] = {}
    for name in sorted(dead, key=lambda n: (len(offers[n]), dead[n])):
        _augment(name, offers, taken, chosen)
    far = {name: {spare: f for f, _, spare in offers[name]} for name in dead}
    swaps = tuple(
        Swap(name, chosen[name], not far[name][chosen[name]])
        for name in sorted(chosen, key=lambda n: dead[n])
    )
    return swaps, tuple(sorted(dead.keys() - chosen.keys()))


def _augment(
    start: str,
    offers: Mapping[str, Sequence[tuple[bool, int, str]]],
    taken: dict[str, str],
    chosen: dict[str, str],
) -> None:
    """Give ``start`` a spare, the best free one or by shortest exchange with others, if any."""
    came: dict[str, str] = {}
    waiting = [start]
    for name in waiting:  # grows while it runs
        for _, _, spare in offers[name]:
            if spare in came:
                continue
            came[spare] = name
            if spare in taken:
                waiting.append(taken[spare])
                continue
            end: str | None = spare
            while end is not None:
                owner = came[end]
                before = chosen.get(owner)
                taken[end], chosen[owner] = owner, end
                end = before
            return


@dataclass(slots=True, frozen=True)
class Attempt:
    """One start of the job, in order of time."""

    key: Key | None
    """What it loaded."""
    first_step: bool
    """It made a step after that."""
    unfit: bool = False
    """It died with an endpoint, server or aggregator, not by itself."""


def spoiled(attempts: Sequence[Attempt]) -> Key | None:
    """Return the step that the last ``DEATHS`` own deaths all loaded and none outlived."""
    own = [attempt for attempt in attempts if not attempt.unfit][-DEATHS:]
    if len(own) < DEATHS or any(attempt.first_step for attempt in own):
        return None
    keys = {attempt.key for attempt in own}
    return keys.pop() if len(keys) == 1 else None
