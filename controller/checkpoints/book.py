"""What is known of one job's checkpoints: its ledger, and what a ledger does not need.

Belongs to the loop. Folding many reports at once happens in a thread: a ledger is a value.
"""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from statistics import median
from typing import TypeVar

from agentlink.checkpoints import Holding, HoldingKind
from base.pools import Pool
from checkpoints import schemes
from checkpoints.ledger import (
    Coded,
    Copied,
    Flushed,
    Key,
    Ledger,
    Missing,
    Report,
    Wrote,
    dropped,
    fold,
    is_complete,
    state,
)
from checkpoints.ledger import State as Safety
from checkpoints.schemes import Layout
from checkpoints.values import Place, Places, Scheme
from controller.base.texts import clipped
from controller.checkpoints import runs
from controller.state.kept.checkpoints import CheckpointRecord
from controller.state.records import CheckpointSpec

Made = TypeVar("Made")

SLOW = 20_000
"""Entries of dictionaries that are copied on the loop at once: about a millisecond."""
SLOW_WORK = 200
"""Ranks times steps whose states are looked at on the loop: about 6 ms."""
MOST_TIMES = 1 << 16
"""Times of writing that are kept of one job's parts."""
MOST_INTERVALS = 64
MOST_IGNORED = 32
"""Remarks about what a program wrote, of one job."""
MOST_STRAY = 1024
"""Steps of unknown runs on one server."""
MOST_WAITING = 1 << 16
"""Parts of one job that await their coordinator."""


@dataclass(slots=True)
class StepTimes:
    """When a step reached its states first, in seconds since 1970; None while it has not."""

    written: float | None = None
    protected: float | None = None
    persistent: float | None = None


@dataclass(slots=True)
class StepFigures:
    """What servers say of one step beside its parts."""

    written_s: dict[int, float] = field(default_factory=dict)
    """By rank: seconds from its first file to its completion."""
    seen_at: float = 0.0
    """The latest time that a writer named, in seconds since 1970."""
    marks: StepTimes = field(default_factory=StepTimes)
    damages: dict[tuple[int, str], tuple[str, ...]] = field(default_factory=dict)
    """By rank and endpoint: what the last verification found; empty when it was as written."""


@dataclass(slots=True, frozen=True)
class StepTotals:
    """One job's steps at the last look, for those who ask often."""

    bytes: Mapping[Safety, int] = field(default_factory=dict)
    """What servers and stores have of them, without copies."""
    written_s: float | None = None
    """The median over ranks of what the newest written step took."""
    newest: Key | None = None
    """The newest written step; it is safe ``since`` then (seconds since 1970), or is not."""
    safe: bool = False
    since: float | None = None
    why: str = ""
    """Why it is not safe."""


