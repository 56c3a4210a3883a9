"""Makes the REST document of a scheduler's plan: circuits, flows, dark time, gain. Pure."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence

from controller.fabric.link_times import LinkUp
from controller.ranks.tolerance import DarkTimeCheck
from controller.schema.plans import (
    BoundView,
    BudgetView,
    FlowChangesView,
    GainView,
    MoveView,
    PlanView,
)
from controller.telemetry.steps import roads_of
from controller.transaction.circuits import Rewiring
from controller.views.transactions import circuit_changes
from scheduler import ring
from scheduler.metrics import span
from scheduler.model import Job, Move, Plan
from scheduler.steptime.sites import SharedLinks
from sitefile import CabledSite


def plan_view(
    site: CabledSite,
    plan: Plan,
    *,
    jobs: Sequence[Job],
    homes: Mapping[str, str | None],
    rewiring: Rewiring,
    flows: FlowChangesView,
    dark_s: float,
    link_up: LinkUp,
    budgets: Iterable[DarkTimeCheck],
) -> PlanView:
    """Return the plan's document, with a new id."""
    links = roads_of(site)
    return PlanView(
        id=uuid.uuid4().hex[:12],
        epoch=plan.epoch,
        site=site.name,
        moves=[move_view(move) for move in plan.moves],
        homes_after=dict(plan.homes_after),
        excess_span_before=plan.excess_span_before,
        excess_span_after=plan.excess_span_after,
        running_moves=plan.running_moves,
        jobs_paused=list(plan.jobs_paused),
        paused_gpus=plan.paused_gpus,
        pause_gpu_seconds=plan.pause_gpu_seconds,
        bound=BoundView(
            excess_span=plan.bound.excess_span,
            running_moves=plan.bound.running_moves,
            paused_gpus=plan.bound.paused_gpus,
        ),
        optimal=plan.optimal,
        solver_seconds=plan.solver_seconds,
        circuits=circuit_changes(rewiring.changes),
        flows=flows,
        predicted_dark_time_s=dark_s,
        predicted_link_up_s=link_up.up_s,
        link_up_source=link_up.source,
        budgets=[
            BudgetView(**{key: getattr(verdict, key) for key in BudgetView.model_fields})
            for verdict in budgets
        ],
        predicted_gain=[
            gain for job in jobs if (gain := _gain(links, job, homes, plan.homes_after)) is not None
        ],
    )


def move_view(move: Move) -> MoveView:
    """Return the document of one move."""
    return MoveView(endpoint=move.endpoint, source=move.source, target=move.target)


def _gain(
    links: SharedLinks | None,
    job: Job,
    before: Mapping[str, str | None],
    after: Mapping[str, str | None],
) -> GainView | None:
    if all(before.get(e) == after.get(e) for e in job.endpoints):
        return None
    return GainView(
        job=job.name,
        span_before=span(job.endpoints, before),
        span_after=span(job.endpoints, after),
        ring_crossings_before=ring.crossings(job.endpoints, before),
        ring_crossings_after=ring.crossings(job.endpoints, after),
        communication_speedup=links and _speedup(links, job.endpoints, before, after),
    )


def _speedup(
    links: SharedLinks,
    endpoints: Sequence[str],
    before: Mapping[str, str | None],
    after: Mapping[str, str | None],
) -> float | None:
    """Predict the ratio of all-reduce times, of a ring that is alone."""
    now, then = (links.rates({"": endpoints}, homes).get("") for homes in (before, after))
    return None if now is None or then is None else round(then / now, 3)
