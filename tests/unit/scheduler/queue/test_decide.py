"""The queue: order, quotas, backfill, room for strict jobs, preemption, and reasons to wait."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model import Fabric, Job, Locality, Request
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
from tests.unit.scheduler.racks import PAPER_HOMES, fabrics, paper, uniform


def job(
    name: str,
    count: int,
    at: float = 0.0,
    *,
    locality: Locality = Locality.PREFERRED,
    **more: object,
) -> Pending:
    return Pending(Request(name, count, locality), at, **more)  # type: ignore[arg-type]


def started(decisions: Decisions) -> list[str]:
    return [start.job for start in decisions.starts]


def hold(decisions: Decisions, name: str) -> QueueHold:
    return next(h for h in decisions.holds if h.job == name)


def test_first_come_first_served_in_one_project() -> None:
    made = decide(paper(), [job("b", 3, 1.0), job("a", 2, 0.0), job("c", 1, 2.0)], now=5.0)
    assert started(made) == ["a", "b", "c"]
    assert not made.holds
    taken = [e for start in made.starts for e in start.placement.endpoints]
    assert sorted(taken) == sorted(PAPER_HOMES)


def test_a_gang_starts_whole_or_not_at_all() -> None:
    made = decide(paper(Job("x", ("gpu0",))), [job("six", 6)], now=0.0)
    assert not made.starts
    waits = hold(made, "six")
    assert (waits.code, waits.reason) == ("busy", "needs 6 endpoints, 5 of 6 are idle")
    assert waits.remedy == "running jobs end; the time is not known; no other job may delay it"
    assert waits.reserved_at == 0.0


def test_priority_is_a_head_start() -> None:
    policy = QueuePolicy(aging_s=100.0)
    late = job("late", 6, 50.0, priority=1)
    assert started(decide(paper(), [job("early", 6), late], policy=policy, now=60.0)) == ["late"]
    later = replace(late, submitted_at=150.0)
    assert started(decide(paper(), [job("early", 6), later], policy=policy, now=160.0)) == ["early"]


def test_projects_are_ordered_by_held_endpoints_per_weight() -> None:
    pending = [job(f"a{i}", 1, float(i), project="a") for i in range(6)]
    pending += [job(f"b{i}", 1, 10.0 + i, project="b") for i in range(6)]
    projects = [ProjectShare("a", weight=2.0), ProjectShare("b")]
    made = decide(paper(), pending, projects=projects, now=20.0)
    assert started(made) == ["a0", "b0", "a1", "a2", "b1", "a3"]
    one_queue = QueuePolicy(fair_share=False)
    made = decide(paper(), pending, projects=projects, policy=one_queue, now=20.0)
    assert started(made) == [f"a{i}" for i in range(6)]


def test_an_old_job_comes_before_fair_share() -> None:
    fabric = paper(Job("x", ("gpu0",)))
    pending = [job("old", 5, 0.0, project="a"), job("new", 5, 90.0, project="b")]
    running = [RunningJob("x", "a")]
    policy = QueuePolicy(patience_s=100.0)
    assert started(decide(fabric, pending, running, policy=policy, now=99.0)) == ["new"]
    assert started(decide(fabric, pending, running, policy=policy, now=100.0)) == ["old"]


def test_a_quota_does_not_hold_up_others() -> None:
    fabric = paper(Job("x", ("gpu0",)))
    pending = [job("a", 2, project="p"), job("b", 1, 1.0, project="p"), job("c", 5, 2.0)]
    one_queue = QueuePolicy(fair_share=False)
    quota = [ProjectShare("p", quota=2)]
    made = decide(fabric, pending, [RunningJob("x", "p")], quota, one_queue, now=9.0)
    assert started(made) == ["b"]
    waits = hold(made, "a")
    assert waits.code == "quota"
    assert waits.reason == "needs 2 endpoints, project p holds 2 of its quota of 2"
    assert "2 endpoints of the project become idle" in waits.remedy
    assert hold(made, "c").code == "busy"
    tight = decide(
        paper(), [job("a", 2, project="p")], projects=[ProjectShare("p", quota=1)], now=0.0
    )
    assert hold(tight, "a").remedy == "its quota is raised to 2"


def test_backfill_goes_past_without_delay() -> None:
    """Four of six are busy until 100; the first job needs five, so one is spare then."""
    fabric = paper(Job("x", ("gpu0", "gpu1", "gpu2", "gpu3")))
    running = [RunningJob("x", expected_end=100.0)]
    pending = [
        job("big", 5),
        job("unknown", 1, 1.0),
        job("long", 1, 2.0, run_time_s=200.0),
        job("short", 1, 3.0, run_time_s=90.0),
    ]
    made = decide(fabric, pending, running, now=10.0)
    assert started(made) == ["unknown", "short"]
    assert all(start.backfilled for start in made.starts)
    assert hold(made, "big").earliest_start == 100.0
    assert "in 90 s" in hold(made, "big").remedy
    assert hold(made, "long").code == "reserved"
    pending[3] = replace(pending[3], run_time_s=91.0)
    made = decide(fabric, pending, running, now=10.0)
    assert started(made) == ["unknown"]
    waits = hold(made, "long")
    assert (waits.code, waits.reason) == (
        "reserved",
        "it would delay job big, which is the first waiting job",
    )
    assert "at most 90 s" in waits.remedy
    strictly = decide(fabric, pending, running, policy=QueuePolicy(backfill=False), now=10.0)
    assert not strictly.starts
    assert hold(strictly, "short").code == "behind"
    shallow = decide(fabric, pending, running, policy=QueuePolicy(backfill_depth=0), now=10.0)
    assert hold(shallow, "short").code == "not_reached"


def test_after_patience_no_job_passes_the_first() -> None:
    fabric = paper(Job("x", ("gpu0",)))
    pending = [job("big", 6, reserved_at=0.0), job("small", 1, 1.0, run_time_s=1.0)]
    policy = QueuePolicy(patience_s=100.0)
    assert started(decide(fabric, pending, policy=policy, now=99.0)) == ["small"]
    made = decide(fabric, pending, policy=policy, now=100.0)
    assert not made.starts
    assert hold(made, "small").reason == "job big has waited too long for another job to pass it"
    # ... unless it can never start.
    lost = replace(fabric, unavailable=frozenset({"gpu5"}))
    assert started(decide(lost, pending, policy=policy, now=100.0)) == ["small"]
    narrow = uniform(aggregators=2, ports=2, endpoints=4)
    homes = dict(narrow.homes)
    stuck = Fabric(narrow.site, homes, unavailable=frozenset({"e0", "e2"}))
    strict = [job("pair", 2, locality=Locality.STRICT, reserved_at=0.0), job("one", 1, 1.0)]
    assert started(decide(stuck, strict, policy=policy, now=100.0)) == ["one"]


def test_a_strict_job_keeps_its_aggregator_free() -> None:
    fabric = uniform(aggregators=2, ports=4, endpoints=8)
    fabric = replace(fabric, jobs=(Job("x", ("e0", "e1")), Job("y", ("e4", "e5"), pinned=True)))
    running = [RunningJob("x", expected_end=50.0), RunningJob("y", expected_end=500.0)]
    pending = [job("four", 4, locality=Locality.STRICT)]
    pending += [job(f"one{i}", 1, 1.0 + i) for i in range(4)]
    made = decide(fabric, pending, running, now=0.0)
    homes = {e for start in made.starts for e in start.placement.endpoints}
    assert homes <= {"e6", "e7"}
    assert hold(made, "four").earliest_start == 50.0


def test_strict_re_homes_idle_endpoints_and_dark_ones_are_lit() -> None:
    made = decide(paper(), [job("four", 4, locality=Locality.STRICT)], now=0.0)
    assert made.starts[0].placement.span == 1
    assert made.starts[0].placement.moves
    dark = paper(homes=dict(PAPER_HOMES) | {"gpu1": None})
    assert started(decide(dark, [job("all", 6)], now=0.0)) == ["all"]


def test_room_is_made_within_its_budget() -> None:
    fabric = paper(Job("two", ("gpu0", "gpu2")))
    pending = [job("four", 4, locality=Locality.STRICT), job("one", 1, 1.0)]
    made = decide(fabric, pending, policy=QueuePolicy(make_room_moves=1), now=0.0)
    assert [(r.job, r.moves_needed) for r in made.rooms] == [("four", 1)]
    assert not made.starts, "the four that are idle are spoken for"
    assert "a regroup moves 1 running endpoint" in hold(made, "four").remedy
    assert not decide(fabric, pending, now=0.0).rooms


def test_preemption_is_off_until_it_is_asked_for() -> None:
    jobs = (Job("low", ("gpu0", "gpu1")), Job("mid", ("gpu2", "gpu3")), Job("own", ("gpu4",)))
    running = [
        RunningJob("low", started_at=5.0, preemptible=True),
        RunningJob("mid", started_at=1.0, preemptible=True, priority=1),
        RunningJob("own"),
    ]
    pending = [job("vip", 3, priority=2)]
    assert not decide(paper(*jobs), pending, running, now=9.0).preemptions
    policy = QueuePolicy(preemption=Preemption.PRIORITY)
    made = decide(paper(*jobs), pending, running, policy=policy, now=9.0)
    assert [(p.job, p.victims) for p in made.preemptions] == [("vip", ("low",))]
    bigger = [job("vip", 4, priority=2)]
    made = decide(paper(*jobs), bigger, running, policy=policy, now=9.0)
    assert made.preemptions[0].victims == ("low", "mid")
    assert not decide(
        paper(*jobs), [job("vip", 6, priority=2)], running, policy=policy, now=9.0
    ).preemptions


def test_the_incremental_queue_updates_its_accounts() -> None:
    queue = Queue(FabricIndex(paper()))
    queue.submit(job("a", 4, run_time_s=10.0))
    queue.submit(job("b", 4, 1.0))
    queue.submit(job("c", 4, 2.0))
    with pytest.raises(ValueError, match="job b is in the queue"):
        queue.submit(job("b", 1))
    assert started(queue.decide(2.0)) == ["a"]
    assert hold(queue.decide(3.0), "b").earliest_start == 12.0
    assert queue.withdraw("b").name == "b"
    queue.finish("a")
    assert started(queue.decide(21.0, explain=False)) == ["c"]
    assert (len(queue), queue.index.free, queue.account("default").held) == (0, 2, 4)
    assert queue.decide(22.0) == Decisions()


requests = st.builds(
    Request,
    st.just(""),
    st.integers(1, 6),
    st.sampled_from(Locality),
)
pendings = st.lists(
    st.builds(
        Pending,
        requests,
        st.integers(0, 50).map(float),
        st.sampled_from(["p", "q"]),
        st.integers(0, 2),
        st.sampled_from([None, 5.0, 60.0]),
    ),
    max_size=8,
).map(
    lambda jobs: [replace(j, request=replace(j.request, job=f"n{i}")) for i, j in enumerate(jobs)]
)
policies = st.builds(
    QueuePolicy,
    fair_share=st.booleans(),
    backfill=st.booleans(),
    backfill_depth=st.integers(0, 4),
    aging_s=st.just(20.0),
    patience_s=st.just(30.0),
    make_room_moves=st.integers(0, 2),
    preemption=st.sampled_from(Preemption),
)


@given(fabrics(), pendings, policies, st.integers(1, 8), st.booleans())
def test_every_decision_is_sound(
    fabric: Fabric, pending: list[Pending], policy: QueuePolicy, quota: int, ends: bool
) -> None:
    running = [
        RunningJob(j.name, "p", expected_end=60.0 if ends else None, preemptible=not j.pinned)
        for j in fabric.jobs
    ]
    projects = [ProjectShare("p", quota=quota), ProjectShare("q", weight=2.0)]
    made = decide(fabric, pending, running, projects, policy, now=60.0)
    assert made == decide(fabric, pending, running, projects, policy, now=60.0)
    by_name = {p.name: p for p in pending}
    # Every job starts or has a reason.
    assert sorted(started(made) + [h.job for h in made.holds]) == sorted(by_name)
    assert all(h.reason and h.remedy and h.code for h in made.holds)
    idle = {e.name for e in fabric.idle()}
    taken = [e for start in made.starts for e in start.placement.endpoints]
    assert len(set(taken)) == len(taken)
    assert set(taken) <= idle
    for start in made.starts:
        assert len(start.placement.endpoints) == by_name[start.job].request.count
    held = sum(len(j.endpoints) for j in fabric.jobs)
    new = sum(by_name[s.job].request.count for s in made.starts if by_name[s.job].project == "p")
    assert new == 0 or held + new <= quota
    for preempt in made.preemptions:
        assert policy.preemption is Preemption.PRIORITY
        victims = {r.job: r for r in running}
        assert all(
            victims[v].preemptible and victims[v].priority < by_name[preempt.job].priority
            for v in preempt.victims
        )
    fast = Queue(FabricIndex(fabric), policy, projects, running)
    for p in pending:
        fast.submit(p)
    assert fast.decide(60.0, explain=False).starts == made.starts


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.integers(1, 4), st.integers(1, 30), st.integers(0, 2), st.booleans()),
        min_size=1,
        max_size=6,
    ),
    st.integers(5, 7),
    st.sampled_from(Locality),
    st.booleans(),
)
def test_no_job_starves(
    flood: list[tuple[int, int, int, bool]], wanted: int, locality: Locality, fair: bool
) -> None:
    """A job of most of the site, against an endless flood of small ones with wrong run times.

    They have all priorities, belong to projects that hold less, and end later than
    expected. Once the job is the oldest for its priority and has been first for the
    patience, no job passes it, so it starts when the longest of the others ends.
    """
    policy = QueuePolicy(fair_share=fair, aging_s=20.0, patience_s=50.0)
    site = uniform(aggregators=2, ports=4, endpoints=8, switches=2)
    queue = Queue(FabricIndex(site), policy, [ProjectShare("big", weight=0.01)])
    queue.submit(job("big", wanted, locality=locality, project="big"))
    queue.submit(job("blocker", 1, -1.0, project="big"))  # its project always holds most
    ends: list[tuple[float, str]] = []
    # Older for its priority within 2 * 20 s; old within 50 s; then at most 16 that came
    # before it may be first for 50 + 30 s each.
    horizon = 2000
    for now in range(horizon):
        for end, name in [e for e in ends if e[0] <= now]:
            ends.remove((end, name))
            queue.finish(name)
        for i, (count, _, priority, lies) in enumerate(flood):
            if len(queue) < 20:
                queue.submit(
                    job(
                        f"f{now}-{i}",
                        count,
                        float(now),
                        priority=priority,
                        project=f"flood{i % 2}",
                        run_time_s=1.0 if lies else None,
                    )
                )
        for name in started(queue.decide(float(now), explain=False)):
            if name == "big":
                return
            if name != "blocker":
                length = flood[int(name.rpartition("-")[2])][1]
                ends.append((float(now + length), name))
    pytest.fail("the big job starved")


@settings(max_examples=60)
@given(st.data())
def test_backfill_never_delays_the_first(data: st.DataObject) -> None:
    """With true run times the first waiting job starts no later than its reservation."""
    queue = Queue(FabricIndex(uniform(aggregators=2, ports=4, endpoints=8)))
    ends: list[tuple[float, str]] = []
    lengths: dict[str, float] = {}
    promised: dict[str, float] = {}
    for now in range(60):
        for end, name in [e for e in ends if e[0] <= now]:
            ends.remove((end, name))
            queue.finish(name)
        if data.draw(st.booleans()):
            name, length = f"j{now}", float(data.draw(st.integers(1, 15)))
            lengths[name] = length
            queue.submit(job(name, data.draw(st.integers(1, 8)), float(now), run_time_s=length))
        made = queue.decide(float(now))
        for name in started(made):
            assert now <= promised.get(name, float("inf"))
            ends.append((now + lengths[name], name))
        for h in made.holds:
            if h.reserved_at is not None and h.earliest_start is not None:
                promised.setdefault(h.job, h.earliest_start)
