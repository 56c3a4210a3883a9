"""Explains why a job waits, and names a remedy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from scheduler.model import Wait
from scheduler.queue import closer
from scheduler.queue.lanes import Lane, ProjectUsage
from scheduler.queue.model import Pending, QueueHold, QueuePolicy
from scheduler.queue.reservation import Head, Reservation

_OTHER_REQUEST = "submit it with a request that the site can meet"
_REMEDIES = {
    "no_match": _OTHER_REQUEST,
    "not_enough_endpoints": _OTHER_REQUEST,
    "never_spread": _OTHER_REQUEST,
    closer.CODE: "endpoints of other optical switches become idle, or it is the first to start",
    "spread": "endpoints on other servers or aggregators become idle",
    "refused": "it is tried there again some time after the last refusal",
    "spares": "endpoints for its spares become idle, or it is submitted with fewer spares",
}
"""By code of a wait."""


@dataclass(slots=True, frozen=True)
class Reasons:
    """The state of one round from which the reasons follow."""

    policy: QueuePolicy
    now: float
    heads: Mapping[str, tuple[Head, Reservation]]
    """The first waiting jobs, by name."""
    account: Callable[[str], ProjectUsage]

    def hold_for(
        self, lane: Lane, job: Pending, closed: Wait | str | None, by: Head | None
    ) -> QueueHold:
        """Return why a job waits; ``closed`` is why its lane does, ``by`` the job before it."""
        if job.name in self.heads:
            return self._head_hold(*self.heads[job.name])
        if closed == "behind" and by is not None and self.policy.backfill:
            return self._reserved_hold(job, by)
        if isinstance(closed, Wait):
            return QueueHold(
                job.name,
                closed.code,
                closed.reason,
                self._remedy(lane, closed),
                moves_needed=closed.moves_needed,
            )
        if closed == "quota":
            return self._quota_hold(job)
        name = "another job" if by is None else f"job {by.job.name}"
        if not self.policy.backfill:
            return QueueHold(job.name, "behind", f"behind {name} in the queue", f"{name} starts")
        return QueueHold(
            job.name,
            "not_reached",
            f"not considered: more than {self.policy.backfill_depth} jobs are between {name}"
            f" and this one, or jobs are being stopped for {name}",
            "jobs ahead start",
        )

    def _head_hold(self, head: Head, reservation: Reservation) -> QueueHold:
        start = reservation.start
        if start is not None:
            start = head.latest_start(start)
        when = (
            "running jobs end; the time is not known"
            if start is None
            else f"running jobs end as expected: in {max(start - self.now, 0.0):.0f} s"
        )
        wait = head.wait
        if wait.code == closer.CODE and start is not None:
            when = (
                "endpoints of other optical switches become idle; it starts scattered in"
                f" {max(start - self.now, 0.0):.0f} s (submitted with locality preferred: at once)"
            )
        remedy = f"{when}; no other job may delay it"
        if wait.moves_needed:
            remedy = f"a regroup moves {_running(wait.moves_needed)}, or {remedy}"
        return QueueHold(
            head.job.name,
            wait.code,
            wait.reason,
            remedy,
            earliest_start=start,
            moves_needed=wait.moves_needed,
        )

    def _remedy(self, lane: Lane, wait: Wait) -> str:
        pool, count = lane.pool, lane.shape.pooled
        if wait.code in _REMEDIES:
            return _REMEDIES[wait.code]
        if pool.total - pool.lost < count:
            return f"{_endpoints(count - pool.total + pool.lost)} must become available again"
        if pool.idle < count:
            return f"{_endpoints(count - pool.idle)} more must become idle"
        if wait.moves_needed:
            return f"a regroup moves {_running(wait.moves_needed)}, or running jobs end"
        return "running jobs end"

    def _quota_hold(self, job: Pending) -> QueueHold:
        account = self.account(job.project)
        quota, count = account.project.quota or 0, job.request.needed
        over = account.held + count - quota
        reason = (
            f"needs {_endpoints(count)}, project {job.project} holds {account.held}"
            f" of its quota of {quota}"
        )
        if count > quota:
            remedy = f"its quota is raised to {count}"
        elif over > 0:
            remedy = f"{_endpoints(over)} of the project become idle, or its quota is raised"
        else:
            reason += ", and the rest is kept for a job of it that has waited too long"
            remedy = "that job starts, or the project's quota is raised"
        return QueueHold(job.name, "quota", reason, remedy)

    def _reserved_hold(self, job: Pending, head: Head) -> QueueHold:
        reservation = self.heads[head.job.name][1]
        remedy, start = f"job {head.job.name} starts", reservation.start
        if start is not None and not reservation.closed:
            remedy += (
                f", or this job's expected run time is at most {max(start - self.now, 0.0):.0f} s"
            )
        return QueueHold(job.name, "reserved", reserved_for(head), remedy)


def reserved_for(head: Head) -> str:
    """Return why a job does not start before a first waiting job that can use its endpoints."""
    name = head.job.name
    if head.promised:
        return f"other jobs were stopped so that job {name} can start"
    if head.closed:
        return f"job {name} has waited too long for another job to pass it"
    return f"it would delay job {name}, which is the first waiting job"


def _endpoints(count: int) -> str:
    return f"{count} endpoint" if count == 1 else f"{count} endpoints"


def _running(count: int) -> str:
    return f"{count} running endpoint" if count == 1 else f"{count} running endpoints"
