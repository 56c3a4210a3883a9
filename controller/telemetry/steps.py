"""Estimates the jobs' steps, and predicts them at other placements.

Where a job's communication is recorded, the facts of one placement identify its step in seconds
(``scheduler.steptime.identify``). Without them, port counters give one fact: a step sends the
same number of bytes wherever the job is placed, so its duration is one over the mean traffic, up
to a factor that no ratio needs. The unit is then the time in which the job sends what an access
link carries in a second, and ``scheduler.steptime.Calibration`` is fitted to it, one
placement after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from base import clock
from controller.state.records import JobRecord
from scheduler.model import Job
from scheduler.policy.worth import slowdown
from scheduler.steptime.calibrate import Calibration, PredictionInterval
from scheduler.steptime.facts import WITH_HEADERS, StepFacts
from scheduler.steptime.identify import GOODPUT, LEAST_STEPS, MeasuredStep, identify, plain, usable
from scheduler.steptime.profile import StepProfile
from scheduler.steptime.road import LinkModel, Road, Roads
from scheduler.steptime.sites import SharedLinks
from sitefile import CabledSite

LEAST_SHARE = 0.001
"""Mean traffic below this share of an access link is not a training step: it is not used."""
SETTLED_AFTER = 2
"""New facts after a move of light, the first of which may still hold steps from before it."""
KEPT_PLACEMENTS = 4
"""Placements per job whose facts are kept."""
_SAME_RATE = 0.05
"""Facts that name a ring rate this close to the present one, relatively, are of this placement."""

FactsOf = Callable[[str], StepFacts | None]
"""What is recorded of a job's steps."""
Began = Callable[[JobRecord], None]
Links = Callable[[], LinkModel | None]
"""The latest measured links; None without any."""
Homes = Mapping[str, str | None]
Rings = Mapping[str, Sequence[str]]
"""The endpoints of jobs, in rank order."""


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


@dataclass(slots=True, frozen=True, kw_only=True)
class Outlook:
    """A job's step as it is, and as it would be with other homes."""

    now_s: float | None
    """Measured; None without facts of the present placement."""
    then_s: PredictionInterval | None
    """None where only the ratio is known."""
    ratio: PredictionInterval
    """The step now over the step then: above 1 the job becomes faster."""
    rate_now: float | None
    rate_then: float | None
    """Fair share of its ring, relative to an access link; None with a dark member."""
    placements: int
    """Measured placements behind it."""
    basis: tuple[str, ...]
    unidentified: tuple[str, ...]


@dataclass(slots=True)
class _Recorded:
    """A job's facts so far, as recorded."""

    epoch: int
    homes: tuple[str | None, ...] = ()
    place: object = None
    """Homes and rate of the present placement: other jobs' homes matter through the rate."""
    last: StepFacts | None = None
    """The latest facts, of whatever placement."""
    news: int = SETTLED_AFTER
    """New facts since the placement began; those of the first one of a job count at once."""
    began_at: float | None = None
    """When the placement began; None for the first one that was seen."""
    current: StepFacts | None = None
    """Facts of the present placement."""
    seen: dict[object, MeasuredStep] = field(default_factory=dict)
    """By place, the latest last."""


