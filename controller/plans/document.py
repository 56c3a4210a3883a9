"""Makes the REST document of a scheduler's plan: circuits, flows, dark time, gain. Pure."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from controller.fabric.dark_time import predicted_dark_time_s
from controller.ranks.tolerance import DarkTimeCheck
from controller.schema.plans import (
    BoundView,
    BudgetView,
    FlowChangesView,
    GainView,
    MoveView,
    PlanView,
)
from controller.transaction.circuits import Rewiring
from controller.views.transactions import circuit_changes
from ocs_driver.base import Capabilities
from scheduler import ring
from scheduler.metrics import span
from scheduler.model import Job, Move, Plan
from sitefile import CabledSite


def plan_view(
    site: CabledSite,
    plan: Plan,
    *,
    jobs: Sequence[Job],
    homes: Mapping[str, str | None],
    rewiring: Rewiring,
    flows: FlowChangesView,
    capabilities: Mapping[str, Capabilities | None],
    budgets: Iterable[DarkTimeCheck],
) -> PlanView:
    """Return the plan's document, with a new id."""
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
        predicted_dark_time_s=predicted_dark_time_s(rewiring, capabilities),
        budgets=[
            BudgetView(**{key: getattr(verdict, key) for key in BudgetView.model_fields})
            for verdict in budgets
        ],
        predicted_gain=[
            gain for job in jobs if (gain := _gain(site, job, homes, plan.homes_after)) is not None
        ],
    )


def move_view(move: Move) -> MoveView:
    """Return the document of one move."""
    return MoveView(endpoint=move.endpoint, source=move.source, target=move.target)


def _gain(
    site: CabledSite,
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
        communication_speedup=_speedup(site, job.endpoints, before, after),
    )


def _speedup(
    site: CabledSite,
    endpoints: Sequence[str],
    before: Mapping[str, str | None],
    after: Mapping[str, str | None],
) -> float | None:
    """Predict the ratio of all-reduce times: every edge of the ring carries the same bytes."""
    rates = site.emulation
    if rates is None or any(homes.get(e) is None for homes in (before, after) for e in endpoints):
        return None

    def slowest(homes: Mapping[str, str | None]) -> float:
        edges = Counter(
            (homes[name], homes[endpoints[(i + 1) % len(endpoints)]])
            for i, name in enumerate(endpoints)
        )
        crossing = max((n for (a, b), n in edges.items() if a != b), default=0)
        return max(1 / rates.access_bps, crossing / rates.inter_aggregator_bps)

    return round(slowest(before) / slowest(after), 3)
