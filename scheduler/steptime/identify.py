"""Identifies a job's step from facts of one placement, and predicts it at another.

What was measured leaves a few questions open. Each combination of their extreme answers is a
profile that explains the facts exactly; a prediction is the interval over all of them, widened by
the spread of the measured steps:

- *hide*: if communication is wholly hidden, more of it may have fitted behind the compute. If a
  step has several collectives and part of them is hidden, the gaps between them are not known:
  either the hidden seconds stay, or the exposed share does.
- *dispatch_s*: communication may take longer than its bytes because the ring is slower than its
  rate, or because of time that no rate shortens (copies, waiting for a late rank).
- *wait_s*: a step that waits for its batch either ends with the loader, which runs ahead, or
  adds the wait to everything else.
- *rate*: other jobs may have paused while the facts were measured.

Facts of further placements remove the combinations that contradict them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import product

from scheduler.steptime.calibrate import PredictionInterval
from scheduler.steptime.facts import StepFacts
from scheduler.steptime.profile import StepProfile
from scheduler.steptime.road import Road

GOODPUT = 1448 / 1514
"""Least share of payload in a link's rate: Ethernet frames of 1,500 bytes with TCP."""
LEAST_STEPS = 10
"""Facts of fewer steps are not used."""
_HIDDEN = 0.01
"""Below this share of a step, time counts as 0: clocks and medians are not more exact."""
_AGREES = 0.02
"""Besides their spreads, a profile may miss an older placement by this."""
_NOTED = 0.02
"""Open questions that change a prediction by less are not worth a word."""
_OVERCOUNTED = 1.1
"""Bytes that would need this much more than the measured time were not all on these links."""
_MIXES = (0.0, 0.25, 0.5, 0.75, 1.0)


@dataclass(slots=True, frozen=True)
class MeasuredStep:
    """Facts, and the road on which they were measured."""

    facts: StepFacts
    road: Road


@dataclass(slots=True, frozen=True)
class Answer:
    """One combination of answers to the open questions; 0 and 1 are the extremes."""

    rate: float
    dispatch: float
    hide: float
    wait: float


@dataclass(slots=True, frozen=True)
class Predicted:
    """A step at a placement."""

    step_s: PredictionInterval
    unidentified: tuple[str, ...]
    """Why it is an interval: the questions that are open, and the spread."""


@dataclass(slots=True, frozen=True)
class Identified:
    """A job's step as far as its facts determine it."""

    size: int
    profiles: tuple[tuple[Answer, StepProfile], ...]
    """Those that explain the facts; never empty."""
    spread: float
    """Relative, of the measured steps."""
    disagree: bool = False
    """No profile explains all placements; these come nearest."""

    def predict(self, road: Road) -> Predicted:
        """Return the step at another placement."""
        found = [(answer, self._range(profile, road)) for answer, profile in self.profiles]
        low = min(step.low for _, step in found) * (1.0 - self.spread)
        high = max(step.high for _, step in found) * (1.0 + self.spread)
        return Predicted(PredictionInterval(low, high), tuple(self._reasons(found, road)))

    def speedup(self, before: Road, after: Road) -> PredictionInterval:
        """Return the step before over the step after: above 1 the job becomes faster.

        It is narrower than the quotient of two predictions, which are of one job.
        """
        if before == after:
            return PredictionInterval(1.0, 1.0)
        ranges = [(self._range(p, before), self._range(p, after)) for _, p in self.profiles]
        low = min(then.low / now.high for then, now in ranges)
        high = max(then.high / now.low for then, now in ranges)
        return PredictionInterval(low, high)

    def _range(self, profile: StepProfile, road: Road) -> PredictionInterval:
        there = replace(profile, hop_s=road.hop_s)
        return PredictionInterval(
            there.step_s(self.size, road.high), there.step_s(self.size, road.low)
        )

    def _reasons(
        self, found: Sequence[tuple[Answer, PredictionInterval]], road: Road
    ) -> Iterator[str]:
        high = max(step.high for _, step in found)
        if not road.steady and any(s.high - s.low > _NOTED * high for _, s in found):
            yield "rate: other jobs share its links, and when they communicate is not known"
        for name, text in _QUESTIONS:
            by_answer: dict[float, list[float]] = {}
            for answer, step in found:
                by_answer.setdefault(getattr(answer, name), []).append(step.high)
            means = [sum(steps) / len(steps) for steps in by_answer.values()]
            if max(means) - min(means) > _NOTED * high:
                yield text
        if self.spread > _NOTED:
            yield f"spread: the measured steps vary by {100 * self.spread:.0f} %"
        if self.disagree:
            yield "placements: those measured so far contradict each other"


