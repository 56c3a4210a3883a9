"""Computes plans without touching a device, checks them, and carries them out as transactions."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from pydantic import ValidationError

from base.processes import Worker
from controller.base.errors import ServiceError, not_found
from controller.base.tasks import Tasks
from controller.devices.aggregators import Aggregators, AttachPoint
from controller.devices.switches import Switches
from controller.fabric.mover import Mover
from controller.plans.basis import basis_of, named_points, what_changed
from controller.plans.batching import (
    BatchLimits,
    batches_view,
    limits_of,
    no_order,
)
from controller.plans.check import check_moves, check_plan
from controller.plans.document import plan_view
from controller.plans.given import given_plan
from controller.plans.line import Clock, PlanLine
from controller.plans.worth import admitted_gpu_s, stakes_of, with_stakes, worth_view
from controller.schema.plans import (
    BatchesView,
    CircuitChangesView,
    FlowChangesView,
    LeftAloneView,
    PlanRequest,
    PlanView,
    TransactionView,
)
from controller.state.records import JobRecord
from controller.state.scheduling import (
    LeftAlone,
    left_alone,
    no_longer_apart,
    pinned,
    scheduler_request,
    without,
)
from controller.state.state import State
from controller.state.transactions import RunningTransaction
from controller.state.writes import ReservedRoom
from controller.telemetry.steps import StepMeter
from controller.transaction.circuits import Rewiring
from controller.transaction.machine import abortable
from controller.transaction.model import (
    AbortAsked,
    Cause,
)
from controller.views.transactions import running_view, transaction_view
from scheduler.metrics import SpanBound, span
from scheduler.model import Aggregator, Endpoint, Fabric, Job, Limits, Move, Placement, Plan, Site
from scheduler.occupancy import FabricError, all_homes, moves_between
from scheduler.placement.index import FabricIndex
from scheduler.policy.worth import USUAL_RUN_S
from scheduler.queue.round import fit
from scheduler.regroup.batches import BatchError, Batches
from scheduler.regroup.tasks import BatchesTask, MakeRoomTask, RegroupTask
from sitefile.wording import plain_words

PLAN_GRACE_S = 30.0
"""Time that the planner may take beyond its solver's limit."""

WARM_UP_S = 1.0
_SMALL = Fabric(
    Site(
        "small",
        tuple(Endpoint(name, ocs="ocs0") for name in "abcd"),
        (Aggregator("as0", {"ocs0": 2}), Aggregator("as1", {"ocs0": 2})),
    ),
    {"a": "as0", "b": "as1", "c": "as0", "d": "as1"},
    (Job("ab", ("a", "b")), Job("cd", ("c", "d"))),
)
"""Two jobs that have to swap places: a problem for the solver."""


