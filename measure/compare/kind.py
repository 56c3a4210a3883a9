"""The type ``compare``: a job in several placements, measured or predicted, and a recommendation.

By default it runs the fewest placements that identify the job: one if its communication is
recorded or printed, else two. It predicts the others, runs the recommended one, and reports how
far the prediction was off.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from measure.compare import settings as options
from measure.compare.settings import WARM_UP, facts_document, job_of, known_of
from measure.compare.steps import facts_of_run, pooled, steps_of
from measure.compare.table import (
    PlacementFacts,
    PredictedStep,
    access_of,
    figure,
    leaves,
    middle,
    moves_of,
    predicted,
    recommend,
    road_of,
    uplink_bytes,
)
from measure.compare.text import text_of
from measure.envelope import Body, Json, Row
from measure.kinds import Line, MeasuredSite, Progress, Run, RunEnd, SettingsError
from measure.placements import RankPlacement, place
from scheduler.metrics import span
from scheduler.steptime.calibrate import PredictionInterval
from scheduler.steptime.facts import WITH_HEADERS

OVERHEAD_S = 60.0
"""Start of a run's containers, beyond the time that its steps get."""


class Compare:
    """Placements of one job."""

    name = "compare"

    def settings(self, given: Mapping[str, Json], fabric: MeasuredSite) -> Row:
        """Return all settings with their defaults. Raises SettingsError."""
        complete = options.complete(given, fabric)
        placements = placements_of(complete, fabric)
        if complete["mode"] != "run" and len(placements) > 1:
            for placement in placements:
                if road_of(placement, fabric) is None:
                    raise _unpredictable(placement, fabric)
        return complete

    def runs(self, settings: Row, fabric: MeasuredSite, seed: int) -> Sequence[Run]:
        """Return the first runs: all in turns, none, or the most informative one."""
        placements = placements_of(settings, fabric)
        if settings["mode"] == "predict":
            return []
        if settings["mode"] == "run":
            turns = [p for _ in range(settings["rounds"]) for p in placements]
            return [_run(settings, placement) for placement in turns]
        if known_of(settings):
            return []
        return [_run(settings, _slowest(placements, fabric))]

    def more(
        self,
        settings: Row,
        fabric: MeasuredSite,
        seed: int,
        lines: Sequence[Line],
        ends: Sequence[RunEnd],
    ) -> Sequence[Run]:
        """Return a second placement where one does not identify the job, then the recommended."""
        if settings["mode"] != "default":
            return []
        placements = placements_of(settings, fabric)
        ran = _ran(settings, fabric, placements, ends)
        found = _found(settings, fabric, lines, ends)
        told = any(one.facts for one in found) or bool(known_of(settings))
        fast = _fastest(placements, fabric)
        if not told and len(ran) == 1 and fast.name not in ran:
            return [_run(settings, fast)] if any(one.steps for one in found) else []
        steps = _steps(settings, fabric, found)
        choice = recommend(*_weights(steps, placements, fabric), settings["within"])
        if choice is None or choice.name in ran or len(ran) > 2:
            return []
        return [_run(settings, next(p for p in placements if p.name == choice.name))]

    def progress(self, settings: Row, fabric: MeasuredSite, lines: Sequence[Line]) -> Progress:
        """Count the steps that the runs have printed."""
        most = WARM_UP + int(settings["steps"])
        placements = placements_of(settings, fabric)
        runs = settings["rounds"] * len(placements) if settings["mode"] == "run" else 2
        done = {line.run: 0 for line in lines}
        for line in lines:
            if line.record.get("event") == "step" and line.rank == 0:
                done[line.run] = min(done[line.run] + 1, most)
        total = max(runs, len(done)) * most
        return Progress(sum(done.values()), total, f"run {max(done, default=0) + 1}")

    def body(
        self,
        settings: Row,
        fabric: MeasuredSite,
        seed: int,
        lines: Sequence[Line],
        ends: Sequence[RunEnd],
    ) -> Body:
        """Return a row per placement and the recommendation."""
        placements = placements_of(settings, fabric)
        found = _found(settings, fabric, lines, ends)
        steps = _steps(settings, fabric, found)
        weights = _weights(steps, placements, fabric)
        choice = recommend(*weights, settings["within"])
        base = steps.get("local")
        rows = [_row(settings, fabric, one, found, base) for one in found]
        chosen = next((p for p in placements if choice and p.name == choice.name), None)
        limit = min((middle(s) for s in steps.values()), default=0.0) * (1 + settings["within"])
        for row in rows:
            step = steps.get(str(row["placement"]))
            row["within"] = None if step is None else middle(step) <= limit
        return Body(
            rows=rows,
            summary={
                "recommended": choice.name if choice else None,
                "because": choice.because if choice else "no step is known",
                "open": choice.open if choice else None,
                "within": settings["within"],
                "plan": _plan(chosen, fabric) if chosen else None,
                "known": [
                    {
                        "order": list(one.placement.order),
                        "homes": dict(one.placement.homes),
                        "facts": facts_document(one.facts),
                    }
                    for one in found
                    if one.facts is not None
                ],
            },
            invalid_because=_problems(settings, ends, found),
        )

    def table(self, result: Row) -> str:
        """Return a result as lines of text."""
        return text_of(result)