class CheckpointBook:
    """One job's checkpoints."""

    def __init__(self, record: CheckpointRecord, pool: Pool) -> None:
        self._pool = pool
        self._turn = asyncio.Lock()
        self.folder = record.folder
        self.ledger = reduce(fold, runs.reports(record), Ledger())
        self.extras: dict[Key, StepFigures] = {}
        """Only of steps that the ledger knows."""
        self.awaits: dict[Key, dict[tuple[str, int], str]] = {}
        """Parts that await their coordinator: by endpoint and rank, the server."""
        self.ignored: dict[str, None] = {}
        """Why servers refuse what the program wrote; the latest last."""
        self.unnamed: dict[tuple[str, int], Holding] = {}
        """By endpoint and rank of the newest run: names that are not steps."""
        self.stray: dict[str, set[Key]] = {}
        """By server: steps of runs that are not known."""
        self.allowed: set[str] = set()
        """Endpoints that were told to keep parts, beside those of the runs."""
        self.restoring = 0
        """Plans under way that may need any step: nothing is dropped meanwhile."""
        self.unprotected_why = ""
        """Why copies are not apart now."""
        self.laid_at: tuple[Place, ...] = ()
        """The places for which the present layout was chosen, in rank order."""
        self.copying: Key | None = None
        """The step that is copied now."""
        self.flushing: Key | None = None
        """The step that goes to the store now."""
        self.counted: set[Key] = set()
        """Steps that were seen complete."""
        self.intervals: deque[float] = deque(maxlen=MOST_INTERVALS)
        """Seconds from one written step of a run to the next."""
        self.sums = StepTotals()
        self.warm_up_s: float | None = None
        """The longest that a run took from its start to its first written step; None before one."""
        self.told: set[str] = set()
        """Warnings that were given and still hold."""
        self.told_unknown: set[str] = set()
        """Servers that keep steps of unknown runs, and were reported."""
        self._of: CheckpointRecord | None = None
        self._ran: dict[int, tuple[str, ...]] = {}
        """Endpoints of the known runs, by epoch."""
        self._ran_on: set[str] = set()
        self._began: dict[int, float] = {}

    # --- what is believed -----------------------------------------------------------------

    def read(self, record: CheckpointRecord) -> None:
        """Learn the job's runs; cheap while they are the same."""
        if record is not self._of:
            self._of = record
            self._ran = {run.epoch: run.endpoints for run in record.runs}
            self._began = {run.epoch: run.began_at for run in record.runs}
            self._ran_on = {name for run in record.runs for name in run.endpoints}

    def believes(self, holding: Holding) -> bool:
        """Whether an endpoint may hold parts of this job: one of its ranks ran there, or will."""
        return holding.endpoint in self._ran_on or holding.endpoint in self.allowed

    def report(self, holding: Holding) -> Report | None:
        """Return the ledger's report of a holding; None when it is not a part.

        Only who ran a rank in the run of a step wrote its part; what others call their own is a
        copy, and must have the writer's digest.
        """
        key, rank, at = holding.key, holding.rank, holding.endpoint
        match holding.kind:
            case HoldingKind.OWN if self._wrote(holding):
                return Wrote(key, rank, at, holding.digest, holding.bytes)
            case HoldingKind.OWN | HoldingKind.COPY:
                return Copied(key, rank, at, holding.digest, holding.bytes)
            case HoldingKind.PARITY:
                return Coded(key, rank, at, holding.covers)
            case HoldingKind.STORED:
                return Flushed(key, rank, holding.digest, holding.bytes)
            case HoldingKind.MISSING:
                return Missing(key, rank, at)
            case _:
                return None

    def note(self, holding: Holding) -> None:
        """Take what a ledger does not keep of a holding that is believed and folded."""
        key, at = holding.key, (holding.endpoint, holding.rank)
        if holding.kind is HoldingKind.IGNORED:
            self._note_names(holding)
            return
        if key.epoch not in self.ledger.runs:
            strays = self.stray.setdefault(holding.server, set())
            if holding.kind is HoldingKind.MISSING:
                strays.discard(key)
            elif len(strays) < MOST_STRAY:
                strays.add(key)
            return
        match holding.kind:
            case HoldingKind.AWAITS:
                if sum(map(len, self.awaits.values())) < MOST_WAITING:
                    self.awaits.setdefault(key, {})[at] = holding.server
            case HoldingKind.OWN:
                self._settle(key, at)
                if key in self.ledger.steps and self._wrote(holding):
                    self._written(holding)
            case HoldingKind.MISSING:
                self._settle(key, at)
            case HoldingKind.REFUSED:
                self._settle(key, at)
                why = clipped(f"rank {holding.rank}, step {key.step}: {holding.why}")
                self.ignored.pop(why, None)
                self.ignored[why] = None
                while len(self.ignored) > MOST_IGNORED:
                    del self.ignored[next(iter(self.ignored))]
            case _:
                pass

    def _note_names(self, holding: Holding) -> None:
        at = (holding.endpoint, holding.rank)
        self.unnamed.pop(at, None)
        if holding.why and self._wrote(holding):
            self.unnamed[at] = holding

    def remarks(self) -> tuple[str, ...]:
        """Return what the program wrote and servers do not hold, the latest last; bounded."""
        ranks: dict[str, list[int]] = {}
        newest = max(self._ran, default=0)
        for one in self.unnamed.values():
            if one.key.epoch == newest:
                ranks.setdefault(clipped(one.why), []).append(one.rank)
        texts = [f"{_ranks(sorted(of))}: {names}" for names, of in ranks.items()]
        return (*texts[:MOST_IGNORED], *self.ignored)

    def unnamed_since(self, epoch: int) -> float | None:
        """Return since when a run has written names that are not steps, in seconds since 1970."""
        times = (one.seen_at for one in self.unnamed.values() if one.key.epoch == epoch)
        return min(times, default=None)

    def restart(self, server: str, endpoints: Collection[str]) -> None:
        """Forget what a server said beside its parts: it says everything again."""
        self.stray.pop(server, None)
        for at in [at for at, one in self.unnamed.items() if one.server == server]:
            del self.unnamed[at]
        for key in list(self.awaits):
            for at in [at for at in self.awaits[key] if at[0] in endpoints]:
                self._settle(key, at)

    def _settle(self, key: Key, at: tuple[str, int]) -> None:
        if key in self.awaits:
            self.awaits[key].pop(at, None)
            if not self.awaits[key]:
                del self.awaits[key]

    def _wrote(self, holding: Holding) -> bool:
        ran = self._ran.get(holding.key.epoch, ())
        return 0 <= holding.rank < len(ran) and ran[holding.rank] == holding.endpoint

    def _written(self, holding: Holding) -> None:
        extra = self.extras.setdefault(holding.key, StepFigures())
        extra.seen_at = max(extra.seen_at, holding.seen_at)
        known = sum(len(one.written_s) for one in self.extras.values())
        if holding.written_s is not None and known < MOST_TIMES:
            extra.written_s[holding.rank] = holding.written_s

    # --- folding --------------------------------------------------------------------------

    async def fold(self, reports: Sequence[Report]) -> None:
        """Fold reports in order, in a thread when they are many. One batch after the other."""
        if not reports:
            return
        async with self._turn:
            ranks = max((run.ranks for run in self.ledger.runs.values()), default=1)
            entries = len(reports) * (ranks + len(self.ledger.steps))
            if entries <= SLOW:
                self.ledger = reduce(fold, reports, self.ledger)
            else:
                self.ledger = await self._pool.run(reduce, fold, reports, self.ledger)
            self._forget()

    async def relay(self, epoch: int, layout: Layout) -> None:
        """Protect a run's steps in another way from now on."""
        async with self._turn:
            known = self.ledger.runs
            if epoch in known:
                run = replace(known[epoch], layout=layout)
                self.ledger = replace(self.ledger, runs={**known, epoch: run})

    def _forget(self) -> None:
        ledger = self.ledger
        self.extras = {key: one for key, one in self.extras.items() if key in ledger.steps}
        self.awaits = {key: one for key, one in self.awaits.items() if key.epoch in ledger.runs}
        self.counted &= ledger.steps.keys()

    # --- what follows ---------------------------------------------------------------------

    async def compute(self, work: Callable[[], Made]) -> Made:
        """Do pure work, in a thread when the job is large."""
        ranks = max((run.ranks for run in self.ledger.runs.values()), default=1)
        if ranks * max(1, len(self.ledger.steps)) <= SLOW_WORK:
            return work()
        return await self._pool.run(work)

    def advance(self, safety: Mapping[Key, Safety], now: float, *, seen: bool) -> list[Key]:
        """Note which steps reached which state; return those that are written since.

        ``seen`` is false while servers report what they held before: those times are not known.
        """
        fresh = []
        for key, found in safety.items():
            if found in {Safety.DROPPED, Safety.PARTIAL}:
                continue
            extra = self.extras.setdefault(key, StepFigures())
            marks = extra.marks
            if marks.written is None:
                marks.written = now if seen or not extra.seen_at else min(now, extra.seen_at)
                fresh.append(key)
                self._measure(key, seen=seen)
            if found in {Safety.PROTECTED, Safety.PERSISTENT} and marks.protected is None:
                marks.protected = now if seen else None
            if found is Safety.PERSISTENT and marks.persistent is None:
                marks.persistent = now if seen else None
        return fresh

    def sum_up(self, safety: Mapping[Key, Safety], sizes: Mapping[Key, int]) -> None:
        """Note the sums of steps that are as safe, and have as many bytes, as these say."""
        sums = Counter[Safety]()
        for key, size in sizes.items():
            sums[safety[key]] += size
        newest = newest_of(safety)
        if newest is None:
            self.sums = StepTotals(sums)
            return
        extra = self.extras.get(newest, StepFigures())
        safe, why = safety[newest] is not Safety.WRITTEN, ""
        if not safe:
            single = self.ledger.runs[newest.epoch].layout.scheme is Scheme.SINGLE
            why = self.unprotected_why or (
                "its checkpoints have no copies"
                if single
                else f"step {newest.step} has no copy elsewhere yet"
            )
        taken = list(extra.written_s.values())
        self.sums = StepTotals(
            bytes=sums,
            written_s=median(taken) if taken else None,
            newest=newest,
            safe=safe,
            since=extra.marks.protected if safe else extra.marks.written,
            why=why,
        )

    def _measure(self, key: Key, *, seen: bool) -> None:
        before = max(
            (k for k, e in self.extras.items() if k.epoch == key.epoch and k < key and _at(e)),
            default=None,
        )
        end = _at(self.extras[key])
        if before is None:
            began = self._began.get(key.epoch)
            if seen and end is not None and began is not None and end >= began:
                self.warm_up_s = max(self.warm_up_s or 0.0, end - began)
            return
        start = _at(self.extras[before])
        if start is not None and end is not None and end > start:
            self.intervals.append(end - start)

    @property
    def interval_s(self) -> float | None:
        """The median time between written steps; None before two."""
        return median(self.intervals) if self.intervals else None

    def last_written(self, epoch: int) -> float | None:
        """Return when the newest step of a run was written, in seconds since 1970."""
        times = [_at(extra) for key, extra in self.extras.items() if key.epoch == epoch]
        return max((at for at in times if at is not None), default=None)


