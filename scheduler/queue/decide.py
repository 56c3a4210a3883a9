"""Decides which jobs start now: fair share, priorities, EASY backfill and gang scheduling.

``Queue`` is incremental; ``decide`` is the same as a pure function. The values are in
``scheduler.queue.model``.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from scheduler.model import Fabric, Job, Placement, Request, Wait
from scheduler.placement.index import FabricIndex
from scheduler.queue.lanes import (
    Key,
    Lane,
    Precedence,
    ProjectUsage,
    Shape,
    as_running,
    shape_of,
    spares_beside,
)
from scheduler.queue.model import (
    Decisions,
    Pending,
    Preemption,
    ProjectShare,
    Promise,
    QueuePolicy,
    RunningJob,
    StartedJob,
)
from scheduler.queue.round import Round, fit


class Queue:
    """The pending jobs, and an index of the fabric that the queue owns and updates."""

    def __init__(
        self,
        index: FabricIndex,
        policy: QueuePolicy | None = None,
        projects: Iterable[ProjectShare] = (),
        running: Iterable[RunningJob] = (),
        began: Iterable[StartedJob] = (),
    ) -> None:
        """Start with a fabric; running jobs that are not named belong to the default project.

        ``began`` are the jobs that started recently, including those that have ended.
        """
        self.index = index
        self.policy = policy or QueuePolicy()
        self.running: dict[str, RunningJob] = {}
        self.reserved_at: dict[str, float] = {}
        """Since when a pending job is the first waiting job of its pool or quota."""
        self.could_start_at: dict[str, float] = {}
        """Since when a pending job waits only for closer endpoints."""
        self.promises: dict[str, Promise] = {}
        """Pending jobs for which others were stopped."""
        self._began: dict[str, list[StartedJob]] = {}
        for start in began:
            self._began.setdefault(start.project, []).append(start)
        self._overdue: set[str] = set()
        self._accounts = {p.name: ProjectUsage(p) for p in projects}
        self._ends: list[tuple[float, str]] = []
        self._lanes: dict[Shape, Lane] = {}
        self._where: dict[str, tuple[Lane, Key]] = {}
        self._submitted = 0
        self._empty: tuple[frozenset[int], FabricIndex] | None = None
        """The fabric without jobs, and what is unavailable there."""
        self._at_best: dict[Request, Placement | Wait] = {}
        known = {r.job: r for r in running}
        for name in index.jobs:
            self._run(known.get(name) or RunningJob(name))

    def __len__(self) -> int:
        return len(self._where)

    # --- changes --------------------------------------------------------------------------

    def submit(self, job: Pending) -> None:
        """Queue a job. Raises ValueError if a job of this name is queued or runs."""
        name = job.name
        if name in self._where or name in self.running:
            raise ValueError(f"job {name} is in the queue already")
        shape = shape_of(job)
        lane = self._lanes.get(shape)
        if lane is None:
            lane = Lane(shape, job.project, job.request, self.index.pool(job.request))
            lane.beside = spares_beside(self.index, job.request)
            self._lanes[shape] = lane
        self._submitted += 1
        precedence = Precedence.FAIR_SHARE if job.promise is None else Precedence.PROMISED
        key = (precedence, self._effective_time(job), self._submitted)
        lane.insert(key, job)
        self._where[name] = lane, key
        if job.reserved_at is not None:
            self.reserved_at[name] = job.reserved_at
        if job.could_start_at is not None:
            self.could_start_at[name] = job.could_start_at
        if job.promise is not None:
            self.promises[name] = job.promise

    def withdraw(self, name: str) -> Pending:
        """Remove a pending job and return it. Raises KeyError if it is not queued."""
        lane, key = self._where.pop(name)
        self.reserved_at.pop(name, None)
        self.could_start_at.pop(name, None)
        self.promises.pop(name, None)
        self._overdue.discard(name)
        job = lane.remove(key)
        if not lane.jobs:
            del self._lanes[lane.key]
        return job

    def start(self, job: Pending, placement: Placement, now: float) -> None:
        """Start a pending job on its endpoints."""
        self.withdraw(job.name)
        new = StartedJob(job.name, job.submitted_at, now, job.project, job.priority, job.request)
        self._began.setdefault(job.project, []).append(new)
        self.index.start(as_running(job, placement), placement.moves)
        end = None if job.run_time_s is None else now + job.run_time_s
        self._run(RunningJob(job.name, job.project, job.priority, now, end, job.preemptible))

    def finish(self, name: str) -> None:
        """Record the end of a running job; its endpoints are idle again."""
        known = self.running.pop(name)
        if known.expected_end is not None:
            del self._ends[bisect_left(self._ends, (known.expected_end, name))]
        self.account(known.project).held -= _held(self.index.finish(name))

    def _run(self, running: RunningJob) -> None:
        self.running[running.job] = running
        if running.expected_end is not None:
            insort(self._ends, (running.expected_end, running.job))
        self.account(running.project).held += _held(self.index.jobs[running.job])

    # --- look-ups -------------------------------------------------------------------------

    def account(self, project: str) -> ProjectUsage:
        """Return the account of a project; an unknown project has the defaults."""
        account = self._accounts.get(project)
        if account is None:
            account = self._accounts[project] = ProjectUsage(ProjectShare(project))
        return account

    def lanes(self) -> Sequence[Lane]:
        """Return the lanes that have jobs."""
        return tuple(self._lanes.values())

    def ends(self) -> Sequence[tuple[float, str]]:
        """Return (expected end, running job) in order of time."""
        return self._ends

    def at_best(self, request: Request) -> Placement | Wait:
        """Return the placement of a request if all running jobs ended; the job has no name."""
        index, key = self.index, replace(request, job="")
        if self._empty is None or self._empty[0] != index.unavailable:
            lost = frozenset(index.names[e] for e in index.unavailable)
            empty = FabricIndex(replace(index.snapshot(), jobs=(), unavailable=lost))
            self._empty, self._at_best = (frozenset(index.unavailable), empty), {}
        known = self._at_best.get(key)
        if known is None:
            known = self._at_best[key] = fit(self._empty[1], key)
        return known

    # --- decisions ------------------------------------------------------------------------

    def decide(self, now: float, *, explain: bool = True) -> Decisions:
        """Start the jobs that can start now, and explain why the others wait.

        The starts take effect in the queue and its index at once. ``explain=False`` omits the
        holds, which is faster.
        """
        for lane in self._lanes.values():
            if lane.shape.endpoints or lane.shape.avoid:  # the index does not update such a pool
                lane.update(self.index)
        for account in self._accounts.values():
            account.kept = 0
        if not self._where or (not explain and self._nothing_fits()):
            return Decisions()
        self._classify(now)
        made = Round(self, now, explain=explain).run()
        for preempt in made.preemptions:
            self.promises[preempt.job] = preempt.promise
            self._set_precedence(preempt.job, Precedence.PROMISED)
        return made

    def _classify(self, now: float) -> None:
        """Update the class of every waiting job."""
        for name, promise in self.promises.items():
            if not promise.holds(now) and self._where[name][1][0] is Precedence.PROMISED:
                self._set_precedence(name, Precedence.FAIR_SHARE)
        for name in self._overdue:
            self._set_precedence(name, Precedence.FAIR_SHARE)
        self._overdue.clear()
        limit = now - self.policy.patience_s
        late = {name for name, since in self.reserved_at.items() if since <= limit}
        if self.policy.fair_share:
            late.update(self._without_turn(limit))
        for name in late:
            lane, key = self._where[name]
            if key[0] is not Precedence.PROMISED:
                job = lane.jobs[bisect_left(lane.keys, key)]
                self._set_precedence(name, Precedence.OVERDUE, job.submitted_at)
                self._overdue.add(name)

    def _without_turn(self, limit: float) -> Iterator[str]:
        """Yield the first jobs of projects that had no turn on the endpoints since a time."""
        pools: dict[Request, int] = {}
        for (project, pool), (_, job) in self._oldest_jobs().items():
            if job.submitted_at > limit:
                continue
            recent = [b for b in self._began.get(project, ()) if b.started_at > limit]
            self._began[project] = recent
            time = self._effective_time(job)
            if not any(
                self._effective_time(b) <= time
                and b.job != job.name
                and self._used(b, pools) & pool
                for b in recent
            ):
                yield job.name

    def _used(self, began: StartedJob, known: dict[Request, int]) -> int:
        """Return the endpoints that a job could use which has started."""
        if began.request is None:
            return -1
        key = replace(began.request, job="")
        if key not in known:
            known[key] = self.index.pool(key).members
        return known[key]

    def _oldest_jobs(self) -> dict[tuple[str, int], tuple[Key, Pending]]:
        """Return the oldest waiting job by project and pool, of those that can start at all."""
        oldest: dict[tuple[str, int], tuple[Key, Pending]] = {}
        for lane in self._lanes.values():
            at = lane.first(Precedence.FAIR_SHARE)
            admitted = self.account(lane.project).admits(lane.shape.needed)
            if (
                at < len(lane.keys)
                and admitted
                and lane.pool.total - lane.pool.lost >= lane.shape.pooled
            ):
                group = lane.project, lane.pool.members
                key, known = lane.keys[at], oldest.get(group)
                if known is None or key < known[0]:
                    oldest[group] = key, lane.jobs[at]
        return oldest

    def _set_precedence(
        self, name: str, precedence: Precedence, since: float | None = None
    ) -> None:
        lane, key = self._where[name]
        job = lane.remove(key)
        key = (precedence, self._effective_time(job) if since is None else since, key[2])
        lane.insert(key, job)
        self._where[name] = lane, key

    def _effective_time(self, job: Pending | StartedJob) -> float:
        return job.submitted_at - job.priority * self.policy.aging_s

    def _nothing_fits(self) -> bool:
        if self.policy.preemption is not Preemption.OFF:
            return False
        return all(lane.shape.pooled > lane.pool.idle for lane in self._lanes.values())


def _held(job: Job) -> int:
    """Return the endpoints that a job holds, its spares included."""
    return len(job.endpoints) + len(job.spares)


def decide(
    fabric: Fabric,
    pending: Iterable[Pending],
    running: Iterable[RunningJob] = (),
    projects: Iterable[ProjectShare] = (),
    policy: QueuePolicy | None = None,
    *,
    began: Iterable[StartedJob] = (),
    now: float,
) -> Decisions:
    """Decide for a queue given as values; equal input gives equal decisions.

    Jobs of ``fabric`` that ``running`` does not describe belong to the default project.
    Pending jobs of equal age keep their order.
    """
    queue = Queue(FabricIndex(fabric), policy, projects, running, began)
    for job in pending:
        queue.submit(job)
    return queue.decide(now)
