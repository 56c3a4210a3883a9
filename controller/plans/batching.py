"""Cuts plans into batches within the limits of a request, a plan or the site. Pure."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from controller.base.errors import ServiceError
from controller.schema.plans import BatchesView, BatchRequest, PlanView
from scheduler.model import Move
from scheduler.regroup.batches import BatchError, Batches
from sitefile import RegroupPolicy


@dataclass(slots=True, frozen=True)
class BatchLimits:
    """Limits of the batches of one plan; the counts are of endpoints and of pauses of a job."""

    max_dark: int
    max_pauses: int = 1
    park: bool = False


def limits_of(
    asked: BatchRequest, policy: RegroupPolicy, stated: BatchesView | None = None
) -> BatchLimits | None:
    """Return what is asked, else what the plan states, else the site's limits; None for none."""
    base: BatchesView | RegroupPolicy = policy if stated is None else stated
    max_dark = base.max_dark if asked.max_dark is None else asked.max_dark
    if max_dark is None:
        return None
    return BatchLimits(
        max_dark,
        base.max_pauses if asked.max_pauses is None else asked.max_pauses,
        base.park if asked.park is None else asked.park,
    )


def moves_of(plan: PlanView) -> tuple[Move, ...]:
    """Return a document's moves."""
    return tuple(Move(move.endpoint, move.source, move.target) for move in plan.moves)


def batches_view(limits: BatchLimits, found: Batches | BatchError) -> BatchesView:
    """Return the document of the batches, or of the reason for none."""
    stated = asdict(limits)
    if isinstance(found, BatchError):
        why = f"{found}; {HINT.format(needed=found.needed)}"
        return BatchesView(**stated, batches=0, least=0, largest=0, pauses={}, refused=why)
    return BatchesView(
        **stated,
        batches=len(found.batches),
        least=found.least,
        largest=max(map(len, found.batches), default=0),
        pauses=dict(found.pauses),
    )


HINT = "allow {needed} endpoints dark at once, more pauses of a job, or parked idle endpoints"


def no_order(error: BatchError, what: str) -> ServiceError:
    """Return the refusal of a plan without an order."""
    return ServiceError("conflict", str(error), object=what, hint=HINT.format(needed=error.needed))
