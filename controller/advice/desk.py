"""What the API asks of this package, and its loop."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from controller.advice.advisor import Advisor, CommsOf, ResultOf, WaitOf
from controller.advice.predictions import PredictionKeeper
from controller.advice.whatif import WhatIf
from controller.schema.insight.advice import AdviceView, PredictionView, WhatIfRequest, WhatIfView
from controller.state.kept.measurements import MeasurementRecord
from controller.state.records import JobRecord
from controller.state.state import State
from controller.telemetry.light import OpticalPower
from controller.telemetry.steps import FactsOf, StepMeter
from controller.telemetry.throughput import Telemetry
from controller.views import light
from measure.envelope import Measurement

CHECK_EVERY_S = 5.0
"""Time between two checks of the open predictions."""


class AdviceDesk:
    """What-if answers, predictions and advice."""

    def __init__(
        self,
        state: State,
        meter: StepMeter,
        *,
        telemetry: Telemetry,
        power: OpticalPower,
        facts: FactsOf,
        comms: CommsOf = lambda job: None,
        waits: WaitOf,
        results: ResultOf,
    ) -> None:
        self._state = state
        self._telemetry = telemetry
        self._power = power
        self._keeper = PredictionKeeper(state, meter, facts)
        self._whatif = WhatIf(state, meter, self._keeper)
        self._advisor = Advisor(
            state,
            meter,
            facts=facts,
            comms=comms,
            waits=waits,
            results=results,
            evidence=self._evidence,
        )

    async def run(self) -> None:
        """Judge the predictions, until cancelled."""
        while True:
            await asyncio.sleep(CHECK_EVERY_S)
            await self._keeper.check()

    async def whatif(self, name: str, request: WhatIfRequest) -> WhatIfView:
        """Predict a running job's step with other homes. ServiceError."""
        return await self._whatif.predict(name, request)

    def planned(self, moves: Mapping[str, str | None]) -> None:
        """Note what a plan that is being carried out promises."""
        self._keeper.planned(moves)

    def measured(self, record: MeasurementRecord, result: Measurement) -> None:
        """Note what a comparison that has ended predicted."""
        if record.type == "compare":
            self._keeper.compared(record, result)

    def predictions(self, projects: Collection[str] | None = None) -> list[PredictionView]:
        """Return the predictions of jobs of ``projects`` (None is all), oldest first."""
        return self._keeper.views(projects)

    async def advise(self, job: str | None, jobs: Collection[str] | None = None) -> AdviceView:
        """Return what limits one job, or all with endpoints; of ``jobs`` only (None is all)."""
        return await self._advisor.advise(job, jobs)

    def _evidence(self, job: JobRecord, rank: int) -> Sequence[str]:
        """Return what is known of a rank's endpoint now."""
        endpoint = job.endpoints[rank]
        cable = self._state.cables.get(endpoint)
        if cable is None or job.ended:
            return ()
        found = [f"it is on server {cable.server}"]
        sample = self._telemetry.sample(job.name, rank)
        values = sample.values if sample else {}
        if isinstance(busy := values.get("utilisation"), float):
            found.append(f"utilisation {100 * busy:.0f} %")
        if isinstance(held_down := values.get("throttle_reasons"), tuple) and held_down:
            found.append(f"its GPU is throttled: {', '.join(held_down)}")
        path = light.trace(self._state, self._power, cable)
        losses = [loss for loss in (path.loss_up_db, path.loss_down_db) if loss is not None]
        if losses:
            found.append(f"its light loses {max(losses):.1f} dB in the switch")
        elif path.reason:
            found.append(path.reason)
        neighbours = sum(
            1
            for held in self._state.jobs.values()
            if held.holding
            for e in held.endpoints
            if (other := self._state.cables.get(e)) is not None and other.server == cable.server
        )
        found.append(f"{neighbours} rank(s) run on its server")
        return found