def _ranks(ranks: Sequence[int]) -> str:
    more = f" and {len(ranks) - 1} more" if len(ranks) > 1 else ""
    return f"rank {ranks[0]}{more}"


def safety_of(ledger: Ledger, places: Places) -> dict[Key, Safety]:
    """Return how safe each step is now."""
    return {key: state(ledger, key, places) for key in ledger.steps}


def sizes_of(ledger: Ledger) -> dict[Key, int]:
    """Return the bytes of each step that servers or stores have, without copies."""
    return {
        key: sum(part.bytes for part in record.parts.values() if part.holders or part.stored)
        for key, record in ledger.steps.items()
    }


def newest_of(safety: Mapping[Key, Safety]) -> Key | None:
    """Return the newest written step; None without one."""
    written = (k for k, s in safety.items() if s not in {Safety.PARTIAL, Safety.DROPPED})
    return max(written, default=None)


def complete_of(ledger: Ledger, places: Places) -> list[Key]:
    """Return the complete steps, the newest first."""
    return sorted((k for k in ledger.steps if is_complete(ledger, k, places)), reverse=True)


def was_whole(ledger: Ledger, key: Key) -> bool:
    """Whether all of a step was written, by all ranks, and nothing speaks against its use."""
    run, parts = ledger.runs.get(key.epoch), ledger.steps[key].parts
    if run is None or dropped(ledger, key):
        return False
    return bool(parts) if run.identical else len(parts) == run.ranks


def laid_out(spec: CheckpointSpec, places: Sequence[Place]) -> tuple[Layout, str]:
    """Return a layout for ranks at ``places``; single and the reason when none is possible."""
    try:
        return schemes.lay_out(
            spec.copies.scheme, places, spec.copies.apart, spec.copies.set_size
        ), ""
    except schemes.NotApartError as error:
        return Layout(Scheme.SINGLE, spec.copies.apart), str(error)


def _at(extra: StepFigures) -> float | None:
    return extra.marks.written
