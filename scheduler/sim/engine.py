"""Replays one trace under one policy, event by event.

Events are submissions and ends. Between two events every job progresses at 1 / slowdown;
a change of slowdown moves its expected end, and a version number marks the old one as stale.
The queue is first come, first served for every policy, so that only placement differs.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Protocol

from scheduler.metrics import stranded
from scheduler.model import Job, Site
from scheduler.sim.cluster import (
    Cluster,
    Live,
    ReplayRegroup,
    ReplaySettings,
    ReplayStart,
    empty_cluster,
)
from scheduler.sim.report import Ended, Report, Totals, report
from scheduler.sim.slowdown import Slowdown
from scheduler.sim.trace import Trace, TraceError, TraceJob

_STRANDED_FOR = 8
"""Job size of the stranded share in the fragmentation curve."""


class ReplayPolicy(Protocol):
    """Decides on starts and regroups; never changes the cluster."""

    name: str

    def start(self, cluster: Cluster, job: TraceJob) -> ReplayStart | None:
        """Return the start of the job at the head of the queue, None to keep it waiting."""
        ...

    def ended(self, cluster: Cluster, live: Live) -> None:
        """Record the end of a job; its endpoints are already idle."""
        ...

    def improve(self, cluster: Cluster) -> Iterable[ReplayRegroup]:
        """Yield regroups of running jobs; each is carried out before the next is computed."""
        ...


@dataclass(slots=True, frozen=True)
class CurvePoint:
    """One point of the fragmentation curve."""

    at_s: float
    excess_span: int
    stranded: float
    """Share of idle endpoints that no job of 8 can use under one aggregator."""
    waiting: int


@dataclass(slots=True, frozen=True)
class Replay:
    """The result of a replay: figures, every job's end, and the fragmentation curve."""

    report: Report
    ended: tuple[Ended, ...]
    curve: tuple[CurvePoint, ...]
    totals: Totals


def replay(
    trace: Trace,
    site: Site,
    policy: ReplayPolicy,
    slowdown: Slowdown,
    settings: ReplaySettings | None = None,
    *,
    clock: Callable[[], float] | None = None,
    watch: Callable[[Cluster], None] | None = None,
) -> Replay:
    """Replay a trace to the end of its last job.

    ``clock`` returns monotonic seconds and fills ``replay_s``; ``watch`` is called after
    every event. Raises TraceError for a job that is larger than the site.
    """
    started = clock() if clock is not None else 0.0
    run = _Run(trace, site, policy, slowdown, settings or ReplaySettings())
    run.run(watch)
    spent = clock() - started if clock is not None else 0.0
    endpoints = run.pool.total
    figures = report(trace.name, policy.name, endpoints, run.done, run.totals, replay_s=spent)
    return Replay(figures, tuple(run.done), tuple(run.curve), run.totals)