_QUESTIONS = (
    ("rate", "rate: other jobs may have paused while it was measured"),
    (
        "dispatch",
        "dispatch_s: how much of its communication is not transfer, and stays on faster links",
    ),
    ("hide", "hide: how much communication fits behind its compute"),
    ("wait", "wait_s: whether its loader runs ahead of the step"),
)


def plain(facts: StepFacts, access_bps: float, rate: float) -> StepProfile:
    """Return one profile that facts allow: the model of a job for a neighbour's ring.

    Its bytes are those that were counted, at ``access_bps`` (goodput in bit/s); without them the
    time of its communication at ``rate``, relative to an access link, counts. Waiting for input is
    compute here: nothing is sent.
    """
    copies = 2.0 * (facts.ranks - 1) / facts.ranks if facts.ranks > 1 else 0.0
    ring = 8.0 * facts.bytes_per_step / access_bps
    if copies and not 0 < copies * ring <= _OVERCOUNTED * facts.comm_s:
        ring = facts.comm_s * rate / copies
    compute = max(facts.step_s - facts.exposed_s, 0.0)
    hidden = min(max(facts.comm_s - facts.exposed_s, 0.0), compute)
    return StepProfile(compute, ring if copies else 0.0, hidden / compute if compute else 0.0)


def usable(facts: StepFacts, ranks: int) -> bool:
    """Whether facts can be learnt from: a recording is written by the job, and may be wrong."""
    parts = (facts.comm_s, facts.exposed_s, facts.bytes_per_step, facts.calls_per_step)
    return (
        facts.ranks == ranks
        and facts.steps >= LEAST_STEPS
        and 0 < facts.step_s < 1e6
        and all(0 <= part < 1e18 for part in parts)
        and facts.comm_s <= 2 * facts.step_s
        and facts.exposed_s <= facts.comm_s * (1 + 1e-6)
    )


def identify(seen: Sequence[MeasuredStep], access_bps: float | None = None) -> Identified:
    """Identify a job's step from facts, the latest last; its predictions start from that one.

    ``access_bps`` is the goodput of an access link in bit/s. Without it, bytes do not determine
    time. Raises ValueError without facts, or for facts that are impossible.
    """
    if not seen:
        raise ValueError("no facts to identify a step from")
    latest = seen[-1]
    _check(latest.facts)
    size = latest.facts.ranks
    spread = min(max(latest.facts.spread, 0.0), 1.0)
    profiles = tuple(_distinct(_profiles(latest, access_bps)))
    disagree = False
    for older in reversed(seen[:-1]):
        profiles, agreed = _consistent(size, profiles, older, spread)
        disagree = disagree or not agreed
    return Identified(size, profiles, spread, disagree)


def _check(facts: StepFacts) -> None:
    parts = (facts.comm_s, facts.exposed_s, facts.bytes_per_step, facts.calls_per_step)
    if facts.ranks < 1 or not facts.step_s > 0 or not all(part >= 0 for part in parts):
        raise ValueError("a step has ranks and a length above 0, and no part below 0")


def _profiles(seen: MeasuredStep, access_bps: float | None) -> Iterator[tuple[Answer, StepProfile]]:
    """Yield the profiles that explain one placement exactly."""
    facts, road = seen.facts, seen.road
    step = facts.step_s
    waited = min(facts.wait_s or 0.0, step)
    waited = waited if waited > _HIDDEN * step else 0.0
    comm = facts.comm_s if facts.ranks > 1 else 0.0
    exposed = min(facts.exposed_s, comm, step - waited)
    waits = (0.0, 1.0) if waited else (0.0,)
    rates = (0.0,) if road.steady or not comm else (0.0, 1.0)
    hides = _hides(facts, comm, exposed)
    for rate, wait, hide in product(rates, waits, hides):
        at = road.low + rate * (road.high - road.low)
        for dispatch, profile in _wires(facts, comm, at, road.hop_s, access_bps):
            made = _with_compute(
                profile, facts.ranks, at, exposed=exposed, step=step - waited, hide=hide
            )
            yield Answer(rate, dispatch, hide, wait), _with_wait(made, waited, wait, step)


def _hides(facts: StepFacts, comm: float, exposed: float) -> tuple[float, ...]:
    """Return the answers to "how much would fit": 0 only what did."""
    hidden, noise = comm - exposed, _HIDDEN * facts.step_s
    wholly = exposed <= noise and hidden > 1e-9 * facts.step_s
    gaps = facts.calls_per_step > 1 and hidden > noise
    return _MIXES if wholly or gaps else (0.0,)