class StepMeter:
    """Estimates every running job's step, online; a restart starts from nothing."""

    def __init__(
        self,
        site: CabledSite,
        tx_bps: Callable[[str], float | None],
        *,
        facts: FactsOf = lambda job: None,
        began: Began = lambda job: None,
        links: Links = lambda: None,
    ) -> None:
        """``tx_bps`` returns what an endpoint sent over the last second.

        ``began`` is called for every job whose placement is new.
        """
        self._site_roads = roads_of(site)
        self._tx_bps = tx_bps
        self._facts = facts
        self._began = began
        self._links = links
        self._known: dict[str, tuple[int, Calibration]] = {}
        """Per job: the epoch of its containers, and what their traffic showed."""
        self._recorded: dict[str, _Recorded] = {}
        self._homes: dict[str, tuple[str | None, ...]] = {}
        """Homes of each job at the last observation: a mean over a move is meaningless."""

    # --- learning -------------------------------------------------------------------------

    def observe(self, jobs: Iterable[JobRecord], homes: Homes, busy: frozenset[str]) -> None:
        """Observe the running jobs once; ``busy`` are those that a transaction holds."""
        if self._site_roads is None:
            return
        held = [job for job in jobs if job.holding]
        running = [job for job in held if job.state == "running"]
        rings = {j.name: j.endpoints for j in running}
        roads = self.roads(rings, homes)
        rates = self._site_roads.rates(rings, homes)
        was, self._homes = self._homes, {}
        self._known = {j.name: self._known[j.name] for j in held if j.name in self._known}
        self._recorded = {j.name: self._recorded[j.name] for j in held if j.name in self._recorded}
        for job in running:
            here = tuple(homes.get(e) for e in job.endpoints)
            self._homes[job.name] = here
            if job.name in busy or was.get(job.name) != here or job.name not in rates:
                continue
            if roads is not None:
                self._take_facts(job, roads, homes)
            sent = [self._tx_bps(e) for e in job.endpoints]
            known = [bps for bps in sent if bps is not None]
            share = sum(known) / len(known) / self._site_roads.access_bps if known else 0.0
            if len(known) == len(sent) and share >= LEAST_SHARE:
                self._calibration(job).observe(rates[job.name], 1.0 / share)

    def _calibration(self, job: JobRecord) -> Calibration:
        epoch, found = self._known.get(job.name, (-1, None))
        if found is None or epoch != job.epoch:
            found = Calibration(len(job.endpoints))
            self._known[job.name] = job.epoch, found
        return found

    def _take_facts(self, job: JobRecord, roads: Roads, homes: Homes) -> None:
        """Keep the facts of the job's present placement once they are of no other."""
        road = roads.to(job.name)
        if road is None:
            return
        told = self._recorded.get(job.name)
        if told is None or told.epoch != job.epoch:
            told = self._recorded[job.name] = _Recorded(job.epoch)
        place = tuple(homes.get(e) for e in job.endpoints), round(roads.steady[job.name], 3)
        if told.place != place:
            first = told.place is None
            told.news, told.began_at = (
                SETTLED_AFTER if first else 0,
                None if first else clock.time(),
            )
            told.place, told.homes, told.current = place, place[0], None
            self._began(job)
            told.last = self._facts(job.name)
        facts = self._facts(job.name)
        if facts is None or not usable(facts, len(job.endpoints)):
            return
        if facts != told.last:
            told.news, told.last = told.news + 1, facts
        if self._is_ours(facts, told, road):
            told.current = facts
            told.seen.pop(place, None)
            told.seen[place] = MeasuredStep(facts, road)
            while len(told.seen) > KEPT_PLACEMENTS:
                del told.seen[next(iter(told.seen))]

    def _is_ours(self, facts: StepFacts, told: _Recorded, road: Road) -> bool:
        """Whether facts are of the job's present placement, and of no other."""
        if facts.ring_rate is not None:
            low, high = road.low * (1 - _SAME_RATE), road.high * (1 + _SAME_RATE)
            return low <= facts.ring_rate <= high
        if facts.source == "printed" or told.began_at is None:
            return True  # they have a time, or the job has been nowhere else
        here_s = clock.time() - told.began_at
        most = max(LEAST_STEPS, facts.steps / 2)  # a median is of those that are more
        return told.news >= SETTLED_AFTER and here_s >= most * facts.step_s

    # --- what is known --------------------------------------------------------------------

    def learnt(self, job: str) -> Calibration | None:
        """Return the calibration by a job's traffic, None if it was never observed."""
        return self._known.get(job, (-1, None))[1]

    def current(self, job: JobRecord, homes: Homes) -> StepFacts | None:
        """Return the facts of a job's present placement; None until there are some."""
        told = self._recorded.get(job.name)
        if told is None or told.epoch != job.epoch:
            return None
        return told.current if told.homes == tuple(homes.get(e) for e in job.endpoints) else None

    def stay(self, job: str) -> object:
        """Return what is new with each placement of a job; None for a job that is not observed."""
        told = self._recorded.get(job)
        return None if told is None else (told.epoch, told.place, told.began_at)

    def rates(self, jobs: Iterable[JobRecord], homes: Homes) -> Mapping[str, float] | None:
        """Return every ring's fair share of an access link; None without the site's rates."""
        if self._site_roads is None:
            return None
        return self._site_roads.rates({j.name: j.endpoints for j in jobs if j.holding}, homes)

    # --- predictions ----------------------------------------------------------------------

    def roads(self, rings: Rings, homes: Homes) -> Roads | None:
        """Return the roads of these rings, of all jobs; None without the site's rates."""
        if self._site_roads is None:
            return None
        model = self._links()
        access = model.ring_bps if model else None
        return Roads(
            rings,
            homes,
            self._site_roads,
            profiles={
                name: profile
                for name in rings
                if (profile := self._profile(name, access)) is not None
            },
            model=model,
        )

    def measured_bytes_s(self, ring: Sequence[str], homes: Homes) -> float | None:
        """Return the goodput of a ring that is alone, over measured links; None without those."""
        roads = self.roads({"": ring}, homes)
        if roads is None or roads.access_bps is None or "" not in roads.steady:
            return None
        return roads.steady[""] * roads.access_bps / 8

    def speedups(
        self, jobs: Sequence[Job], before: Homes, after: Homes
    ) -> dict[str, tuple[PredictionInterval, int]] | None:
        """Predict the ratio of every job's step times, before to after, and name its basis.

        The second value is the number of placements that the prediction rests on. None when the
        rates of the site are not known.
        """
        rings = {job.name: job.endpoints for job in jobs}
        now, then = self.roads(rings, before), self.roads(rings, after)
        if now is None or then is None:
            return None
        found = {name: self.outlook(name, now, then) for name in rings}
        return {name: (one.ratio, one.placements) for name, one in found.items()}

    def outlook(self, job: str, before: Roads, after: Roads) -> Outlook:
        """Predict a job's step on the roads ``after``."""
        now, then = before.to(job), after.to(job)
        rate_now, rate_then = before.steady.get(job), after.steady.get(job)
        told = self._recorded.get(job)
        links = f"links as measured by {after.source}" if after.measured else SITE_RATES
        if told is not None and told.seen and now is not None and then is not None:
            seen = list(told.seen.values())
            facts = seen[-1].facts
            known = identify(seen, self._access_bps(facts, after.ring_bps))
            predicted = known.predict(then)
            steps = (
                "printed steps" if facts.source == "printed" else f"recorded steps ({facts.source})"
            )
            count = f"{facts.steps} {steps} at {_placements(len(seen))}"
            return Outlook(
                now_s=told.current.step_s if told.current else None,
                then_s=predicted.step_s,
                ratio=known.speedup(now, then),
                rate_now=rate_now,
                rate_then=rate_then,
                placements=len(seen),
                basis=(count, links),
                unidentified=predicted.unidentified,
            )
        learnt = self.learnt(job)
        placements = learnt.placements if learnt else 0
        seen_as = (f"its traffic at {_placements(placements)}",) if placements else ()
        return Outlook(
            now_s=None,
            then_s=None,
            ratio=slowdown(learnt, rate_now, rate_then),
            rate_now=rate_now,
            rate_then=rate_then,
            placements=placements,
            basis=(*seen_as, links),
            unidentified=_untold(learnt, rate_now, rate_then, self._facts(job)),
        )

    def speedup_alone(
        self, facts: StepFacts, ring: Sequence[str], before: Homes, after: Homes
    ) -> PredictionInterval | None:
        """Return what other homes would have made of a job's step, had it been alone.

        For a job that has ended: its facts were measured with the homes ``before``. None for facts
        that cannot be used, a dark member, or without the site's rates.
        """
        now, then = self.roads({"": ring}, before), self.roads({"": ring}, after)
        if now is None or then is None or not usable(facts, len(ring)):
            return None
        here, there = now.to(""), then.to("")
        if here is None or there is None:
            return None
        known = identify([MeasuredStep(facts, here)], self._access_bps(facts, now.ring_bps))
        return known.speedup(here, there)

    def _access_bps(self, facts: StepFacts, measured: float | None) -> float:
        """Return the rate at which an access link carries the bytes that the facts count."""
        stated = self._site_roads.access_bps if self._site_roads else 0.0
        access = measured or stated * GOODPUT
        return access / GOODPUT if facts.source in WITH_HEADERS else access

    def _profile(self, job: str, measured: float | None) -> StepProfile | None:
        """Return a job's step as its neighbours see it; None where it is not known."""
        told = self._recorded.get(job)
        if told is None or not told.seen:
            return None
        latest = next(reversed(told.seen.values()))
        access = self._access_bps(latest.facts, measured)
        return plain(latest.facts, access, latest.road.low)


HOW_TO_KNOW = "submit it with --record counts, or let it print each step as a line of JSON"
"""What to do where a job's steps are not known; docs/measure.md says what such a line has."""
SITE_RATES = "link rates of the site file"


def _placements(count: int) -> str:
    return f"{count} placement{'' if count == 1 else 's'}"


def _untold(
    known: Calibration | None,
    before: float | None,
    after: float | None,
    facts: StepFacts | None,
) -> tuple[str, ...]:
    """Return what is missing for a prediction in seconds, and what to do about it."""
    if facts is not None and facts.steps < LEAST_STEPS:
        return (f"only {facts.steps} of its steps are known so far: {LEAST_STEPS} are needed",)
    if before is None or after is None:
        return ("rate: a member of its ring is dark",)
    reasons = {
        "compute_s": "compute_s: its steps are not recorded, and one placement was measured",
        "ring_s": "ring_s: its traffic was seen at too few placements",
        "hide": "hide: how much communication fits behind its compute",
    }
    if known is None or not known.placements:
        return (f"nothing was measured of its steps yet: {HOW_TO_KNOW}",)
    return (*(reasons[name] for name in known.unidentified), f"its steps: {HOW_TO_KNOW}")
