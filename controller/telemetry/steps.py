"""Learns the durations of the jobs' steps from port counters; predicts the effect of a plan.

A step sends the same number of bytes wherever the job is placed, so its duration is one over the
mean traffic, up to a factor that no prediction needs: the unit here is the time in which the
job sends what an access link carries in a second. ``scheduler.steptime.Calibration`` learns
from that, one placement after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from controller.state.records import JobRecord
from scheduler.model import Job
from scheduler.policy.worth import slowdown
from scheduler.steptime.calibrate import Calibration, Interval
from scheduler.steptime.sites import SharedLinks
from sitefile import CabledSite

LEAST_SHARE = 0.001
"""Mean traffic below this share of an access link is not a training step: nothing is learnt."""


def roads_of(site: CabledSite) -> SharedLinks | None:
    """Return the links that rings share; None when the site file does not give their rates."""
    rates = site.scheduling.regroup.rates or site.emulation
    if rates is None:
        return None
    links: dict[frozenset[str], int] = {}
    for uplink in site.uplinks:
        pair = frozenset((uplink.a.device, uplink.b.device))
        links[pair] = links.get(pair, 0) + 1
    return SharedLinks(rates.access_bps, rates.inter_aggregator_bps, links)


class StepMeter:
    """Learns every running job's step from its traffic, online; a restart starts from nothing."""

    def __init__(self, site: CabledSite, tx_bps: Callable[[str], float | None]) -> None:
        """``tx_bps`` returns what an endpoint sent over the last second."""
        self._roads = roads_of(site)
        self._tx_bps = tx_bps
        self._known: dict[str, tuple[int, Calibration]] = {}
        """Per job: the epoch of its containers, and what was learnt from them."""
        self._homes: dict[str, tuple[str | None, ...]] = {}
        """Homes of each job at the last observation: a mean over a move is meaningless."""

    def observe(
        self, jobs: Iterable[JobRecord], homes: Mapping[str, str | None], busy: frozenset[str]
    ) -> None:
        """Observe the running jobs once; ``busy`` are those that a transaction holds."""
        if self._roads is None:
            return
        running = [job for job in jobs if job.state == "running"]
        rates = self._roads.rates({j.name: j.endpoints for j in running}, homes)
        was, self._homes = self._homes, {}
        self._known = {j.name: self._known[j.name] for j in running if j.name in self._known}
        for job in running:
            here = tuple(homes.get(e) for e in job.endpoints)
            self._homes[job.name] = here
            if job.name in busy or was.get(job.name) != here or job.name not in rates:
                continue
            sent = [self._tx_bps(e) for e in job.endpoints]
            known = [bps for bps in sent if bps is not None]
            share = sum(known) / len(known) / self._roads.access_bps if known else 0.0
            if len(known) == len(sent) and share >= LEAST_SHARE:
                self._calibration(job).observe(rates[job.name], 1.0 / share)

    def _calibration(self, job: JobRecord) -> Calibration:
        epoch, found = self._known.get(job.name, (-1, None))
        if found is None or epoch != job.epoch:
            found = Calibration(len(job.endpoints))
            self._known[job.name] = job.epoch, found
        return found

    def speedups(
        self,
        jobs: Sequence[Job],
        before: Mapping[str, str | None],
        after: Mapping[str, str | None],
    ) -> dict[str, tuple[Interval, int]] | None:
        """Predict the ratio of every job's step times, before to after, and name its basis.

        The second value is the number of placements that the prediction rests on.

        None when the rates of the site are not known.
        """
        if self._roads is None:
            return None
        rings = {job.name: job.endpoints for job in jobs}
        now, then = self._roads.rates(rings, before), self._roads.rates(rings, after)
        found = {}
        for name in rings:
            known = self.learnt(name)
            ratio = slowdown(known, now.get(name), then.get(name))
            found[name] = ratio, known.placements if known else 0
        return found

    def rates(
        self, jobs: Iterable[JobRecord], homes: Mapping[str, str | None]
    ) -> Mapping[str, float] | None:
        """Return every ring's fair share of an access link; None without the site's rates."""
        if self._roads is None:
            return None
        return self._roads.rates({j.name: j.endpoints for j in jobs if j.holding}, homes)

    def learnt(self, job: str) -> Calibration | None:
        """Return what was learnt about a job's step, None if it was never observed."""
        return self._known.get(job, (-1, None))[1]
