"""Reservations hold when limits end jobs: random queues, simulated with the production decisions.

A job may take all of its limit and all of its grace, and never more: the controller ends it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from controller.jobs.decisions import decide_and_explain
from controller.state.records import JobRecord, JobSpec
from scheduler.model import Aggregator, Endpoint, Fabric, Job, Locality, Site, TimeLimitAction
from scheduler.queue.model import QueuePolicy

SIZE = 8
SLACK_S = 1e-6


def site_with(switches: int) -> Site:
    return Site(
        name="promises",
        endpoints=tuple(Endpoint(f"gpu{n}", ocs=f"ocs{n // 2 % switches}") for n in range(SIZE)),
        aggregators=tuple(
            Aggregator(f"as{n}", {f"ocs{k}": SIZE // 2 // switches for k in range(switches)})
            for n in range(2)
        ),
    )


@dataclass(slots=True, frozen=True)
class Plan:
    """A job of the stream: when it comes, what it asks for, and how long its program would run."""

    after_s: float
    count: int
    limit_s: float
    runs_s: float


def waiting(name: str, plan: Plan, at: float, action: TimeLimitAction) -> JobRecord:
    spec = JobSpec(
        name=name,
        count=plan.count,
        locality=Locality.REGROUP,
        time_limit_s=plan.limit_s,
        time_limit_action=action,
    )
    return JobRecord(name, spec, "image", at)


def broken_promises(
    plans: list[Plan], action: TimeLimitAction, switches: int = 1
) -> list[tuple[str, float, float]]:
    """Return the jobs that started later than promised: name, promise and start in seconds.

    The queue decides after every change, and when a promise is due.
    """
    site = site_with(switches)
    homes: dict[str, str | None] = {e.name: f"as{n % 2}" for n, e in enumerate(site.endpoints)}
    jobs: dict[str, JobRecord] = {}
    ends: dict[str, float] = {}
    promised: dict[str, float] = {}
    broken = []
    arrivals, at = [], 0.0
    for number, plan in enumerate(plans):
        at += plan.after_s
        arrivals.append((at, f"job-{number}", plan))
    policy = QueuePolicy(patience_s=float("inf"))
    now = 0.0
    while arrivals or ends or any(job.state == "pending" for job in jobs.values()):
        waits = {job.name for job in jobs.values() if job.state == "pending"}
        due = [t for name, t in promised.items() if t > now and name in waits]
        now = min([t for t, _, _ in arrivals[:1]] + list(ends.values()) + due)
        for name in [name for name, end in ends.items() if end <= now]:
            del ends[name], jobs[name]
        while arrivals and arrivals[0][0] <= now:
            come, name, plan = arrivals.pop(0)
            jobs[name] = waiting(name, plan, come, action)
        held = tuple(Job(j.name, j.endpoints) for j in jobs.values() if j.holding)
        fabric = Fabric(site, homes, held)
        decided, report = decide_and_explain(
            fabric, jobs.values(), (), policy, lambda _: False, now=now
        )
        for name, hold in report.holds.items():
            if hold.earliest_start is not None and hold.code != "reserved":
                promised.setdefault(name, hold.earliest_start)
            if hold.reserved_at is not None:
                jobs[name] = replace(
                    jobs[name], reserved_at=hold.reserved_at, could_start_at=hold.could_start_at
                )
        for start in decided.starts:
            name = start.job
            if name in promised and now > promised[name] + SLACK_S:
                broken.append((name, promised[name], now))
            plan = plans[int(name.removeprefix("job-"))]
            endpoints = start.placement.endpoints
            homes |= {move.endpoint: move.target for move in start.placement.moves}
            jobs[name] = replace(jobs[name], state="running", started_at=now, endpoints=endpoints)
            longest_s = plan.runs_s
            if action is TimeLimitAction.END:
                longest_s = min(plan.runs_s, jobs[name].request.longest_run_s or plan.runs_s)
            ends[name] = now + longest_s
    return broken


PLANS = st.builds(
    Plan,
    after_s=st.floats(0, 500),
    count=st.integers(1, SIZE),
    limit_s=st.floats(1, 1000),
    runs_s=st.floats(0.1, 5000),
)


@pytest.mark.parametrize("switches", [1, 2])
@settings(max_examples=60, deadline=None)
@given(st.lists(PLANS, min_size=2, max_size=20))
def test_no_reservation_is_late_when_limits_end_jobs(switches: int, plans: list[Plan]) -> None:
    assert broken_promises(plans, TimeLimitAction.END, switches) == []


def test_an_estimate_that_is_too_short_breaks_a_promise() -> None:
    long = Plan(after_s=0, count=6, limit_s=100, runs_s=1000)
    first = Plan(after_s=1, count=8, limit_s=100, runs_s=10)
    broken = broken_promises([long, first], TimeLimitAction.IGNORE)
    assert broken == [("job-1", 100.0, 1000.0)]
    assert broken_promises([long, first], TimeLimitAction.END) == []