class _Run:
    def __init__(
        self,
        trace: Trace,
        site: Site,
        policy: ReplayPolicy,
        slowdown: Slowdown,
        settings: ReplaySettings,
    ) -> None:
        self.cluster = empty_cluster(site, settings, slowdown)
        self.pool = self.cluster.pool
        self.trace = trace
        self.policy = policy
        self.totals = Totals()
        self.done: list[Ended] = []
        self.curve: list[CurvePoint] = []
        self._queue: deque[TraceJob] = deque()
        self._ends: list[tuple[float, int, str]] = []
        self._excess = 0
        """Sum of the running jobs' excess spans."""
        self._sample_every = trace.jobs[-1].submit_s / settings.samples
        self._sample_next = 0.0
        for job in trace.jobs:
            if job.gpus > self.pool.lit:
                raise TraceError(
                    trace.name,
                    job.line,
                    f"job {job.name} asks for {job.gpus} endpoints, the site has {self.pool.lit}",
                    "use a larger site, or leave such jobs out with --max-gpus",
                )

    def run(self, watch: Callable[[Cluster], None] | None) -> None:
        """Process events until none is left."""
        jobs, ends, cluster = self.trace.jobs, self._ends, self.cluster
        next_job, count = 0, len(jobs)
        while next_job < count or ends:
            now = jobs[next_job].submit_s if next_job < count else ends[0][0]
            if ends and ends[0][0] < now:
                now = ends[0][0]
            self._advance(now)
            freed = False
            while ends and ends[0][0] <= now:
                freed |= self._end(heapq.heappop(ends))
            arrived = not self._queue
            while next_job < count and jobs[next_job].submit_s <= now:
                self._queue.append(jobs[next_job])
                next_job += 1
            if self._queue and (freed or arrived):
                self._dispatch()
            if cluster.scattered:
                for regroup in self.policy.improve(cluster):
                    self._regroup(regroup)
            if watch is not None:
                watch(cluster)
        if self._queue:
            head = self._queue[0]
            raise TraceError(
                self.trace.name,
                head.line,
                f"policy {self.policy.name} never starts job {head.name} ({head.gpus} endpoints)",
                "leave such jobs out with --max-gpus",
            )

    def _advance(self, now: float) -> None:
        cluster = self.cluster
        self.totals.excess_seconds += self._excess * (now - cluster.now)
        cluster.now = now
        if now >= self._sample_next:
            names = (a.name for a in cluster.index.site.aggregators)
            free = dict(zip(names, self.pool.by_free.counts, strict=True))
            self.curve.append(
                CurvePoint(
                    now,
                    self._excess,
                    stranded(free, _STRANDED_FOR),
                    len(self._queue),
                )
            )
            self._sample_next = now + self._sample_every

    def _dispatch(self) -> None:
        queue, cluster = self._queue, self.cluster
        while queue:
            decision = self.policy.start(cluster, queue[0])
            if decision is None:
                return
            self._start(queue.popleft(), decision)

    def _start(self, job: TraceJob, decision: ReplayStart) -> None:
        cluster, now = self.cluster, self.cluster.now
        if decision.restarts:
            self._restart(decision)
        cluster.index.start(Job(job.name, decision.endpoints), decision.moves)
        cluster.changes += 1
        live = Live(
            job=job,
            endpoints=decision.endpoints,
            started=now,
            left=job.duration_s,
            since=now,
            resume_at=now,
            run_from=now,
        )
        cluster.live[job.name] = live
        if job.gpus > 1:
            self._update_place(live)
        self._schedule_end(live)

    def _end(self, event: tuple[float, int, str]) -> bool:
        _, version, name = event
        cluster = self.cluster
        live = cluster.live.get(name)
        if live is None or live.version != version:
            return False
        self._book(live)
        del cluster.live[name]
        cluster.index.finish(name)
        cluster.changes += 1
        job = live.job
        self.totals.job_seconds += cluster.now - live.started
        self.totals.pauses += live.pauses
        self.done.append(
            Ended(name, job.gpus, job.duration_s, job.submit_s, live.started, cluster.now)
        )
        if job.gpus > 1:
            self._excess -= live.excess
            cluster.scattered.pop(name, None)
            self._apply_slowdowns(cluster.slowdown.gone(job))
        self.policy.ended(cluster, live)
        return True

    def _book(self, live: Live) -> None:
        """Book the work since the last booking at the present slowdown."""
        now, totals, gpus = self.cluster.now, self.totals, live.job.gpus
        passed = now - live.since
        if passed <= 0:
            return
        active = now - max(live.since, live.resume_at)
        work = max(active, 0.0) / live.slowdown
        live.left -= work
        live.since = now
        totals.busy += gpus * passed
        totals.work += gpus * work
        if gpus > 1:
            totals.multi += gpus * passed
            if live.excess == 0:
                totals.multi_local += gpus * passed

    def _schedule_end(self, live: Live) -> None:
        """Schedule the expected end of a job; its work must be booked."""
        live.version += 1
        begin = max(live.since, live.resume_at)
        end = begin + max(live.left, 0.0) * live.slowdown
        heapq.heappush(self._ends, (end, live.version, live.job.name))

    def _update_place(self, live: Live) -> None:
        """Update excess span and slowdowns after a change of place of a multi-endpoint job."""
        cluster, job = self.cluster, live.job
        self._book(live)
        self._excess -= live.excess
        places = cluster.places(live.endpoints)
        live.excess = cluster.excess_at(places)
        self._excess += live.excess
        if cluster.index.excess(job.name) > 0:
            cluster.scattered[job.name] = None
        else:
            cluster.scattered.pop(job.name, None)
        changed = cluster.slowdown.moved(job, places, live.excess)
        self._apply_slowdowns(changed)

    def _apply_slowdowns(self, changed: Mapping[str, float]) -> None:
        for name, slowdown in changed.items():
            live = self.cluster.live.get(name)
            if live is not None and live.slowdown != slowdown:
                self._book(live)
                live.slowdown = slowdown
                self._schedule_end(live)

    def _regroup(self, regroup: ReplayRegroup) -> None:
        cluster, settings = self.cluster, self.cluster.settings
        index, now = cluster.index, cluster.now
        touched: dict[str, int] = {}
        for move in regroup.moves:
            owner = index.owner[index.number[move.endpoint]]
            if owner is not None:
                touched[owner] = touched.get(owner, 0) + 1
        starting = {name for name in touched if cluster.just_started(name)}
        index.rehome(regroup.moves)
        cluster.changes += 1
        running = {name: n for name, n in touched.items() if name not in starting}
        self.totals.regroups += bool(running)
        self.totals.running_moves += sum(running.values())
        for name in touched:
            live = cluster.live[name]
            self._book(live)
            if name in running:
                live.resume_at = max(live.resume_at, now) + settings.pause_s
                live.pauses += 1
                live.left_alone_until = now + settings.cooldown_s
            if live.job.gpus > 1:
                self._update_place(live)
            self._schedule_end(live)

    def _restart(self, decision: ReplayStart) -> None:
        """Evict jobs and restart them elsewhere; they lose the work since their last checkpoint."""
        cluster, settings = self.cluster, self.cluster.settings
        index, now = cluster.index, cluster.now
        jobs = [index.finish(restart.job) for restart in decision.restarts]
        for job, restart in zip(jobs, decision.restarts, strict=True):
            live = cluster.live[job.name]
            self._book(live)
            if not cluster.just_started(job.name):
                ran = max(now - max(live.run_from, live.resume_at), 0.0)
                again = min(ran % settings.checkpoint_s / live.slowdown, ran / live.slowdown)
                again = min(again, live.job.duration_s - live.left)
                live.left += again
                self.totals.work -= live.job.gpus * again
                live.resume_at = live.run_from = now + settings.restart_s
                live.pauses += 1
                live.left_alone_until = now + settings.cooldown_s
                self.totals.running_moves += len(restart.endpoints)
            live.endpoints = restart.endpoints
            index.start(Job(job.name, restart.endpoints))
            if live.job.gpus > 1:
                self._update_place(live)
            self._schedule_end(live)
        self.totals.regroups += 1
