"""A plan's basis: the facts that it depends on. A plan is stale when one of them changed.

The epoch grows whenever any job of the site starts or ends, which does not affect plans for other
endpoints. A plan depends on the jobs whose light it moves and where their endpoints are, on which
jobs hold the endpoints that it moves, and on the ports that it uses.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

from controller.devices.aggregators import AttachPoint
from controller.schema.plans import PlanJobView, PlanView
from controller.state.records import JobRecord
from controller.state.state import State


def basis_of(moved: Iterable[str], holders: Mapping[str, JobRecord]) -> list[PlanJobView]:
    """Return the present facts about the jobs whose light moves."""
    jobs = {job.name: job for e in moved if (job := holders.get(e)) is not None}
    return [
        PlanJobView(
            job=job.name,
            submitted_at=job.submitted_at,
            state=job.state,
            policy=job.request.policy,
            endpoints=list(job.endpoints),
            pauses=len(job.pauses),
        )
        for job in jobs.values()
    ]


def named_points(plan: PlanView) -> frozenset[AttachPoint]:
    """Return the aggregator ports that the plan will use, as far as it names them."""
    return frozenset(AttachPoint(s.aggregator, s.aggregator_port) for s in plan.circuits.make)


def what_changed(plan: PlanView, state: State) -> str:
    """Return one fact that the plan depends on and that has changed; empty when none has.

    A plan without a basis (one written by hand) depends on everything.
    """
    return next(_changes(plan, state), "")


def _changes(plan: PlanView, state: State) -> Iterator[str]:
    if plan.epoch > state.epoch:
        yield "it was made at a later epoch than the present one"
    if plan.basis is None and plan.epoch < state.epoch:
        yield "it does not say which jobs it depends on"
    homes, holders = state.light.homes(), state.jobs.holders()
    sources = {move.endpoint: move.source for move in plan.moves}
    members = {e for job in plan.basis or () for e in job.endpoints}
    for job in plan.basis or ():
        yield from _job(job, state)
    stay = {e: home for e, home in plan.homes_after.items() if e in members}
    for endpoint, home in (stay | sources).items():
        if homes.get(endpoint) != home:
            yield _moved(endpoint, homes.get(endpoint), state, plan.epoch)
    if plan.basis is None:
        return
    for endpoint in sources:
        holder = holders.get(endpoint)
        if holder is not None and endpoint not in members:
            yield f"{endpoint} was given to job {holder.name}"
        if endpoint in state.light.quarantine:
            yield f"{endpoint} is out of use: {state.light.quarantine[endpoint].reason}"
    yield from _ports(plan, sources.keys(), state)


def _job(then: PlanJobView, state: State) -> Iterator[str]:
    job = state.jobs.get(then.job)
    if job is None or job.submitted_at != then.submitted_at or job.ended:
        yield f"job {then.job} has ended"
    elif job.state != then.state:
        yield f"job {then.job} is {job.state}, not {then.state}"
    elif list(job.endpoints) != then.endpoints:
        yield f"job {then.job} holds other endpoints, or in another order"
    elif job.request.policy != then.policy:
        yield f"job {then.job} has policy {job.request.policy}, not {then.policy}"
    elif len(job.pauses) != then.pauses:
        last = max(job.pauses, key=lambda ident: job.pauses[ident], default="a regroup")
        yield f"job {then.job} was moved by {last}"


def _moved(endpoint: str, home: str | None, state: State, epoch: int) -> str:
    for view in reversed(state.transactions.finished.values()):
        after = view.epoch_after
        if after is not None and after > epoch and any(m.endpoint == endpoint for m in view.moves):
            return f"{endpoint} was moved by {view.id}"
    return f"{endpoint} is {f'under {home}' if home else 'dark'} now"


def _ports(plan: PlanView, moved: Iterable[str], state: State) -> Iterator[str]:
    leaving = set(moved)
    carried = {at: endpoint for endpoint, at in state.light.attachments.items()}
    for step in plan.circuits.break_:
        if state.light.attachments.get(step.endpoint) != AttachPoint(
            step.aggregator, step.aggregator_port
        ):
            yield f"{step.endpoint} is on another port of {step.aggregator}"
    blocked, uplinks = state.blocked_points(), state.light.uplink_points()
    for point in sorted(named_points(plan)):
        name = str(point)
        there = carried.get(point)
        if there is not None and there not in leaving:
            yield f"port {name} carries {there}"
        if name in state.light.quarantine:
            yield f"port {name} is out of use: {state.light.quarantine[name].reason}"
        elif point in uplinks:
            yield f"port {name} carries an uplink"
        elif point in blocked:
            yield f"port {name} is used by a foreign circuit or by a transaction"