class Planner:
    """Makes plans and carries them out."""

    def __init__(
        self,
        state: State,
        mover: Mover,
        *,
        aggregators: Aggregators,
        switches: Switches,
        tasks: Tasks,
        meter: StepMeter,
        applied: Callable[[Mapping[str, str | None]], None] = lambda moves: None,
        worker: Worker | None = None,
    ) -> None:
        """``applied`` receives the moves of every plan when it begins.

        ``worker`` is the process that computes plans; None computes them in a thread.
        """
        self._state = state
        self._mover = mover
        self._aggregators = aggregators
        self._switches = switches
        self._tasks = tasks
        self._meter = meter
        self.applied = applied
        self._line = PlanLine(worker)

    @property
    def busy(self) -> bool:
        """True while a plan is being computed, so that another one would wait."""
        return self._line.busy

    async def close(self) -> None:
        """End what is being computed; return when it has ended."""
        await self._line.close()

    async def warm_up(self) -> None:
        """Solve a small problem, so that the first plan does not wait for the solver to load."""
        limits = Limits(time_limit_s=WARM_UP_S)
        small = replace(_SMALL, search_nodes=self._state.site.scheduling.search_nodes)
        await self._line.compute(RegroupTask(small, limits), WARM_UP_S + PLAN_GRACE_S)

    async def make_plan(self, request: PlanRequest) -> PlanView:
        """Compute a regroup without applying it.

        Jobs that are pinned, in their cool-down or out of pauses are left alone, and the plan
        lists them. For a pending job, the plan makes room for it. Homes that are given are taken
        as they stand: idle endpoints move there.
        """
        state = self._state
        if request.homes is not None and request.job is not None:
            text = "give a job or homes, not both"
            raise ServiceError("invalid", text, object="plan", hint="homes are of idle endpoints")
        if request.homes is not None and request.max_dark is not None:
            text = "homes are given to idle endpoints, which are not moved in batches"
            raise ServiceError("invalid", text, object="plan", hint="leave out max_dark")
        waiting = self._check_job(request.job)
        policy, now = state.site.scheduling.regroup, state.clock()
        alone = left_alone(state.jobs.values(), policy.budget, now, force=request.force)
        fabric = state.fabric() if waiting is None else state.fabric_of(waiting)
        fabric, holders = pinned(fabric, alone), state.jobs.holders()
        plan = await self._computed(fabric, request, waiting)
        plan, batches = await self._in_batches(fabric, plan, request)
        rewiring = await self._mover.foreseen({move.endpoint: move.target for move in plan.moves})
        view = plan_view(
            state.site,
            plan,
            jobs=fabric.jobs,
            homes=fabric.homes,
            rewiring=rewiring,
            flows=await self._flow_changes(rewiring),
            budgets=self._mover.dark_time_checks(rewiring).values(),
            dark_s=self._mover.dark_time_s(rewiring),
            link_up=self._mover.links.slowest(rewiring),
        )
        extra: dict[str, object] = {
            "left_alone": _left_alone_views(fabric, plan, alone, all_jobs=waiting is not None),
            "makes_room_for": waiting.name if waiting else None,
            "basis": basis_of((move.endpoint for move in plan.moves), holders),
            "batches": batches,
        }
        if batches is not None:
            extra["circuits"] = CircuitChangesView()
        pause_s = view.predicted_dark_time_s + policy.recovery_s
        found = stakes_of(
            self._meter,
            plan,
            fabric.jobs,
            fabric.homes,
            state.jobs,
            now=now,
            pause_s=pause_s,
            pauses={} if batches is None else batches.pauses,
        )
        if found is not None and plan.moves:
            stakes, placements = found
            admitted = 0.0
            if waiting is not None:
                hold = state.jobs.queue.holds.get(waiting.name)
                admitted = admitted_gpu_s(hold, waiting.request.count, now, USUAL_RUN_S)
            extra["worth"] = worth_view(stakes, admitted)
            extra["predicted_gain"] = with_stakes(view.predicted_gain, stakes, placements)
        return view.model_copy(update=extra)

    async def _computed(
        self, fabric: Fabric, request: PlanRequest, waiting: JobRecord | None
    ) -> Plan:
        if request.homes is not None:
            return given_plan(fabric, request.homes)
        limits = Limits(
            objective=request.objective,
            max_jobs_paused=request.max_jobs_paused,
            max_moves=request.max_moves,
            time_limit_s=request.time_limit_s,
            only_job=None if waiting else request.job,
        )
        work: Callable[[Clock], Plan | None] = RegroupTask(fabric, limits)
        if waiting is not None:
            work = MakeRoomTask(fabric, scheduler_request(waiting), limits)
        try:
            plan = await self._line.compute(work, request.time_limit_s + PLAN_GRACE_S)
        except (FabricError, ValueError) as error:
            raise ServiceError("failed", f"no plan: {error}", object="plan") from error
        if plan is None:
            why = "" if waiting is None else f": {waiting.reason}"
            raise ServiceError(
                "conflict",
                f"no move of light makes room for job {request.job}{why}",
                object=f"job/{request.job}",
                hint=f"see `lightloom describe job {request.job}`",
            )
        return plan

    async def _in_batches(
        self, fabric: Fabric, plan: Plan, request: PlanRequest
    ) -> tuple[Plan, BatchesView | None]:
        """Cut a plan into batches if the request or the site file asks for it.

        The homes of idle endpoints then follow from the order.
        """
        limits = limits_of(request, self._state.site.scheduling.regroup)
        asked = request.max_dark is not None
        if limits is None or not plan.running_moves:
            return plan, None  # a limit of the site's is for jobs' endpoints
        if len(plan.moves) <= limits.max_dark and not asked:
            return plan, None
        try:
            found = await self.cut(fabric, plan.moves, limits)
        except BatchError as error:
            if asked:
                raise no_order(error, "plan") from None
            return plan, batches_view(limits, error)
        homes = found.homes_after
        moves = moves_between(fabric.site, all_homes(fabric), homes)
        return replace(plan, moves=moves, homes_after=homes), batches_view(limits, found)

    async def cut(self, fabric: Fabric, moves: Sequence[Move], limits: BatchLimits) -> Batches:
        """Cut moves into batches, as the planner computes plans. BatchError without an order."""
        return await self._line.compute(
            BatchesTask(fabric, tuple(moves), limits.max_dark, limits.max_pauses, limits.park),
            PLAN_GRACE_S,
        )

    def _check_job(self, name: str | None) -> JobRecord | None:
        """Return the pending job that a plan is for; None when it is for running jobs."""
        if name is None:
            return None
        job = self._state.jobs.require(name)
        if job.ended:
            raise ServiceError(
                "conflict",
                f"job {name} is {job.state}",
                object=f"job/{name}",
                hint="only running and waiting jobs have plans",
            )
        return None if job.holding else job

    async def _flow_changes(self, rewiring: Rewiring) -> FlowChangesView:
        now = self._state.forwarding()
        then = replace(now, attachments=rewiring.attachments)
        changes = await self._aggregators.changes(now, then)
        return FlowChangesView(add=changes.add, delete=changes.delete)

    async def apply(self, plan: PlanView | dict[str, Any], wait_s: float) -> TransactionView:
        """Carry out a plan; return when it has ended, after ``wait_s`` seconds at the latest."""
        plan = self.checked(plan)
        most = self._state.site.scheduling.regroup.max_dark
        if most is not None and len(plan.moves) > most and plan.running_moves:
            raise ServiceError(
                "conflict",
                f"the plan moves {len(plan.moves)} endpoints at once, and the site allows {most}",
                object=f"plan/{plan.id}",
                hint=f"carry it out in batches: lightloom apply --max-dark {most}",
            )
        moves = {move.endpoint: move.target for move in plan.moves}
        room_for = plan.makes_room_for
        rewiring = await self._mover.foreseen(moves, self._other_points(plan))
        plan = self.checked(plan)  # the fabric may have changed meanwhile
        room = (
            None if room_for is None else ReservedRoom(room_for, self.room(plan, moves, room_for))
        )
        check_plan(plan, rewiring)
        running = self._mover.begin(Cause.REGROUP, moves, plan.id, rewiring, room=room)
        self.applied(moves)
        return await self._begun(running, wait_s)

    def room(self, plan: PlanView, moves: Mapping[str, str | None], name: str) -> frozenset[str]:
        """Return the endpoints that will suit a waiting job, to be reserved for it.

        ServiceError ``conflict`` when the job is no longer waiting, or would not fit.
        """
        state = self._state
        job = state.jobs.get(name)
        if job is None or job.state not in ("pending", "waiting"):
            raise self._stale(plan, f"job {name} is no longer waiting")
        fabric = without(state.fabric_of(job), state.jobs.promised_endpoints())
        after = replace(fabric, homes=dict(fabric.homes) | dict(moves))
        found = fit(FabricIndex(after), scheduler_request(job))  # as the queue will start it
        if not isinstance(found, Placement):
            raise self._stale(plan, f"job {name} would no longer fit, it {found.reason}")
        return frozenset(found.endpoints)

    def _other_points(self, plan: PlanView) -> frozenset[AttachPoint]:
        """Return the ports to exclude, so that the plan gets exactly the ports that it names.

        Empty when it names no circuits: then any free port is suitable.
        """
        named = named_points(plan)
        if not named:
            return frozenset()
        points = (AttachPoint(a.name, p) for a in self._state.site.aggregators for p in a.fibers)
        return frozenset(points) - named

    def _stale(self, plan: PlanView, why: str) -> ServiceError:
        return ServiceError(
            "conflict",
            f"the fabric moved since this plan was made (epoch {plan.epoch},"
            f" now {self._state.epoch}): {why}",
            object=f"plan/{plan.id}",
            hint="make a new plan",
        )

    async def attach(self, endpoint: str, aggregator: str | None, wait_s: float) -> TransactionView:
        """Move one endpoint's light by hand; ``aggregator`` None darkens it."""
        state, what = self._state, f"endpoint/{endpoint}"
        if endpoint not in state.cables:
            hint = "see `lightloom get endpoints`"
            raise ServiceError(
                "not_found", f"the site has no endpoint {endpoint}", object=what, hint=hint
            )
        if aggregator is not None and aggregator not in {a.name for a in state.site.aggregators}:
            raise ServiceError(
                "not_found",
                f"the site has no aggregator {aggregator}",
                object=f"aggregator/{aggregator}",
                hint="see `lightloom get aggregators`",
            )
        job = state.jobs.holders().get(endpoint)
        if aggregator is None and job is not None:
            raise ServiceError(
                "conflict",
                f"{endpoint} carries job {job.name}, which would be cut off",
                object=what,
                hint=f"cancel the job first: lightloom cancel {job.name}",
            )
        unusable = state.unavailable().get(endpoint)
        if unusable is not None:
            raise ServiceError("conflict", f"{endpoint}: {unusable}", object=what)
        homes = state.light.homes()
        if homes[endpoint] == aggregator:
            where = f"under {aggregator}" if aggregator else "dark"
            raise ServiceError("invalid", f"{endpoint} is {where} already", object=what)
        warnings = no_longer_apart(state.jobs.values(), homes, {**homes, endpoint: aggregator})
        begun = self._mover.begin(Cause.ATTACH, {endpoint: aggregator})
        view = await self._begun(begun, wait_s)
        return view.model_copy(update={"warnings": warnings})

    async def move(self, moves: Mapping[str, str | None], wait_s: float) -> TransactionView:
        """Move several endpoints' light by hand, in one transaction; None darkens one."""
        state = self._state
        holders, unusable = state.jobs.holders(), state.unavailable()
        for name, target in moves.items():
            if target is None and name in holders:
                raise ServiceError(
                    "conflict",
                    f"{name} carries job {holders[name].name}, which would be cut off",
                    object=f"endpoint/{name}",
                    hint=f"cancel the job first: lightloom cancel {holders[name].name}",
                )
            if name in unusable:
                raise ServiceError(
                    "conflict", f"{name}: {unusable[name]}", object=f"endpoint/{name}"
                )
        return await self._begun(self._mover.begin(Cause.ATTACH, moves), wait_s)

    def abort(self, ident: str) -> TransactionView:
        """Ask a running transaction to roll back. ServiceError ``conflict`` when it cannot."""
        view = self.transaction(ident)
        running = self._state.transactions.running.get(ident)
        if running is None or not (abortable(running.tx) or running.tx.back):
            raise ServiceError(
                "conflict",
                f"transaction {ident} cannot be stopped: {view.how_to_stop or view.result}",
                object=f"transaction/{ident}",
                hint="make a plan that moves the light back",
            )
        running.commands.put_nowait(AbortAsked())
        return view

    async def _begun(self, running: RunningTransaction, wait_s: float) -> TransactionView:
        self._tasks.spawn(self._carried_out(running), f"transaction {running.tx.id}")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(wait_s):
                await running.ended.wait()
        return self.transaction(running.tx.id)

    async def _carried_out(self, running: RunningTransaction) -> None:
        await self._mover.carry_out(running)

    def checked(self, plan: PlanView | dict[str, Any]) -> PlanView:
        """Refuse a plan that does not fit the site's present state, or moves nothing."""
        if isinstance(plan, dict):
            try:
                plan = PlanView.model_validate(plan)
            except ValidationError as error:
                first = error.errors()[0]
                where = ".".join(str(part) for part in first["loc"])
                raise ServiceError(
                    "invalid", f"not a plan: {where}: {plain_words(first)}", object="plan"
                ) from None
        state, what = self._state, f"plan/{plan.id}"
        if plan.site != state.site.name:
            raise ServiceError(
                "invalid",
                f"the plan is for site {plan.site}, this is {state.site.name}",
                object=what,
                hint="make a plan here",
            )
        homes = state.light.homes()
        for move in plan.moves:
            if move.endpoint not in homes:
                raise ServiceError(
                    "invalid", f"the site has no endpoint {move.endpoint}", object=what
                )
        aggregators = {aggregator.name for aggregator in state.site.aggregators}
        for move in plan.moves:
            if move.target is not None and move.target not in aggregators:
                raise ServiceError(
                    "conflict",
                    f"the site has no aggregator {move.target}",
                    object=f"aggregator/{move.target}",
                    hint="make a new plan",
                )
        check_moves(plan)
        changed = what_changed(plan, state)
        if changed:
            raise self._stale(plan, changed)
        if not plan.moves:
            raise ServiceError(
                "invalid", "the plan has no moves", object=what, hint="nothing to do"
            )
        return plan

    def transactions(self) -> list[TransactionView]:
        """Return the transactions that are kept, oldest first."""
        state = self._state.transactions
        return [self.transaction(ident) for ident in [*state.finished, *state.running]]

    def transaction(self, ident: str) -> TransactionView:
        """Return one transaction."""
        state = self._state
        running = state.transactions.running.get(ident)
        if running is not None:
            return running_view(running)
        try:
            return transaction_view(state.transactions.finished[ident])
        except KeyError:
            raise not_found("transaction", ident) from None


def _left_alone_views(
    fabric: Fabric, plan: Plan, alone: Mapping[str, LeftAlone], *, all_jobs: bool
) -> list[LeftAloneView]:
    """Return the jobs left alone although they stay scattered; with ``all_jobs``, all of them."""
    bound = SpanBound(fabric)
    endpoints = {e.name: e for e in fabric.site.endpoints}
    return [
        LeftAloneView(job=job.name, reason=alone[job.name].reason, until=alone[job.name].until)
        for job in fabric.jobs
        if job.name in alone
        and (
            all_jobs
            or span(job.endpoints, plan.homes_after)
            > bound.least([endpoints[n] for n in job.endpoints], job.spread, plan.homes_after)
        )
    ]
