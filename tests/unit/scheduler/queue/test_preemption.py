"""Preemption ends for all ages, priorities and projects; no job is stopped in vain."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from hypothesis import given
from hypothesis import strategies as st

from scheduler.model import Fabric, Job, Locality, Request
from scheduler.queue.decide import decide
from scheduler.queue.model import (
    PROMISE_S,
    Decisions,
    Pending,
    Preemption,
    ProjectShare,
    Promise,
    QueuePolicy,
    RunningJob,
)
from tests.unit.scheduler.racks import paper, uniform

ON = QueuePolicy(preemption=Preemption.PRIORITY)


@dataclass
class World:
    """A controller between two rounds of the queue; it keeps only the jobs."""

    fabric: Fabric
    waiting: dict[str, Pending]
    policy: QueuePolicy
    projects: tuple[ProjectShare, ...] = ()

    def __post_init__(self) -> None:
        self.wanted = dict(self.waiting)
        self.running: dict[str, RunningJob] = {}
        self.stops: Counter[str] = Counter()
        self.stays: Counter[tuple[str, str]] = Counter()
        """How often a job was stopped for another one while that one waited."""

    def look(self, now: float) -> Decisions:
        made = decide(
            self.fabric,
            list(self.waiting.values()),
            list(self.running.values()),
            self.projects,
            self.policy,
            now=now,
        )
        for start in made.starts:
            job = self.waiting.pop(start.job)
            homes = dict(self.fabric.homes) | {m.endpoint: m.target for m in start.placement.moves}
            jobs = (*self.fabric.jobs, Job(job.name, start.placement.endpoints))
            self.fabric = replace(self.fabric, homes=homes, jobs=jobs)
            end = None if job.run_time_s is None else now + job.run_time_s
            self.running[job.name] = RunningJob(
                job.name, job.project, job.priority, now, end, job.preemptible
            )
            for pair in [p for p in self.stays if p[0] == job.name]:
                del self.stays[pair]
        for preempt in made.preemptions:
            job = self.waiting[preempt.job]
            self.waiting[preempt.job] = replace(job, promise=preempt.promise)
            for victim in preempt.victims:
                self.stops[victim] += 1
                self.stays[preempt.job, victim] += 1
                self.end(victim)
                self.waiting[victim] = self.wanted[victim]
        return made

    def end(self, name: str) -> None:
        del self.running[name]
        self.fabric = replace(
            self.fabric, jobs=tuple(j for j in self.fabric.jobs if j.name != name)
        )


worlds = st.builds(
    World,
    st.just(uniform(aggregators=2, ports=4, endpoints=8, switches=2)),
    st.lists(
        st.builds(
            Pending,
            st.builds(Request, st.just(""), st.integers(1, 8), st.sampled_from(Locality)),
            st.integers(0, 100).map(float),
            st.sampled_from(["p", "q"]),
            st.integers(-2, 3),
            st.sampled_from([None, 5.0]),
            preemptible=st.booleans(),
        ),
        max_size=8,
    ).map(
        lambda jobs: {
            f"n{i}": replace(j, request=replace(j.request, job=f"n{i}")) for i, j in enumerate(jobs)
        }
    ),
    st.builds(
        QueuePolicy,
        fair_share=st.booleans(),
        backfill=st.booleans(),
        aging_s=st.sampled_from([1.0, 40.0]),
        patience_s=st.sampled_from([0.0, 30.0, 1000.0]),
        preemption=st.just(Preemption.PRIORITY),
    ),
    st.sampled_from([(), (ProjectShare("p", weight=5.0, quota=6),)]),
)


@given(worlds, st.integers(0, 3))
def test_preemption_ends_and_only_serves_jobs_that_start(world: World, later: int) -> None:
    """Jobs come in two waves and never end: the only events are starts and preemptions."""
    second = dict(list(world.waiting.items())[later:])
    for name in second:
        del world.waiting[name]
    owed: list[str] = []
    for now in range(100, 500):
        if now == 103:
            world.waiting |= second
        made = world.look(float(now))
        assert {start.job for start in made.starts} >= set(owed), "jobs were stopped in vain"
        owed = [preempt.job for preempt in made.preemptions]
        if now > 103 and not made.starts and not made.preemptions:
            return
    raise AssertionError(f"no end of it: {world.stops}")


@given(worlds, st.data())
def test_no_job_is_stopped_twice_for_one_stay(world: World, data: st.DataObject) -> None:
    """Jobs end and endpoints are lost and found at any time: starts may fail, but no livelock."""
    names = sorted(e.name for e in world.fabric.site.endpoints)
    for now in range(100, 140):
        if world.running and data.draw(st.booleans()):
            world.end(data.draw(st.sampled_from(sorted(world.running))))
        world.fabric = replace(
            world.fabric, unavailable=frozenset(data.draw(st.lists(st.sampled_from(names))))
        )
        world.look(float(now))
        assert all(times == 1 for times in world.stays.values())


def test_an_older_victim_does_not_come_back_first() -> None:
    """The victim has waited longer than the difference of the priorities is worth."""
    old = Pending(Request("old", 6), -7200.0, preemptible=True)
    world = World(paper(), {"old": old}, ON)
    world.look(0.0)
    world.waiting["urgent"] = Pending(Request("urgent", 2), 0.0, priority=1)
    for now in range(1, 20):
        world.look(float(now))
    assert (world.stops["old"], "urgent" in world.running) == (1, True)


def test_a_victim_of_a_project_that_holds_less_does_not_come_back_first() -> None:
    busy = (Job("own", ("gpu0", "gpu1")), Job("red", ("gpu2", "gpu3", "gpu4", "gpu5")))
    red = Pending(Request("red", 4), 0.0, "q", preemptible=True)
    world = World(paper(*busy), {"urgent": Pending(Request("urgent", 4), 5.0, "p", 1)}, ON)
    world.wanted["red"] = red
    world.running = {"own": RunningJob("own", "p"), "red": RunningJob("red", "q", preemptible=True)}
    for now in range(6, 20):
        world.look(float(now))
    assert (world.stops["red"], "urgent" in world.running) == (1, True)


def test_no_job_is_stopped_where_the_urgent_one_would_not_fit_then() -> None:
    """Two of four endpoints become idle, one per aggregator: strict needs both in one."""
    narrow = uniform(aggregators=2, ports=2, endpoints=4)
    jobs = (
        Job("a", ("e0",)),
        Job("b", ("e2",)),
        Job("c", ("e1",), pinned=True),
        Job("d", ("e3",), pinned=True),
    )
    running = [RunningJob(n, preemptible=n in "ab") for n in "abcd"]
    urgent = Pending(Request("urgent", 2, Locality.STRICT), 0.0, priority=1)
    fabric = replace(narrow, jobs=jobs)
    homes = {e: fabric.homes[e] for e in ("e0", "e2")}
    assert len(set(homes.values())) == 2
    assert not decide(fabric, [urgent], running, policy=ON, now=1.0).preemptions


def test_a_promise_ends_and_is_given_once() -> None:
    """An endpoint was lost meanwhile: others wait for the urgent job, but only for a time."""
    fabric = replace(paper(Job("own", ("gpu0",))), unavailable=frozenset({"gpu5"}))
    promise = Promise(10.0, frozenset({"red"}))
    urgent = Pending(Request("urgent", 5), 0.0, priority=1, promise=promise)
    red = Pending(Request("red", 1), -7200.0, preemptible=True)
    running = [RunningJob("own")]
    kept = decide(fabric, [red, urgent], running, policy=ON, now=9.0 + PROMISE_S)
    assert not kept.starts
    (held,) = [h for h in kept.holds if h.job == "red"]
    assert held.reason == "other jobs were stopped so that job urgent can start"
    over = decide(fabric, [red, urgent], running, policy=ON, now=10.0 + PROMISE_S)
    assert [start.job for start in over.starts] == ["red"]
    now = replace(
        fabric, unavailable=frozenset(), jobs=(Job("own", ("gpu0",)), Job("red", ("gpu1",)))
    )
    running.append(RunningJob("red", preemptible=True))
    assert not decide(now, [urgent], running, policy=ON, now=11.0 + PROMISE_S).preemptions
