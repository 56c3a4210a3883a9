"""Decides whether a job should wait for endpoints that a regroup can bring closer together.

With several optical switches an aggregator has only some of its ports on each. Endpoints of too
few switches never fit under one aggregator together, whatever is moved: their job runs scattered
to its end. It can be worth waiting until endpoints of other switches become idle.
"""

from __future__ import annotations

from scheduler.model import Locality, Placement, Request, Wait
from scheduler.placement.index import FabricIndex
from scheduler.placement.place import aggregators_text
from scheduler.placement.selection import least_span
from scheduler.queue.model import Pending, QueuePolicy

CODE = "switches"
"""Code of the wait."""


def longest_wait_s(index: FabricIndex, policy: QueuePolicy, job: Pending) -> float:
    """Return for how long a job waits for closer endpoints at most, once it could start.

    It never waits longer than it is expected to run.
    """
    request = job.request
    if (
        request.locality is not Locality.REGROUP
        or request.count == 1
        or request.endpoints
        or index.fixed_slot < 2  # one switch: a regroup brings any endpoints together
    ):
        return 0.0
    limit = policy.switch_wait_s
    return limit if job.run_time_s is None else min(limit, job.run_time_s)


def may_come_closer(index: FabricIndex, request: Request, placed: Placement) -> bool:
    """Return whether other endpoints of the site could be brought under fewer aggregators."""
    if placed.span_possible == 1:
        return False
    return placed.span_possible > least_span(index, index.pool(request), request.count)


def wait_for_closer(request: Request, placed: Placement, best: Placement) -> Wait:
    """Return why a job waits that could start; ``best`` is its placement on the empty site."""
    return Wait(
        request.job,
        CODE,
        f"needs {request.count} endpoints that a regroup can bring under"
        f" {aggregators_text(best.span_possible)}; the idle ones are on too few optical switches"
        f" for fewer than {placed.span_possible}",
    )
