"""Checks that the queue counts the spares of jobs: quotas, backfill, preemption, reasons."""

from __future__ import annotations

from dataclasses import replace

from scheduler.model import Fabric, Job, Request, Spread, SpreadBy
from scheduler.placement.index import FabricIndex
from scheduler.queue.decide import Queue, decide
from scheduler.queue.model import (
    Decisions,
    Pending,
    Preemption,
    ProjectShare,
    QueueHold,
    QueuePolicy,
    RunningJob,
)
from tests.unit.scheduler.racks import paper

ON = QueuePolicy(preemption=Preemption.PRIORITY)


def job(name: str, count: int, spares: int, *, needed: bool = True, **more: object) -> Pending:
    request = Request(name, count, spares=spares, spares_needed=needed)
    return Pending(request, 0.0, **more)  # type: ignore[arg-type]


def reserved(count: int, spares: int, name: str = "red") -> Fabric:
    """Return the paper's rack with a job and its spares."""
    names = [f"gpu{i}" for i in range(count + spares)]
    own = Job(name, tuple(names[:count]), spares=tuple(names[count:]))
    return paper(own, unavailable=own.spares)


def hold(made: Decisions, name: str) -> QueueHold:
    return next(h for h in made.holds if h.job == name)


def test_a_started_job_takes_its_spares_from_the_next() -> None:
    made = decide(paper(), [job("a", 4, 1), job("b", 2, 0)], now=1.0)
    assert [start.job for start in made.starts] == ["a"]
    assert len(made.starts[0].placement.spares) == 1
    waits = hold(made, "b")
    assert (waits.code, waits.reason) == ("busy", "needs 2 endpoints, 1 of 6 are idle")


def test_the_end_of_a_job_frees_its_spares() -> None:
    queue = Queue(FabricIndex(reserved(3, 2)), running=[RunningJob("red", "p")])
    assert queue.account("p").held == 5
    queue.submit(Pending(Request("next", 6), 0.0))
    assert not queue.decide(1.0).starts
    queue.finish("red")
    assert queue.account("p").held == 0
    assert [start.job for start in queue.decide(2.0).starts] == ["next"]


def test_a_job_that_fits_only_without_spares_waits_for_them() -> None:
    made = decide(paper(Job("x", ("gpu0",))), [job("a", 4, 2)], now=1.0)
    waits = hold(made, "a")
    assert waits.code == "spares"
    assert waits.remedy.startswith("running jobs end")
    assert waits.reserved_at == 1.0  # it is the first in the queue, others may not delay it
    assert decide(paper(Job("x", ("gpu0",))), [job("a", 4, 2, needed=False)], now=1.0).starts


def test_quotas_count_spares() -> None:
    projects = [ProjectShare("p", quota=4)]
    made = decide(paper(), [job("a", 3, 2, project="p")], (), projects, now=1.0)
    waits = hold(made, "a")
    assert (waits.code, waits.reason) == (
        "quota",
        "needs 5 endpoints, project p holds 0 of its quota of 4",
    )
    made = decide(paper(), [job("a", 3, 2, needed=False, project="p")], (), projects, now=1.0)
    assert len(made.starts[0].placement.spares) == 1
    taken = reserved(2, 2)
    made = decide(taken, [job("b", 1, 0, project="p")], [RunningJob("red", "p")], projects, now=1.0)
    assert hold(made, "b").reason.endswith("project p holds 4 of its quota of 4")


def test_no_backfill_onto_the_spares_that_the_first_job_waits_for() -> None:
    fabric = paper(Job("x", ("gpu0", "gpu1")))
    running = [RunningJob("x", expected_end=100.0)]
    first = job("first", 4, 1)
    small = Pending(Request("small", 1), 1.0)
    # After x there are six: the first job takes four and a spare, one is left.
    made = decide(fabric, [first, small], running, now=1.0)
    assert [start.job for start in made.starts] == ["small"]
    made = decide(fabric, [job("first", 4, 2), small], running, now=1.0)
    assert not made.starts
    assert hold(made, "first").earliest_start == 100.0
    assert hold(made, "small").code == "reserved"


def test_a_stopped_job_gives_its_spares() -> None:
    fabric = reserved(3, 2)
    running = [RunningJob("red", preemptible=True)]
    urgent = Pending(Request("urgent", 5), 0.0, priority=1)
    made = decide(fabric, [urgent], running, policy=ON, now=1.0)
    assert [p.victims for p in made.preemptions] == [("red",)]
    assert decide(fabric, [replace(urgent, request=Request("urgent", 1))], running, now=1.0).starts


def test_a_job_that_can_never_be_spread_keeps_no_one_waiting() -> None:
    apart = Request("apart", 5, spread=Spread(SpreadBy.SERVER, 1))
    made = decide(paper(), [Pending(apart, 0.0), Pending(Request("b", 6), 1.0)], now=1.0)
    assert [start.job for start in made.starts] == ["b"]
    assert hold(made, "apart").code == "never_spread"
    assert hold(made, "apart").remedy == "submit it with a request that the site can meet"
