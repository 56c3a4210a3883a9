"""Checks a submitted plan against what its moves imply. Pure.

The controller computes circuits and ports itself when a plan is applied. A plan whose own list
differs was edited, or was made for other cabling, so its reader expects a different outcome: it is
refused before any device is touched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from controller.base.errors import ServiceError
from controller.schema.plans import CircuitStepView, PlanView
from controller.transaction.circuits import Link, Rewiring

Step = tuple[str, str, str, str, str, int]


def check_moves(plan: PlanView) -> None:
    """Compare a plan's moves with its own circuits. ServiceError ``invalid``."""
    what = f"plan/{plan.id}"
    if len({m.endpoint for m in plan.moves}) != len(plan.moves):
        raise ServiceError("invalid", "the plan moves an endpoint twice", object=what)
    asked = {(m.endpoint, m.target) for m in plan.moves if m.target is not None}
    made = {(step.endpoint, step.aggregator) for step in plan.circuits.make}
    wrong = made ^ asked if made else None
    if wrong:
        raise ServiceError(
            "invalid",
            f"the circuits to make do not match the plan's moves, see {min(wrong)[0]}",
            object=what,
            hint="it was edited by hand: make a new plan",
        )


def check_plan(plan: PlanView, rewiring: Rewiring) -> None:
    """Compare a plan with what its moves imply at this site. ServiceError ``invalid``.

    A plan without circuits (one written by hand) leaves them to the controller.
    """
    what = f"plan/{plan.id}"
    for verb, steps in (("breaks", plan.circuits.break_), ("makes", plan.circuits.make)):
        double = _used_twice(steps)
        if double:
            raise ServiceError(
                "invalid",
                f"the plan {verb} two circuits on port {double}",
                object=what,
                hint="a port carries one circuit: make a new plan",
            )
    for move in plan.moves:
        said = plan.homes_after.get(move.endpoint, move.target)
        if said != move.target:
            raise ServiceError(
                "invalid",
                f"the plan moves {move.endpoint} to {move.target or 'no aggregator'},"
                f" but its home afterwards is {said or 'none'}",
                object=what,
                hint="it was edited by hand: make a new plan",
            )
    if not (plan.circuits.break_ or plan.circuits.make):
        return
    for verb, steps, links in (
        ("break", plan.circuits.break_, [x for change in rewiring.changes for x in change.delete]),
        ("make", plan.circuits.make, [x for change in rewiring.changes for x in change.make]),
    ):
        wrong = {_listed(step) for step in steps} ^ {_implied(link) for link in links}
        if wrong:
            switch, a, b, endpoint, *_ = min(wrong)
            raise ServiceError(
                "invalid",
                f"the circuits to {verb} do not match the plan's moves,"
                f" see {switch}/{a} - {switch}/{b} ({endpoint})",
                object=what,
                hint="it was edited, or made for other cabling: make a new plan",
            )


def _used_twice(steps: Iterable[CircuitStepView]) -> str:
    ports = Counter(f"{step.switch}/{port}" for step in steps for port in (step.a, step.b))
    return next((port for port, times in sorted(ports.items()) if times > 1), "")


def _listed(step: CircuitStepView) -> Step:
    return (step.switch, step.a, step.b, step.endpoint, step.aggregator, step.aggregator_port)


def _implied(link: Link) -> Step:
    at = link.point
    return (link.switch, link.a, link.b, link.endpoint, at.aggregator, at.port)
