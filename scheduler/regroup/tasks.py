"""Computations on a fabric as values, which can be sent to a process that performs them.

Each is called with a clock that returns monotonic seconds and bounds its search.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from scheduler.model import Fabric, Limits, Move, Plan, Request
from scheduler.regroup import make_room, plan
from scheduler.regroup.batches import Batches, cut_into_batches

Clock = Callable[[], float]


@dataclass(slots=True, frozen=True)
class RegroupTask:
    """See ``scheduler.regroup.plan.plan_regroup``."""

    fabric: Fabric
    limits: Limits

    def __call__(self, clock: Clock) -> Plan:
        """Return the plan."""
        return plan.plan_regroup(self.fabric, self.limits, clock=clock)


@dataclass(slots=True, frozen=True)
class MakeRoomTask:
    """See ``scheduler.regroup.make_room.make_room``."""

    fabric: Fabric
    request: Request
    limits: Limits

    def __call__(self, clock: Clock) -> Plan | None:
        """Return the plan; None without any."""
        return make_room.make_room(self.fabric, self.request, self.limits, clock=clock)


@dataclass(slots=True, frozen=True)
class BatchesTask:
    """See ``scheduler.regroup.batches.cut_into_batches``."""

    fabric: Fabric
    moves: tuple[Move, ...]
    max_dark: int
    max_pauses: int
    park: bool

    def __call__(self, clock: Clock) -> Batches:
        """Return the batches. BatchError without an order."""
        return cut_into_batches(
            self.fabric,
            self.moves,
            self.max_dark,
            max_pauses=self.max_pauses,
            park=self.park,
        )
