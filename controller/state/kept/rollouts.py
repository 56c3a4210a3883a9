"""Plans that are carried out in batches, under way and over. Part of the state."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Literal

from controller.state.kinds.forms import AsList
from controller.state.kinds.kind import Kind, Records
from controller.state.records import MoveRecord

RolloutState = Literal["running", "committed", "stopped"]
KEPT_ROLLOUTS = 100
"""Ones that are over."""


@dataclass(slots=True, frozen=True, kw_only=True)
class RolloutRecord:
    """One plan's batches: each is one transaction, and begins when the one before has committed."""

    id: str
    plan_id: str
    state: RolloutState = "running"
    batches: tuple[tuple[Annotated[MoveRecord, AsList()], ...], ...] = ()
    """All of them, in order; none once it is over."""
    total: int
    """Number of batches."""
    least: int
    """Lower bound on it."""
    done: int = 0
    """Batches that have committed."""
    max_dark: int
    max_pauses: int = 1
    park: bool = False
    pauses: Mapping[str, int] = field(default_factory=dict)
    """By job: pauses of the whole rollout."""
    owners: Mapping[str, str] = field(default_factory=dict)
    """By endpoint that moves: the job that holds it; idle ones are absent."""
    jobs: Mapping[str, float] = field(default_factory=dict)
    """When the jobs were submitted: another one may get their name."""
    room_for: str | None = None
    """The waiting job that fits afterwards."""
    room: tuple[str, ...] = ()
    """The endpoints that are kept for it until then."""
    transactions: tuple[str, ...] = ()
    """Every one that was begun, in order."""
    attempts: int = 0
    """How often the next batch was begun; more than once after a restart of the controller."""
    abort: bool = False
    """An operator asked that no further batch begin."""
    started_at: float
    """Seconds since 1970, as is ``finished_at``."""
    finished_at: float | None = None
    result: str = ""

    @property
    def idle(self) -> frozenset[str]:
        """Idle endpoints that the batches still to come move."""
        left = self.batches[self.done :]
        return frozenset(m.endpoint for batch in left for m in batch) - self.owners.keys()


ROLLOUTS = Kind(
    "rollouts",
    RolloutRecord,
    key="id",
    order="started_at",
    columns=("started_at",),
    later=("room",),
    prefix="o",
)


class Rollouts(Records[RolloutRecord]):
    """Rollouts by id."""

    @property
    def under_way(self) -> RolloutRecord | None:
        """The one that is not over; there is one at a time."""
        return next((r for r in self._records.values() if r.state == "running"), None)

    def surplus(self) -> tuple[str, ...]:
        """Return the oldest ones beyond the limit that are over; changes nothing."""
        over = [r.id for r in self._records.values() if r.state != "running"]
        return tuple(over[: max(len(over) - KEPT_ROLLOUTS, 0)])
