"""Automatic regroups: checks triggers, weighs plans, applies them, and reports in events.

All of it is off unless the site file enables a trigger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import structlog

from controller.base.errors import ServiceError
from controller.plans.planner import Planner
from controller.plans.rollout import RolloutDesk
from controller.schema.plans import PlanRequest, PlanView, RolloutRequest
from controller.state.intend.keys import FACTS
from controller.state.state import State
from controller.telemetry.steps import StepMeter
from scheduler.metrics import total_excess_span
from scheduler.policy.triggers import Blocked, Fired, Trigger, TriggerInput, excess_since, fire

log = structlog.get_logger(__name__)

REGROUP_EVERY_S = 5.0
"""Time between two checks of the triggers."""
PLANS = 3
"""Attempts per trigger, when the fabric changes while a plan is computed."""
OBJECT = "controller"
"""The object of the events."""


class Regrouper:
    """Checks the site file's triggers, and carries out the plans that are worth it."""

    def __init__(
        self,
        state: State,
        plans: Planner,
        meter: StepMeter,
        rollouts: RolloutDesk,
        blocked: Callable[[], Blocked | None] = lambda: None,
    ) -> None:
        """``blocked`` returns the job in another engine's queue that a regroup would help."""
        self._state = state
        self._blocked = blocked
        self._plans = plans
        self._rollouts = rollouts
        self._meter = meter
        self._policy = state.site.scheduling.regroup
        self._started_at = state.clock()
        self._since: float | None = None

    async def run(self) -> None:
        """Measure the jobs' steps and check the triggers, until cancelled."""
        while True:
            await asyncio.sleep(REGROUP_EVERY_S)
            state = self._state
            held = frozenset(
                job.name for r in state.transactions.moving().values() for job in r.tx.jobs
            )
            self._meter.observe(state.jobs.values(), state.light.homes(), held)
            await self.check_triggers()

    async def check_triggers(self) -> Fired | None:
        """Check the triggers once; return the one that fired, after handling it."""
        state = self._state
        if not self._policy.triggers.automatic or state.suspect or state.transactions.running:
            return None  # the running transaction may be what the trigger would ask for
        if self._plans.busy or self._rollouts.busy:
            return None  # a requested plan goes first; the trigger stays
        fired = fire(self._policy.triggers, self._moment())
        if fired is None:
            return None
        state.looked_at = state.clock()
        if fired.trigger is Trigger.SCHEDULE:
            state.scheduled_at = state.looked_at
        state.events.add("info", OBJECT, "RegroupTriggered", f"{fired.trigger}: {fired.reason}")
        try:
            await state.commit(FACTS)
            await self._regroup(fired)
        except ServiceError as error:
            self._skipped(fired, error.message)
        return fired

    def _moment(self) -> TriggerInput:
        state, now = self._state, self._state.clock()
        fabric = state.fabric()
        excess = total_excess_span(fabric, fabric.homes)
        self._since = excess_since(self._policy.triggers, self._since, excess, now)
        first = next(iter(state.jobs.queue.holds.values()), None)
        blocked: tuple[Blocked, ...] = ()
        if first is not None and first.code == "locality" and first.moves_needed:
            # Making room for a later job must not let it overtake the first one.
            blocked = (Blocked(first.job, first.moves_needed),)
        elif (other := self._blocked()) is not None:
            blocked = (other,)
        return TriggerInput(
            now=now,
            excess_span=excess,
            excess_since=self._since,
            blocked=blocked,
            looked_at=state.looked_at,
            scheduled_at=self._started_at if state.scheduled_at is None else state.scheduled_at,
        )

    async def _regroup(self, fired: Fired) -> None:
        policy = self._policy
        request = PlanRequest(
            job=fired.job,
            max_jobs_paused=policy.max_jobs_paused,
            max_moves=policy.max_moves,
            time_limit_s=policy.time_limit_s,
        )
        for left in reversed(range(PLANS)):
            plan = await self._plans.make_plan(request)
            objection = self._objection(plan)
            if objection:
                self._skipped(fired, objection)
                return
            try:
                carried = await self._carried_out(plan)
            except ServiceError as error:
                if error.code != "conflict" or not left:
                    raise
                log.info("regroup_planned_again", plan=plan.id, reason=error.message)
                continue
            worth = f"; {plan.worth.reason}" if plan.worth else ""
            text = f"{fired.trigger}: {carried} carries out plan {plan.id}{worth}"
            self._state.events.add("info", OBJECT, "RegroupChosen", text)
            return

    async def _carried_out(self, plan: PlanView) -> str:
        """Begin to carry a plan out; return what does."""
        if plan.batches is None:
            return f"transaction {(await self._plans.apply(plan, wait_s=0.0)).id}"
        return f"rollout {(await self._rollouts.begin(RolloutRequest(plan=plan))).id}"

    def _objection(self, plan: PlanView) -> str:
        """Return why a plan is not carried out; empty when it is."""
        if plan.empty:
            alone = [f"{entry.job}: {entry.reason}" for entry in plan.left_alone]
            left = f"; left alone: {'; '.join(alone)}" if alone else ""
            return f"nothing to gain within the budgets{left}"
        refused = [b for b in plan.budgets if b.verdict == "refused"]
        if refused:
            return f"job {refused[0].job} would be {refused[0].reason}"
        if plan.batches is not None and plan.batches.refused:
            return plan.batches.refused
        worth = plan.worth
        if worth is None:
            return "its worth is unknown: the site file gives no link rates (regroup.rates)"
        if worth.verdict == "no" or (worth.verdict == "open" and not self._policy.accept_open):
            return worth.reason
        return ""

    def _skipped(self, fired: Fired, reason: str) -> None:
        self._state.events.add("info", OBJECT, "RegroupSkipped", f"{fired.trigger}: {reason}")