def _wires(
    facts: StepFacts, comm: float, rate: float, hop_s: float, access_bps: float | None
) -> Iterator[tuple[float, StepProfile]]:
    """Yield how the communication's time divides into bytes, hops and dispatch."""
    copies = 2.0 * (facts.ranks - 1) / facts.ranks if facts.ranks > 1 else 0.0
    calls = facts.calls_per_step
    hops = min(2.0 * (facts.ranks - 1) * hop_s * calls, comm)
    hop = hops / (2.0 * (facts.ranks - 1) * calls) if hops else 0.0
    least = (comm - hops) * rate
    fixed = 0.0
    if access_bps and facts.bytes_per_step > 0 and least > 0:
        sent = 8.0 * copies * facts.bytes_per_step / access_bps
        if sent <= _OVERCOUNTED * least:
            fixed = max(comm - hops - sent / rate, 0.0)
    for mix in _MIXES if fixed > 0 else (0.0,):
        wire = (comm - hops - mix * fixed) * rate
        ring = wire / copies if copies else 0.0
        yield mix, StepProfile(0.0, ring, 0.0, hop, calls or 1.0, mix * fixed)


def _with_compute(
    part: StepProfile, size: int, rate: float, *, exposed: float, step: float, hide: float
) -> StepProfile:
    """Return a profile with compute such that its step at this rate is the measured one.

    ``hide`` mixes: 0 hides the seconds that were hidden, 1 what is farthest from that.
    """
    compute = max(step - exposed, 0.0)
    comm = part.latency_s(size) + part.wire_s(size) / rate
    hidden = min(max(comm - exposed, 0.0), compute)
    if hide and exposed <= _HIDDEN * step:  # wholly hidden: up to all of the compute would hide it
        return replace(part, compute_s=compute, hide=_share(hidden, compute, hide))
    if hide:  # the hidden share stays hidden at any rate
        scale = 1.0 - hide * hidden / comm
        kept = (1.0 - hide) * hidden
        return replace(
            part,
            compute_s=compute,
            ring_s=part.ring_s * scale,
            calls=part.calls * scale,
            dispatch_s=part.dispatch_s * scale,
            hide=kept / compute if compute else 0.0,
        )
    return replace(part, compute_s=compute, hide=hidden / compute if compute else 0.0)


def _share(hidden: float, compute: float, mix: float) -> float:
    known = hidden / compute if compute else 0.0
    return known + mix * (1.0 - known)


def _with_wait(profile: StepProfile, waited: float, wait: float, step: float) -> StepProfile:
    """Return the profile of a step that waits: 0 the loader runs ahead, 1 it adds its time."""
    if not waited:
        return profile
    if not wait:
        return replace(profile, input_s=step)
    compute = profile.compute_s + waited
    return replace(profile, compute_s=compute, hide=profile.hide * profile.compute_s / compute)


def _distinct(
    found: Iterable[tuple[Answer, StepProfile]],
) -> Iterator[tuple[Answer, StepProfile]]:
    known: set[StepProfile] = set()
    for answer, profile in found:
        if profile not in known:
            known.add(profile)
            yield answer, profile


def _consistent(
    size: int, profiles: tuple[tuple[Answer, StepProfile], ...], older: MeasuredStep, spread: float
) -> tuple[tuple[tuple[Answer, StepProfile], ...], bool]:
    """Return the profiles that explain an older placement, else the nearest, and which it was."""
    measured = older.facts.step_s
    if older.facts.ranks != size or not measured > 0:
        return profiles, True
    misses = [_miss(profile, size, older.road, measured) for _, profile in profiles]
    allowed = spread + min(max(older.facts.spread, 0.0), 1.0) + _AGREES
    kept = tuple(p for p, miss in zip(profiles, misses, strict=True) if miss <= allowed)
    if kept:
        return kept, True
    least = min(misses)
    near = tuple(p for p, m in zip(profiles, misses, strict=True) if m <= least + _AGREES)
    return near, False


def _miss(profile: StepProfile, size: int, road: Road, measured: float) -> float:
    """Return how far the profile's step range at a road is from a measured step, relative.

    Simulated phases do not disprove a profile: their bounds count.
    """
    there = replace(profile, hop_s=road.hop_s)
    slow, fast = road.bounds or (road.low, road.high)
    low, high = there.step_s(size, fast), there.step_s(size, slow)
    return max(low - measured, measured - high, 0.0) / measured
