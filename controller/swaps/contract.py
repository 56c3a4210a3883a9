"""What a recovery from lost hardware asks of others, and the values that it works with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from checkpoints.ledger import Key, Ledger
from checkpoints.restore import Restore
from controller.state.kept.checkpoints import RunEnd
from controller.state.kept.recoveries import RecoveryCause


@dataclass(slots=True, frozen=True, kw_only=True)
class JobLoss:
    """What one job lost: its ``dead`` endpoints, each with the reason.

    None are dead when a server restarted and works again: the job goes on where it was.
    """

    cause: RecoveryCause
    objects: tuple[str, ...]
    """``server/srv2``; at least one."""
    dead: Mapping[str, str]
    failed_at: float
    """Seconds since 1970."""
    healthy: bool = False
    """The endpoints themselves work: it is their aggregator, or a drain, that takes them away."""


class JobCheckpoints(Protocol):
    """The checkpoints of jobs. A job without any has no ledger."""

    def ledger(self, name: str) -> Ledger | None:
        """Return what is known of a job's checkpoints; None when it has none."""

    def newest(self, name: str, *, protected: bool = False) -> Key | None:
        """Return a job's newest written (or protected) step; None without one."""

    async def planned(self, name: str, endpoints: Sequence[str]) -> Restore:
        """Return what ranks at ``endpoints`` would resume from now; fetches nothing."""

    async def prefetch(self, name: str, endpoints: Sequence[str]) -> Restore:
        """Fetch ahead what ranks at ``endpoints`` would resume from. ServiceError."""

    def ended(self, name: str, end: RunEnd) -> None:
        """Note how a job's present run ended."""

    def stepped(self, name: str) -> None:
        """Note that a job's present run made a step after what it had loaded."""


def reached(checkpoints: JobCheckpoints, name: str, epoch: int | None = None) -> int | None:
    """Return the newest step that a rank has written (in the run ``epoch``), whole or not."""
    ledger = checkpoints.ledger(name)
    if ledger is None:
        return None
    return max((key.step for key in ledger.steps if epoch in (None, key.epoch)), default=None)


class Requeuer(Protocol):
    """Requeues a job that cannot go on where it is."""

    async def back_to_queue(self, name: str, reason: str) -> None:
        """Release a stopped job's endpoints and queue it."""

    async def requeue(self, name: str, reason: str) -> None:
        """Stop a running job's containers and put it back into the queue."""
