"""What a running job's step would be with other homes. Nothing moves."""

from __future__ import annotations

from controller.advice.homes import dark_members, ports_suffice, supposed
from controller.advice.predictions import PredictionKeeper
from controller.base.errors import ServiceError
from controller.schema.insight.advice import RangeView, WhatIfRequest, WhatIfView
from controller.state.records import JobRecord
from controller.state.state import State
from controller.telemetry.steps import Outlook, StepMeter
from scheduler.metrics import span
from scheduler.occupancy import all_homes
from scheduler.steptime.calibrate import PredictionInterval


class WhatIf:
    """Answers what-if questions, and keeps the answers as predictions."""

    def __init__(self, state: State, meter: StepMeter, keeper: PredictionKeeper) -> None:
        self._state = state
        self._meter = meter
        self._keeper = keeper

    async def predict(self, name: str, request: WhatIfRequest) -> WhatIfView:
        """Predict a running job's step with some of its endpoints at other homes. ServiceError."""
        job = self._running(name)
        fabric = self._state.fabric()
        endpoints = self._state.cabled(job)
        before = all_homes(fabric)
        after = supposed(fabric, name, endpoints, request.homes)
        dark = dark_members(endpoints, after)
        if dark:
            raise ServiceError(
                "conflict",
                f"{dark[0]} is dark: no ring can include it",
                object=f"job/{name}",
                hint=f"name a home for it as well, or see `lightloom trace {dark[0]}`",
            )
        rings = {held.name: held.endpoints for held in fabric.jobs}
        now, then = self._meter.roads(rings, before), self._meter.roads(rings, after)
        if now is None or then is None:
            raise ServiceError(
                "conflict",
                "the rates of the site's links are not known",
                object=f"job/{name}",
                hint="state them in the site file: scheduling.regroup.rates",
            )
        outlook = self._meter.outlook(name, now, then)
        kept = await self._keeper.make(job, "whatif", after, outlook)
        return WhatIfView(
            job=name,
            prediction=kept.id,
            homes_before={e: before[e] for e in endpoints},
            homes_after={e: after[e] for e in endpoints},
            span_before=span(endpoints, before),
            span_after=span(endpoints, after),
            step_now_s=outlook.now_s,
            step_then_s=range_view(outlook.then_s),
            change=range_view(change_of(outlook)),
            ring_rate_before=outlook.rate_now,
            ring_rate_after=outlook.rate_then,
            possible=ports_suffice(fabric, endpoints, after),
            basis=list(outlook.basis),
            unidentified=list(outlook.unidentified),
        )

    def _running(self, name: str) -> JobRecord:
        job = self._state.jobs.require(name)
        if job.state != "running":
            raise ServiceError(
                "conflict",
                f"job {name} is {job.state}: only steps of a running job can be predicted",
                object=f"job/{name}",
                hint="before a job runs: lightloom compare -f FILE"
                if not job.ended
                else f"see `lightloom get predictions`, or `lightloom advise {name}`",
            )
        return job


def change_of(outlook: Outlook) -> PredictionInterval | None:
    """Return (then - now) / now; None if nothing is known of the job."""
    if not outlook.placements:
        return None
    return PredictionInterval(1.0 / outlook.ratio.high - 1.0, 1.0 / outlook.ratio.low - 1.0)


def range_view(interval: PredictionInterval | None) -> RangeView | None:
    """Return an interval's document."""
    return None if interval is None else RangeView(low=interval.low, high=interval.high)
