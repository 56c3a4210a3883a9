"""What makes a measurement invalid: light that moved, frozen ranks, other traffic, busy servers.

Pure. Kinds judge repetitions and data; this module judges what happened around the jobs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeGuard

from base.figures import figure
from controller.state.records import JobRecord, TransactionRecord
from measure.envelope import Environment
from measure.kinds import Line, MeasuredSite

OTHERS_SHARE = 0.01
"""Most traffic of others on a used link, as a share of the link."""
STRANGERS_AFTER_S = 5
"""Seconds of a run after which what ports carried beyond what known endpoints sent counts: less
may lie in queues."""
LOAD_PERIOD_S = 60.0
"""Of the kernel's first load average, which follows the number of runnable threads."""


def moved_light(
    transactions: Iterable[TransactionRecord],
    used: frozenset[str],
    started_at: float,
    finished_at: float,
) -> list[str]:
    """Return the transactions that moved light of the aggregators ``used`` in a time, with why."""
    found = []
    for tx in transactions:
        places = {at for move in tx.moves for at in (move.source, move.target) if at}
        overlaps = tx.started_at < finished_at and (
            tx.finished_at is None or tx.finished_at > started_at
        )
        if overlaps and places & used:
            where = ", ".join(sorted(places & used))
            found.append(f"transaction {tx.id} moved light under {where} while a run measured")
    return found


@dataclass(slots=True, frozen=True)
class Crossing:
    """What an aggregator sends to, and receives from other aggregators; bit/s, None if unknown."""

    tx_bps: float | None = None
    rx_bps: float | None = None

    def plus(self, tx_bps: float | None, rx_bps: float | None) -> Crossing:
        """Add another link."""
        return Crossing(_sum(self.tx_bps, tx_bps), _sum(self.rx_bps, rx_bps))


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other


@dataclass(slots=True)
class Traffic:
    """The traffic of others on the links that a measurement uses; bit/s of one direction."""

    others_bps: float | None = None
    """The highest; None while nothing is known."""
    own_bps: float = 0.0
    """The highest rate of an endpoint of the measurement: a lower bound of a link's capacity."""
    _strange: dict[str, tuple[int, float]] = field(default_factory=dict)
    """By aggregator: seconds, and the sum of what its ports sent beyond known endpoints."""

    def add(
        self,
        mine: Iterable[str],
        homes: Mapping[str, str | None],
        jobs: Iterable[JobRecord],
        sent: Callable[[str], float | None],
        uplinks: Mapping[str, Crossing] | None = None,
    ) -> None:
        """Add one second. ``jobs`` hold endpoints; ``sent`` is what an endpoint transmits.

        An endpoint's access link carries its own job only. The links between aggregators
        (``uplinks``, by aggregator) are shared. Others send at most what jobs that span several
        aggregators do, and at most what the ports carry. They send at least, in the mean over the
        run, what the ports send beyond what all known endpoints there and other aggregators gave:
        traffic of jobs that are not lightloom's.
        """
        own = set(mine)
        used = {home for name in own if (home := homes.get(name)) is not None}
        self.own_bps = max([self.own_bps, *(sent(name) or 0.0 for name in own)])
        if len(used) < 2:
            self.others_bps = self.others_bps or 0.0
            return
        spanning: dict[str, float | None] = dict.fromkeys(used, 0.0)
        known: dict[str, float | None] = dict.fromkeys(used, 0.0)
        for job in jobs:
            spanned = {homes.get(name) for name in job.endpoints} - {None}
            for name in job.endpoints:
                rate, home = sent(name), homes.get(name)
                if home not in used:
                    continue
                known[home] = _sum(known[home], rate)
                if not own & set(job.endpoints) and len(spanned) > 1:
                    spanning[home] = _sum(spanning[home], rate)
        for home in used:
            crossing = (uplinks or {}).get(home, Crossing())
            most, strangers = spanning[home], self._strangers(home, crossing, known[home])
            if most is None:
                continue
            if crossing.tx_bps is not None:
                most = min(most, crossing.tx_bps)
            self.others_bps = max(self.others_bps or 0.0, most, strangers)

    def _strangers(self, home: str, crossing: Crossing, known: float | None) -> float:
        given = _sum(known, crossing.rx_bps)
        if crossing.tx_bps is None or given is None:
            return 0.0
        seconds, total = self._strange.get(home, (0, 0.0))
        seconds, total = seconds + 1, total + crossing.tx_bps - given
        self._strange[home] = seconds, total
        return total / seconds if seconds >= STRANGERS_AFTER_S else 0.0

    def verdict(self, capacity_bps: float | None) -> str:
        """Return why the traffic of others makes the measurement invalid; empty if it does not."""
        limit = OTHERS_SHARE * (capacity_bps or self.own_bps)
        if self.others_bps is None or self.others_bps <= limit:
            return ""
        return f"others sent up to {figure(self.others_bps / 1e6)} Mbit/s over the same links"