def placements_of(settings: Row, fabric: MeasuredSite) -> list[RankPlacement]:
    """Return the placements of a comparison, each name once. Raises SettingsError."""
    count = int(settings["job"]["count"])
    found: dict[str, RankPlacement] = {}
    for item in settings["placements"]:
        if isinstance(item, dict) and len(item["homes"]) != count:
            raise SettingsError(
                "placements",
                f"homes names {len(item['homes'])} endpoints, the job has {count} ranks",
                "name one home for each rank, in rank order",
            )
        made = place(item, count, fabric)
        found.setdefault(made.name, made)
    return list(found.values())


def _run(settings: Row, placement: RankPlacement) -> Run:
    job = job_of(settings)
    return Run(
        command=job.command,
        endpoints=placement.order,
        label=placement.name,
        homes=placement.homes,
        image=job.image,
        env=job.env,
        cpu=job.cpu,
        memory_bytes=job.memory_bytes,
        io_bps=job.io_bps,
        volumes=job.volumes,
        project=job.project,
        record=settings["record"],
        timeout_s=float(settings["run_s"]) + OVERHEAD_S,
    )


def _slowest(placements: Sequence[RankPlacement], fabric: MeasuredSite) -> RankPlacement:
    """Return the placement whose ring is slowest: there communication shows."""
    return min(placements, key=lambda p: (_rate(p, fabric), p.name))


def _fastest(placements: Sequence[RankPlacement], fabric: MeasuredSite) -> RankPlacement:
    return min(placements, key=lambda p: (-_rate(p, fabric), p.name))


def _rate(placement: RankPlacement, fabric: MeasuredSite) -> float:
    road = road_of(placement, fabric)
    return 1.0 if road is None else road.low


def _placement_of_run(
    settings: Row, placements: Sequence[RankPlacement], end: RunEnd
) -> RankPlacement | None:
    """Return the placement of a run, by its endpoints and homes."""
    for placement in placements:
        if dict(placement.homes) == dict(end.homes) and placement.order == tuple(end.homes):
            return placement
    return None


def _ran(
    settings: Row, fabric: MeasuredSite, placements: Sequence[RankPlacement], ends: Sequence[RunEnd]
) -> set[str]:
    found = (_placement_of_run(settings, placements, end) for end in ends)
    return {placement.name for placement in found if placement is not None}


def _found(
    settings: Row, fabric: MeasuredSite, lines: Sequence[Line], ends: Sequence[RunEnd]
) -> list[PlacementFacts]:
    """Return what is known of each placement."""
    placements = placements_of(settings, fabric)
    count = int(settings["job"]["count"])
    earlier = {(known.order, tuple(known.homes.items())): known for known in known_of(settings)}
    found = []
    for placement in placements:
        runs = [
            number
            for number, end in enumerate(ends)
            if _placement_of_run(settings, placements, end) is placement
        ]
        printed = [steps_of(lines, number, int(settings["steps"])) for number in runs]
        recorded = [facts for n in runs if (facts := ends[n].facts) is not None]
        told = facts_of_run(count, printed, recorded)
        known = earlier.get((placement.order, tuple(placement.homes.items())))
        facts = told[0] if told else known.facts if known else None
        found.append(
            PlacementFacts(
                placement,
                road_of(placement, fabric),
                pooled(printed),
                facts,
                told[1] if told else facts is not None and facts.source not in WITH_HEADERS,
            )
        )
    return found


def _unpredictable(placement: RankPlacement, fabric: MeasuredSite) -> SettingsError:
    if fabric.access_bps is not None and fabric.inter_aggregator_bps is not None:
        return SettingsError(
            "placements",
            f"no cables connect the aggregators of {placement.name}: nothing can be predicted",
            "name a placement under connected aggregators",
        )
    return SettingsError(
        "placements",
        "the rates of the site's links are not known: nothing can be predicted",
        "state them in the site file, or give --run",
    )


