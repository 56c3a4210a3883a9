"""Fair share and patience hold for all priorities."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model import Job, Request
from scheduler.placement.index import FabricIndex
from scheduler.queue.decide import Queue, decide
from scheduler.queue.model import (
    Decisions,
    Pending,
    Preemption,
    ProjectShare,
    QueuePolicy,
    RunningJob,
    StartedJob,
)
from tests.unit.scheduler.racks import paper, uniform

HOUR = 3600.0
priorities = st.integers(-100, 100)


def job(name: str, count: int, at: float, project: str, priority: int = 0) -> Pending:
    return Pending(Request(name, count), at, project, priority)


def started(made: Decisions) -> list[str]:
    return [start.job for start in made.starts]


@pytest.mark.parametrize("priority", [5, 6, 100])
def test_priority_does_not_switch_fair_share_off(priority: int) -> None:
    """Beta holds four of six; alpha holds nothing and came three hours earlier."""
    fabric = paper(Job("held", ("gpu0", "gpu1", "gpu2", "gpu3")))
    pending = [job("b", 2, 3 * HOUR, "beta", priority), job("a", 2, 0.0, "alpha")]
    made = decide(fabric, pending, [RunningJob("held", "beta")], now=3 * HOUR)
    assert started(made) == ["a"]


def test_the_longest_wait_comes_first_at_any_priority() -> None:
    pending = [job("a", 6, 0.0, "alpha"), job("b", 6, 1.0, "beta", 100)]
    assert started(decide(paper(), pending, now=7 * HOUR)) == ["a"]
    alike = replace(pending[0], project="beta")
    assert started(decide(paper(), [alike, pending[1]], now=7 * HOUR)) == ["b"]


def test_many_old_jobs_of_a_project_do_not_pass_other_projects() -> None:
    """Beta queued many jobs seven hours ago and has started one; alpha came an hour ago."""
    fabric = paper(Job("held", ("gpu0", "gpu1", "gpu2", "gpu3")))
    pending = [job(f"b{i}", 1, float(i), "beta", 5) for i in range(1, 20)]
    pending.append(job("a", 2, 6 * HOUR, "alpha"))
    running = [RunningJob("held", "beta", 5)]
    now = 7 * HOUR

    def first(*began: StartedJob) -> str:
        return started(decide(fabric, pending, running, began=began, now=now))[0]

    assert first() == "b1", "beta had no turn for longer than the patience: it gets one"
    assert first(StartedJob("held", 0.0, now - 60.0, "beta", 5)) == "a"
    assert first(StartedJob("held", 0.0, HOUR, "beta", 5)) == "b1"
    later = StartedJob("late", 5 * HOUR, now - 60.0, "beta", 0)
    assert first(later) == "b1", "what went past it was not its turn"
    assert first(StartedJob("b0", 0.0, now - 60.0, "alpha", 5)) == "b1"


def test_a_job_above_its_quota_does_not_hold_its_project_back() -> None:
    fabric = paper(Job("held", ("gpu0", "gpu1", "gpu2", "gpu3")))
    pending = [job("all", 3, 0.0, "beta"), job("one", 2, 1.0, "beta"), job("a", 2, 0.0, "alpha")]
    projects = [ProjectShare("beta", quota=6)]
    made = decide(fabric, pending, [RunningJob("held", "beta")], projects, now=5 * HOUR)
    assert started(made) == ["a"]
    later = [*pending[:2], replace(pending[2], submitted_at=5 * HOUR)]
    made = decide(fabric, later, [RunningJob("held", "beta")], projects, now=7 * HOUR)
    assert started(made) == ["one"]


def test_a_quota_below_the_held_endpoints_stops_no_job_and_names_a_remedy() -> None:
    fabric = paper(Job("held", ("gpu0", "gpu1", "gpu2", "gpu3")))
    running = [RunningJob("held", "beta")]
    pending = [job("b", 1, 0.0, "beta"), job("a", 2, 1.0, "alpha")]
    policy = QueuePolicy(preemption=Preemption.PRIORITY)
    for quota in (0, 2, 4):
        made = decide(
            fabric, pending, running, [ProjectShare("beta", 1.0, quota)], policy, now=9 * HOUR
        )
        assert (started(made), made.preemptions) == (["a"], ())
        (held,) = made.holds
        assert held.code == "quota"
        assert f"holds 4 of its quota of {quota}" in held.reason


@given(
    st.lists(st.tuples(st.sampled_from("abc"), priorities), min_size=1, max_size=12),
    st.lists(priorities, min_size=12, max_size=12),
    st.integers(1, 20),
)
def test_the_order_of_projects_does_not_depend_on_priorities(
    jobs: list[tuple[str, int]], others: list[int], patience: int
) -> None:
    """Of equal jobs, priorities decide inside a project and nowhere else."""
    # Each project's jobs came together, so that it does not matter which of them is next.
    pending = [
        job(f"n{i}", 1, float("abc".index(project)), project, priority)
        for i, (project, priority) in enumerate(jobs)
    ]
    projects = [ProjectShare("a", weight=2.0), ProjectShare("b"), ProjectShare("c")]
    policy = QueuePolicy(patience_s=float(patience), aging_s=1.0)

    def turns(waiting: list[Pending]) -> list[str]:
        made = decide(paper(), waiting, projects=projects, policy=policy, now=10.0)
        by_name = {p.name: p.project for p in waiting}
        return [by_name[name] for name in started(made)]

    changed = [replace(p, priority=o) for p, o in zip(pending, others, strict=False)]
    assert turns(pending) == turns(changed)


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from("ab"), st.integers(1, 8), st.integers(1, 9), priorities),
        min_size=1,
        max_size=4,
    ),
    priorities,
    st.booleans(),
)
def test_no_priority_starves_another_project(
    flood: list[tuple[str, int, int, int]], mine: int, lies: bool
) -> None:
    """Endless jobs of any priority, from projects that hold less, against one job.

    After its patience no later job starts before it except by backfill, and it starts.
    """
    patience = 30.0
    policy = QueuePolicy(patience_s=patience, aging_s=HOUR)
    fabric = uniform(aggregators=2, ports=4, endpoints=8, switches=2)
    queue = Queue(FabricIndex(fabric), policy, [ProjectShare("small", weight=0.01)])
    queue.submit(job("held", 1, -1.0, "small"))
    queue.submit(job("mine", 7, 0.0, "small", mine))
    came: dict[str, float] = {}
    ends: list[tuple[float, str]] = []
    for now in range(1500):
        for end, name in [e for e in ends if e[0] <= now]:
            ends.remove((end, name))
            queue.finish(name)
        for i, (project, count, length, priority) in enumerate(flood):
            if len(queue) < 12:
                new = job(f"f{now}-{i}", count, float(now), project, priority)
                queue.submit(replace(new, run_time_s=0.5 if lies else float(length)))
                came[new.name] = float(now)
        for start in queue.decide(float(now), explain=False).starts:
            if start.job == "mine":
                return
            if start.job in came:
                length = flood[int(start.job.rpartition("-")[2])][2]
                ends.append((float(now + length), start.job))
                assert start.backfilled or now < patience or came[start.job] == 0.0
    pytest.fail("the job starved")


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 4), priorities), min_size=2, max_size=3),
    st.integers(1, 12),
    st.data(),
)
def test_no_project_keeps_more_than_its_share_while_another_waits_beyond_patience(
    projects: list[tuple[int, int]], longest: int, data: st.DataObject
) -> None:
    """Projects with any number of jobs, of any age and with any priorities."""
    patience = 25.0
    fabric = uniform(aggregators=2, ports=4, endpoints=8, switches=2)
    known = [ProjectShare(f"p{i}", float(weight)) for i, (weight, _) in enumerate(projects)]
    queue = Queue(FabricIndex(fabric), QueuePolicy(patience_s=patience), known)
    whole = sum(project.weight for project in known)
    ends: list[tuple[int, str]] = []
    waiting: dict[str, dict[str, float]] = {project.name: {} for project in known}
    turned = {project.name: 0.0 for project in known}
    for now in range(150):
        for end, name in [e for e in ends if e[0] <= now]:
            ends.remove((end, name))
            queue.finish(name)
        for project, (_, priority) in zip(known, projects, strict=True):
            for i in range(data.draw(st.sampled_from([0, 0, 1, 9]))):
                new = job(f"{project.name}-{now}-{i}", 1, float(now), project.name, priority)
                queue.submit(new)
                waiting[project.name][new.name] = float(now)
        for name in started(queue.decide(float(now), explain=False)):
            project_name = name.partition("-")[0]
            del waiting[project_name][name]
            turned[project_name] = float(now)
            ends.append((now + data.draw(st.integers(1, longest)), name))
        for project in known:
            since = min(waiting[project.name].values(), default=float(now))
            if now - max(since, turned[project.name]) > patience + longest:
                raise AssertionError(f"{project.name} had no turn")
            share = 8 * project.weight / whole
            if now - since > patience + longest and queue.account(project.name).held < int(share):
                for other in known:
                    held = queue.account(other.name).held
                    assert held <= 8 * other.weight / whole + 1
