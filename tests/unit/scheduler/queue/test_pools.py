"""Every pool of endpoints that jobs can use has a first waiting job, and so has every quota."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.model import Aggregator, Endpoint, Fabric, Job, Placement, Request, Site
from scheduler.queue.decide import decide
from scheduler.queue.model import (
    Decisions,
    Pending,
    Preemption,
    ProjectShare,
    QueuePolicy,
    RunningJob,
    StartedJob,
)

HOUR = 3600.0
NAMES = tuple(f"gpu{n}" for n in range(8))
SITE = Site(
    "two models",
    tuple(
        Endpoint(name, ocs="ocs0", model="V100" if n < 4 else "A100")
        for n, name in enumerate(NAMES)
    ),
    tuple(Aggregator(f"as{n}", {"ocs0": 4}) for n in range(2)),
)
HOMES = {name: f"as{n // 4}" for n, name in enumerate(NAMES)}


def usable(request: Request, *, needed: bool) -> frozenset[str]:
    """Return the endpoints that a request can take, or only those that it may wait for."""
    if request.endpoints and not (request.spares and (request.spares_needed or not needed)):
        return frozenset(request.endpoints)
    return frozenset(e.name for e in SITE.endpoints if request.model in (None, e.model))


class World:
    """A controller between two decisions: it keeps the jobs, and what decisions tell it to."""

    def __init__(
        self, projects: Sequence[ProjectShare] = (), policy: QueuePolicy | None = None
    ) -> None:
        self.projects = tuple(projects)
        self.policy = policy or QueuePolicy()
        self.homes: dict[str, str | None] = dict(HOMES)
        self.waiting: dict[str, Pending] = {}
        self.running: dict[str, tuple[RunningJob, Placement, float]] = {}
        """By job: as the queue sees it, what it holds and when it really ends."""
        self.began: list[StartedJob] = []
        self.lost: frozenset[str] = frozenset()

    def submit(self, job: Pending) -> None:
        self.waiting[job.name] = job

    def run(
        self,
        job: Pending,
        endpoints: tuple[str, ...],
        now: float,
        lasts: float,
        spares: tuple[str, ...] = (),
    ) -> None:
        end = None if job.run_time_s is None else now + job.run_time_s
        seen = RunningJob(job.name, job.project, job.priority, now, end)
        self.running[job.name] = seen, Placement(job.name, endpoints, spares=spares), now + lasts
        self.began.append(StartedJob(job.name, job.submitted_at, now, job.project, 0, job.request))

    def look(self, now: float, lasts: Callable[[str], float]) -> Decisions:
        """End the jobs that are over and decide once."""
        self.running = {name: one for name, one in self.running.items() if one[2] > now}
        held = tuple(
            Job(name, placed.endpoints, spares=placed.spares)
            for name, (_, placed, _) in self.running.items()
        )
        made = decide(
            Fabric(SITE, dict(self.homes), held, self.lost),
            list(self.waiting.values()),
            [seen for seen, _, _ in self.running.values()],
            self.projects,
            self.policy,
            began=self.began,
            now=now,
        )
        for start in made.starts:
            self.homes |= {move.endpoint: move.target for move in start.placement.moves}
            job = self.waiting.pop(start.job)
            placed = start.placement
            self.run(job, placed.endpoints, now, lasts(job.name), placed.spares)
        for hold in made.holds:
            since = {"reserved_at": hold.reserved_at, "could_start_at": hold.could_start_at}
            self.waiting[hold.job] = replace(self.waiting[hold.job], **since)
        return made

    def held(self, project: str) -> int:
        return sum(len(taken(p)) for seen, p, _ in self.running.values() if seen.project == project)

    def idle(self) -> frozenset[str]:
        return frozenset(NAMES).difference(*(taken(p) for _, p, _ in self.running.values()))


def taken(placed: Placement) -> frozenset[str]:
    """Return the endpoints that a job holds, spares included."""
    return frozenset((*placed.endpoints, *placed.spares))


def job(
    name: str, count: int, at: float = 0.0, project: str = "default", **more: object
) -> Pending:
    return Pending(Request(name, count, **more), at, project)  # type: ignore[arg-type]


V100 = {"model": "V100"}
A100 = {"model": "A100"}


@pytest.mark.parametrize("projects", [("one", "one", "one"), ("first", "gang", "flood")])
@pytest.mark.parametrize(
    ("first", "busy"),
    [
        (job("first", 4, 0.0, **A100), ("gpu4",)),
        (job("first", 1, 0.0, endpoints=("gpu0",)), ("gpu0",)),
        (job("first", 1, 0.0, endpoints=("gpu0",), spares=1), ("gpu0",)),
    ],
    ids=["another model", "a named endpoint", "a named endpoint and a spare"],
)
def test_a_gang_does_not_wait_for_the_first_of_other_endpoints(
    first: Pending, busy: tuple[str, ...], projects: tuple[str, str, str]
) -> None:
    """Small jobs flow past a gang, while the first of the queue waits for weeks."""
    world = World()
    world.run(job("long", 1), busy, 0.0, 1000 * HOUR)
    world.submit(replace(first, project=projects[0]))
    world.submit(job("gang", 3, 1.0, projects[1], **V100))
    for step in range(4 * 24):
        now = step * HOUR / 4
        world.submit(job(f"small{step}", 1, now + 2.0, projects[2], **V100))
        world.submit(job(f"other{step}", 1, now + 2.0, projects[2], **V100))
        started = [s.job for s in world.look(now + 3.0, lambda name: 2 * HOUR).starts]
        if "gang" in started:
            assert now <= 6 * HOUR + 2 * HOUR + HOUR / 4
            return
    pytest.fail("the gang did not start in a day")


def test_a_job_with_a_named_endpoint_gets_its_spares() -> None:
    """Endpoints become idle one by one, and small jobs take each, until it has waited for long."""
    world = World([ProjectShare("flood"), ProjectShare("named")])
    world.submit(job("named", 1, 1.0, "named", endpoints=("gpu0",), spares=2))
    for number in range(7):
        world.run(job(f"long{number}", 1), (NAMES[number + 1],), 0.0, (1 + number) * HOUR)
    for step in range(4 * 24):
        now = step * HOUR / 4
        world.submit(job(f"a{step}", 1, now + 2.0, "flood"))
        started = {s.job: s.placement for s in world.look(now + 3.0, lambda name: 7 * HOUR).starts}
        if "named" in started:
            assert started["named"].endpoints == ("gpu0",)
            assert len(started["named"].spares) == 2
            assert now <= 6 * HOUR + 3 * HOUR
            return
    pytest.fail("the job did not start in a day")


def test_a_job_as_large_as_its_quota_starts() -> None:
    world = World([ProjectShare("p", quota=4)])
    world.submit(job("small", 1, 0.0, "p"))
    world.submit(job("all", 4, 1.0, "p"))
    said = set()
    for step in range(4 * 24):
        now = step * HOUR / 4
        world.submit(job(f"small{step}", 1, now + 2.0, "p"))
        made = world.look(now + 3.0, lambda name: 2 * HOUR)
        said |= {h.reason for h in made.holds if h.code == "quota"}
        if "all" in [start.job for start in made.starts]:
            assert now <= 6 * HOUR + 2 * HOUR + HOUR / 4
            assert any("the rest is kept for a job of it" in reason for reason in said)
            return
    pytest.fail("the job did not start in a day")


def test_jobs_use_the_endpoints_beside_a_first_that_nobody_may_pass() -> None:
    """A job of any model starts on the other model, although placement would prefer the first."""
    world = World()
    world.run(job("long", 1), ("gpu0",), 0.0, 1000 * HOUR)
    world.run(job("rest", 3), ("gpu4", "gpu5", "gpu6"), 0.0, 1000 * HOUR)
    world.submit(replace(job("first", 4, 0.0, **V100), reserved_at=0.0))
    world.submit(job("any", 1, 1.0))
    made = world.look(7 * HOUR, lambda name: HOUR)
    assert [(s.job, s.placement.endpoints) for s in made.starts] == [("any", ("gpu7",))]


def test_many_waiting_jobs_do_not_hide_other_endpoints() -> None:
    """More jobs wait for one model than are considered; the other model is idle."""
    world = World(policy=QueuePolicy(backfill_depth=3))
    world.run(job("long", 4), NAMES[:4], 0.0, HOUR)
    for number in range(10):
        world.submit(job(f"v{number}", 1, float(number), f"p{number}", **V100))
    world.submit(job("a", 4, 99.0, **A100))
    assert [s.job for s in world.look(100.0, lambda name: HOUR).starts] == ["a"]


def test_preemption_serves_the_first_of_every_pool() -> None:
    world = World(policy=QueuePolicy(preemption=Preemption.PRIORITY))
    world.run(job("kept", 4), NAMES[4:], 0.0, HOUR)
    low = job("low", 4)
    world.run(low, NAMES[:4], 0.0, HOUR)
    seen, placed, end = world.running["low"]
    world.running["low"] = replace(seen, preemptible=True), placed, end
    world.submit(job("first", 1, 1.0, **A100))
    world.submit(replace(job("urgent", 1, 2.0, **V100), priority=2))
    made = world.look(3.0, lambda name: HOUR)
    assert [(p.job, p.victims) for p in made.preemptions] == [("urgent", ("low",))]


@dataclass(frozen=True)
class Kind:
    """A kind of job that is submitted again and again."""

    count: int
    project: str
    model: str | None
    named: tuple[str, ...]
    every: int
    lasts: int
    told: float | None
    spares: int
    needed: bool
    """It waits for its spares."""


@st.composite
def kinds(draw: st.DrawFn) -> Kind:
    model, named = draw(st.sampled_from([None, "V100", "A100"])), ()
    count = draw(st.integers(1, 4 if model else 7))
    if draw(st.integers(0, 3)) == 0:
        model = None
        named = tuple(sorted(draw(st.sets(st.sampled_from(NAMES), min_size=1, max_size=3))))
        count = len(named)
    spares, needed = draw(st.sampled_from([0, 0, 1, 2])), draw(st.booleans())
    spares = min(spares, (4 if model else 8) - count)
    lasts = draw(st.integers(1, 9))
    told = draw(st.sampled_from([None, float(lasts), 0.5]))
    every, project = draw(st.integers(1, 30)), draw(st.sampled_from("pqr"))
    return Kind(count, project, model, named, every, lasts, told, spares, needed)


@settings(max_examples=120)
@given(
    st.lists(kinds(), min_size=2, max_size=6),
    st.integers(4, 8),
    st.booleans(),
    st.integers(0, 5),
)
def test_the_first_of_its_pool_starts_when_what_runs_there_has_ended(
    flood: list[Kind], quota: int, fair: bool, depth: int
) -> None:
    """Random queues of several models, named endpoints, spares and a quota.

    Once a job that nothing older competes with has led for the patience, it starts at the latest
    when the last job ends that then runs on endpoints which it can use, and nothing that came
    later takes them; of those that may become its spares, nothing takes the last ones. It leads
    within the patience.
    """
    patience, longest = 15.0, 9.0
    policy = QueuePolicy(fair_share=fair, patience_s=patience, aging_s=20.0, backfill_depth=depth)
    limits = {"p": quota}
    world = World([ProjectShare("p", quota=quota), ProjectShare("q", weight=3.0)], policy)
    wants: dict[str, frozenset[str]] = {}
    came: dict[str, int] = {}
    lasts: dict[str, float] = {}
    due: dict[str, float] = {}
    oldest_since: dict[str, float] = {}

    def competes(older: Pending, one: Pending) -> bool:
        quota = older.project == one.project and one.project in limits
        return quota or bool(usable(older.request, needed=False) & wants[one.name])

    def passed(first: Pending, used: frozenset[str]) -> bool:
        """Whether a job that came later used what a job needs that waits."""
        named = frozenset(first.request.endpoints)
        if not named:
            return bool(used & wants[first.name])
        beside = wants[first.name] - named
        left = len(world.idle() & beside)
        return bool(used & named or (used & beside and left < first.request.spares))

    for step in range(150):
        now = float(step)
        for number, kind in enumerate(flood):
            if step < 100 and step % kind.every == 0 and len(world.waiting) < 25:
                name = f"k{number}-{step}"
                request = Request(
                    name,
                    kind.count,
                    model=kind.model,
                    endpoints=kind.named,
                    spares=kind.spares,
                    spares_needed=kind.needed,
                )
                wants[name] = usable(request, needed=True)
                came[name], lasts[name] = len(came), kind.lasts
                world.submit(Pending(request, now, kind.project, run_time_s=kind.told))
        starts = world.look(now, lasts.__getitem__).starts
        for name, latest in due.items():
            if name not in world.waiting:
                continue
            assert now < latest, f"{name} had to start"
            for start in starts:
                later = came[start.job] > came[name]
                used = taken(start.placement)
                assert not (later and passed(world.waiting[name], used)), f"{start} passed {name}"
        for one in world.waiting.values():
            older = [w for w in world.waiting.values() if came[w.name] < came[one.name]]
            limit = limits.get(one.project)
            if any(competes(w, one) for w in older) or (limit or 99) < one.request.needed:
                continue
            since = oldest_since.setdefault(one.name, now)
            assert now - since <= 2 * patience + 2 * longest, f"{one.name} starves"
            led = one.reserved_at is not None and now - one.reserved_at >= patience
            admitted = limit is None or world.held(one.project) + one.request.needed <= limit
            if led and admitted and one.name not in due:
                held = [(end, taken(placed)) for _, placed, end in world.running.values()]
                due[one.name] = max(end for end, used in held if wants[one.name] & used)