def _earlier(
    settings: Row, fabric: MeasuredSite, found: Sequence[PlacementFacts]
) -> list[PlacementFacts]:
    """Return earlier comparisons' placements that this one does not have."""
    have = {(one.placement.order, tuple(one.placement.homes.items())) for one in found}
    more = []
    for known in known_of(settings):
        homes = {e: home for e, home in known.homes.items() if home is not None}
        if (known.order, tuple(homes.items())) in have or len(homes) != len(known.order):
            continue
        placement = RankPlacement("earlier", known.order, homes)
        payload = known.facts.source not in WITH_HEADERS
        more.append(
            PlacementFacts(placement, road_of(placement, fabric), None, known.facts, payload)
        )
    return more


def _predicted(
    settings: Row, fabric: MeasuredSite, target: PlacementFacts, found: Sequence[PlacementFacts]
) -> PredictedStep | None:
    others = [one for one in found if one is not target]
    others += _earlier(settings, fabric, found)
    return predicted(target, others, access_of(fabric))


def _steps(
    settings: Row, fabric: MeasuredSite, found: Sequence[PlacementFacts]
) -> dict[str, PredictionInterval]:
    steps = {}
    for one in found:
        step = figure(one, _predicted(settings, fabric, one, found))
        if step is not None:
            steps[one.placement.name] = step
    return steps


def _weights(
    steps: Mapping[str, PredictionInterval],
    placements: Sequence[RankPlacement],
    fabric: MeasuredSite,
) -> tuple[Mapping[str, PredictionInterval], Mapping[str, int], Mapping[str, int]]:
    return (
        steps,
        {p.name: leaves(p, fabric) for p in placements},
        {p.name: moves_of(p, fabric) for p in placements},
    )


def _row(
    settings: Row,
    fabric: MeasuredSite,
    one: PlacementFacts,
    found: Sequence[PlacementFacts],
    base: PredictionInterval | None,
) -> dict[str, Json]:
    prediction = _predicted(settings, fabric, one, found)
    step, facts = figure(one, prediction), one.facts
    measured = one.steps.median if one.steps else facts.step_s if facts else None
    shown = facts or next((other.facts for other in found if other.facts), None)
    compute = None
    if facts is not None:
        compute = max(facts.step_s - facts.exposed_s - (facts.wait_s or 0.0), 0.0)
    at = middle(step) if step else None
    error = None
    if prediction is not None and measured is not None:
        error = abs(middle(prediction.step_s) - measured) / measured
    return {
        "placement": one.placement.name,
        "endpoints": list(one.placement.order),
        "homes": dict(one.placement.homes),
        "span": span(one.placement.order, one.placement.homes),
        "crossings": one.placement.crossings,
        "ring_rate": one.road.low if one.road else None,
        "predicted_step_s": (
            {"low": prediction.step_s.low, "high": prediction.step_s.high} if prediction else None
        ),
        "reasons": list(prediction.reasons) if prediction else [],
        "measured_step_s": one.steps.document() if one.steps else None,
        "error": error,
        "change": at / middle(base) - 1.0 if at and base else None,
        "wait_share": (facts.wait_s or 0.0) / facts.step_s
        if facts and facts.wait_s is not None
        else None,
        "util": compute / facts.step_s if facts and compute is not None else None,
        "uplink_bytes_s": uplink_bytes(one.placement, shown, at, fabric) if shown and at else None,
        "moves": moves_of(one.placement, fabric),
        "leaves": leaves(one.placement, fabric),
    }


def _plan(placement: RankPlacement, fabric: MeasuredSite) -> dict[str, Json]:
    """Return how to get a placement: moves of idle endpoints, and the job's endpoints."""
    here = {place.endpoint: place.home for place in fabric.places}
    moves = {e: h for e, h in placement.homes.items() if here.get(e) != h}
    return {
        "endpoints": list(placement.order),
        "homes": dict(placement.homes),
        "moves": moves,
    }


def _problems(settings: Row, ends: Sequence[RunEnd], found: Sequence[PlacementFacts]) -> list[str]:
    problems = []
    if settings["mode"] == "run":
        wanted = int(settings["steps"]) * int(settings["rounds"])
        for one in found:
            n = one.steps.n if one.steps else 0
            if n < wanted and not one.facts:
                problems.append(f"{one.placement.name}: {n} steps were measured, not {wanted}")
    elif not any(one.steps or one.facts for one in found) and not known_of(settings):
        why = next((end.reason for end in ends if end.reason), "")
        problems.append(f"no step was measured{f': {why}' if why else ''}")
    return problems


COMPARE = Compare()
"""The type for the registry."""