@dataclass(slots=True, frozen=True)
class _Seen:
    at: float
    load: float
    cores: int
    threads: int


def surroundings(
    lines: Iterable[Line], ranks: Mapping[int, Sequence[str]], fabric: MeasuredSite
) -> tuple[Environment, list[str]]:
    """Return where the ranks ran, and the servers that were too busy, with why.

    ``ranks`` has the endpoints of each run in rank order. The load at the first line of a server
    is of others only; later ones include the measurement, whose threads are subtracted as far as
    the average can show them already. On the emulated rack all servers are one machine.
    """
    servers = {place.endpoint: place.server for place in fabric.places}
    first: dict[str, _Seen] = {}
    busy: dict[str, str] = {}
    last: dict[tuple[str, int, int], tuple[str, _Seen]] = {}
    kernel, mtu, cores, highest = "", None, None, None
    for line in lines:
        if (seen := _seen(line)) is None or not 0 <= line.rank < len(ranks.get(line.run, ())):
            continue
        server = servers.get(ranks[line.run][line.rank], "")
        key = "the machine of the rack" if fabric.emulated else f"server {server}"
        kernel = kernel or str(line.record.get("kernel") or "")[:120]
        if mtu is None and _whole(told := line.record.get("mtu")):
            mtu = told
        cores = seen.cores if cores is None else min(cores, seen.cores)
        highest = seen.load if highest is None else max(highest, seen.load)
        if key not in first or seen.at < first[key].at:
            first[key] = seen
        last[key, line.run, line.rank] = key, seen
    for key, begin in first.items():
        if begin.load > begin.cores:
            busy[key] = f"{begin.load:.1f} before it began"
    own: dict[tuple[str, int], int] = {}
    for key, run, rank in last:
        own[key, run] = own.get((key, run), 0) + last[key, run, rank][1].threads
    for (key, run, _), (_, seen) in last.items():
        lasted = max(seen.at - first[key].at, 0.0)
        share = 1.0 - math.exp(-lasted / LOAD_PERIOD_S)
        together = max(count for (of, _), count in own.items() if of == key)
        others = seen.load - max(own[key, run], together) * share
        if others > seen.cores:
            busy.setdefault(key, f"{others:.1f} besides the measurement")
    environment = Environment(mtu=mtu, kernel=kernel, cores=cores, load_1m=highest)
    return environment, [
        f"{key} was busy: load {text}, {first[key].cores} cores" for key, text in busy.items()
    ]


def _seen(line: Line) -> _Seen | None:
    record = line.record
    if record.get("probe") != "environment":
        return None
    at, load = record.get("at"), record.get("load_1m")
    cores, threads = record.get("cores"), record.get("threads", 1)
    if not isinstance(at, int | float) or not isinstance(load, int | float):
        return None
    if not _whole(cores) or not _whole(threads):
        return None
    return _Seen(float(at), float(load), cores, threads)


def _whole(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value < 10**6
