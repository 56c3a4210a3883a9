"""Fair share and patience hold against every use of priorities."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.index import FabricIndex
from scheduler.model import Job, Request
from scheduler.queue import Queue, decide
from scheduler.queue_model import Decisions, Pending, Project, QueuePolicy, Running
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
    made = decide(fabric, pending, [Running("held", "beta")], now=3 * HOUR)
    assert started(made) == ["a"]


def test_what_has_waited_longest_comes_first_whatever_its_priority() -> None:
    pending = [job("a", 6, 0.0, "alpha"), job("b", 6, 1.0, "beta", 100)]
    assert started(decide(paper(), pending, now=7 * HOUR)) == ["a"]
    apart = replace(pending[0], project="beta")
    assert started(decide(paper(), [apart, pending[1]], now=7 * HOUR)) == ["a"]
    assert started(decide(paper(), [apart, pending[1]], now=5 * HOUR)) == ["b"]


@given(
    st.lists(st.tuples(st.sampled_from("abc"), priorities), min_size=1, max_size=12),
    st.lists(priorities, min_size=12, max_size=12),
    st.integers(1, 20),
)
def test_projects_take_the_same_turns_whatever_priorities_their_jobs_have(
    jobs: list[tuple[str, int]], others: list[int], patience: int
) -> None:
    """Of equal jobs, priorities decide inside a project and nowhere else."""
    # Each project's jobs came together, so that it does not matter which of them is next.
    pending = [
        job(f"n{i}", 1, float("abc".index(project)), project, priority)
        for i, (project, priority) in enumerate(jobs)
    ]
    projects = [Project("a", weight=2.0), Project("b"), Project("c")]
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

    From its patience on nothing that came later starts in turn before it, and it starts.
    """
    patience = 30.0
    policy = QueuePolicy(patience_s=patience, aging_s=HOUR)
    fabric = uniform(aggregators=2, ports=4, endpoints=8, switches=2)
    queue = Queue(FabricIndex(fabric), policy, [Project("small", weight=0.01)])
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
