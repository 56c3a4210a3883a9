"""The table of placements: predictions, measurements, and which one is recommended. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from base import figures
from measure.kinds import MeasuredSite
from measure.placements import RankPlacement
from measure.statistics import Summary
from scheduler.steptime.calibrate import Calibration, PredictionInterval
from scheduler.steptime.facts import StepFacts
from scheduler.steptime.identify import GOODPUT, MeasuredStep, identify
from scheduler.steptime.road import LinkModel, Road, Roads
from scheduler.steptime.sites import SharedLinks


@dataclass(slots=True, frozen=True)
class PlacementFacts:
    """What is known of one placement."""

    placement: RankPlacement
    road: Road | None
    """None where the rates of links are not known."""
    steps: Summary | None = None
    facts: StepFacts | None = None
    payload: bool = True
    """Whether the facts' bytes are payload, or a port's."""


@dataclass(slots=True, frozen=True)
class PredictedStep:
    """A placement's step, predicted from the other placements."""

    step_s: PredictionInterval
    reasons: tuple[str, ...]


@dataclass(slots=True, frozen=True, kw_only=True)
class Choice:
    """The recommended placement."""

    name: str
    because: str
    open: bool
    """Whether its interval leaves open that it is within the limit of the best."""


def road_of(placement: RankPlacement, fabric: MeasuredSite) -> Road | None:
    """Return the road of a placement's ring, alone on the links between aggregators."""
    access, between = fabric.access_bps, fabric.inter_aggregator_bps
    if access is None or between is None:
        return None
    links = SharedLinks(access, between, fabric.links)
    model = LinkModel(fabric.fits) if fabric.fits else None
    return Roads({"": placement.order}, placement.homes, links, model=model).to("")


def access_of(fabric: MeasuredSite) -> float | None:
    """Return what a ring gets of an access link, with headers: measured, else stated. bit/s."""
    goodput = LinkModel(fabric.fits, ring_share=fabric.ring_share).ring_bps
    return fabric.access_bps if goodput is None else goodput / GOODPUT


def predicted(
    target: PlacementFacts, others: Sequence[PlacementFacts], access_bps: float | None
) -> PredictedStep | None:
    """Predict a placement's step from others; None without facts or steps of any.

    Facts identify the job; without them steps of two placements do, and steps of one bound it.
    """
    road = target.road
    if road is None:
        return None
    size = len(target.placement.order)
    told = [
        (MeasuredStep(f.facts, f.road), f.payload)
        for f in others
        if f.facts is not None and f.road is not None
    ]
    if told:
        # The nearest road comes last: predictions start from it.
        told.sort(key=lambda one: -abs(one[0].road.low - road.low))
        access = access_bps * (GOODPUT if told[-1][1] else 1.0) if access_bps else None
        found = identify([seen for seen, _ in told], access).predict(road)
        return PredictedStep(found.step_s, found.unidentified)
    learnt = Calibration(size)
    for one in others:
        if one.steps is not None and one.road is not None:
            learnt.observe(one.road.low, one.steps.median)
    if not learnt.placements:
        return None
    return PredictedStep(learnt.predict(road.low), tuple(learnt.unidentified))


def moves_of(placement: RankPlacement, fabric: MeasuredSite) -> int:
    """Return how many endpoints have to move for a placement."""
    here = {place.endpoint: place.home for place in fabric.places}
    return sum(here.get(e) != home for e, home in placement.homes.items())


def leaves(placement: RankPlacement, fabric: MeasuredSite) -> int:
    """Return the size of the largest job that still fits under one aggregator."""
    taken = Counter(placement.homes.values())
    ports = max((n - taken[home] for home, n in fabric.free_ports.items()), default=0)
    return max(min(len(fabric.places) - len(placement.order), ports), 0)


def uplink_bytes(
    placement: RankPlacement, facts: StepFacts, step_s: float, fabric: MeasuredSite
) -> float:
    """Return bytes/s of one direction of the busiest link between two aggregators."""
    links = SharedLinks(1.0, 1.0, fabric.links)
    loads = links.loads({"": placement.order}, placement.homes).get("", {})
    busiest = max((load / links.links[frozenset(link)] for link, load in loads.items()), default=0)
    copies = 2.0 * (facts.ranks - 1) / facts.ranks
    return busiest * copies * facts.bytes_per_step / step_s


def figure(found: PlacementFacts, prediction: PredictedStep | None) -> PredictionInterval | None:
    """Return a placement's step: measured, else predicted; None if neither is known."""
    if found.steps is not None:
        return PredictionInterval(found.steps.low, found.steps.high)
    if found.facts is not None:
        width = found.facts.spread * found.facts.step_s
        return PredictionInterval(found.facts.step_s - width, found.facts.step_s + width)
    return prediction.step_s if prediction else None


def middle(step: PredictionInterval) -> float:
    """Return what placements are compared by."""
    return (step.low + step.high) / 2


def recommend(
    steps: Mapping[str, PredictionInterval],
    left: Mapping[str, int],
    moves: Mapping[str, int],
    within: float,
) -> Choice | None:
    """Choose among placements within a share of the best; None without any step.

    Of these the one that leaves the largest compact job possible, then the fewest moves, then
    the fastest, then by name.
    """
    if not steps:
        return None
    best = min(middle(step) for step in steps.values())
    near = [name for name, step in steps.items() if middle(step) <= best * (1.0 + within)]
    name = min(near, key=lambda n: (-left[n], moves[n], middle(steps[n]), n))
    fastest = min(steps, key=lambda n: (middle(steps[n]), n))
    least = min(step.low for step in steps.values())
    why = f"{name} is the fastest"
    if name != fastest:
        slower = middle(steps[name]) / best - 1.0
        why = f"{name} is {100 * slower:.1f} % slower than {fastest}"
        if left[name] != left[fastest]:
            why += f" and leaves room for a compact job of {left[name]} instead of {left[fastest]}"
        elif moves[name] != moves[fastest]:
            why += f" and moves {moves[name]} endpoints instead of {moves[fastest]}"
    elif len(near) > 1:
        why += f" of {len(near)} within {figures.figure(100 * within)} %, and leaves the most room"
    return Choice(name=name, because=why, open=steps[name].high > least * (1.0 + within))
