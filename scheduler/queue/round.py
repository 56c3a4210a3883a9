"""Runs one round of the queue: starts jobs in order, backfills, and explains the waits."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Protocol

from scheduler.model import Job, Locality, Placement, Request, Wait
from scheduler.placement.index import FabricIndex
from scheduler.placement.place import place
from scheduler.placement.pool import bit_set
from scheduler.queue import closer
from scheduler.queue.explain import Reasons, reserved_for
from scheduler.queue.lanes import Key, Lane, Precedence, ProjectUsage, as_running
from scheduler.queue.model import (
    Decisions,
    MakeRoom,
    Pending,
    Preempt,
    Preemption,
    Promise,
    QueueHold,
    QueuePolicy,
    RunningJob,
    Start,
)
from scheduler.queue.reservation import Head, Reservation, reserve

_STOPS_HELP = frozenset({"busy", "spread", "spares"})
"""Why a job waits that can start if others are stopped."""
_OVER_QUOTA = Wait("", "quota", "its project holds too much of its quota")


class QueueState(Protocol):
    """The part of the queue that a round uses."""

    index: FabricIndex
    policy: QueuePolicy
    running: dict[str, RunningJob]
    reserved_at: dict[str, float]
    could_start_at: dict[str, float]
    promises: dict[str, Promise]

    def account(self, project: str) -> ProjectUsage:
        """Return the account of a project."""

    def lanes(self) -> Sequence[Lane]:
        """Return the lanes that have jobs."""

    def ends(self) -> Sequence[tuple[float, str]]:
        """Return (expected end, running job) in order of time."""

    def at_best(self, request: Request) -> Placement | Wait:
        """Return the placement of a request if all running jobs ended."""

    def start(self, job: Pending, placement: Placement, now: float) -> None:
        """Start a pending job on its endpoints."""


def fit(index: FabricIndex, request: Request) -> Placement | Wait:
    """Place a request; moves idle endpoints if that alone makes it fit."""
    placed = place(index, request)
    if isinstance(placed, Placement):
        return placed
    dark = placed.code == "unavailable" and index.pool(request).idle >= request.count
    lights = dark or placed.code == "spread"
    if placed.moves_needed == 0 or (lights and request.locality is not Locality.REGROUP):
        reached = place(index, replace(request, locality=Locality.REGROUP))
        if isinstance(reached, Placement):
            return reached
    return placed


def _within_quota(account: ProjectUsage, placed: Placement | Wait) -> Placement | Wait:
    """Leave out the spares that a job does not need and its project's quota does not allow."""
    if isinstance(placed, Wait) or not placed.spares or account.project.quota is None:
        return placed
    room = account.room(account.project.quota) - len(placed.endpoints)
    return replace(placed, spares=placed.spares[:room])


def _chosen(index: FabricIndex, placed: Placement) -> list[int]:
    """Return the endpoints that a placement uses."""
    return [index.number[name] for name in (*placed.endpoints, *placed.spares)]


def _union(heads: Iterable[Head]) -> int:
    """Return the endpoints that first waiting jobs can use."""
    found = 0
    for head in heads:
        found |= head.pool.members
    return found


class Round:
    """One round; ``run`` carries the starts out in the queue.

    The first job of every pool that cannot start leads it: it has a reservation, and jobs behind
    it that can use endpoints of its pool start only as that allows.
    """

    def __init__(self, queue: QueueState, now: float, *, explain: bool) -> None:
        self._queue = queue
        self._now = now
        self._explain = explain
        self._lanes = queue.lanes()
        self._at = dict.fromkeys(self._lanes, 0)
        """Position of the next job of every lane; earlier ones wait."""
        self._depth = queue.policy.backfill_depth
        """Jobs that may still be considered behind a first waiting job."""
        self._closed: dict[Lane, Wait | str] = {}
        """Lanes of which no job can start any more, and why."""
        self._passed_by: dict[Lane, Head] = {}
        """The first waiting job that keeps a lane's jobs from starting."""
        self._heads: list[Head] = []
        """First waiting jobs in the order of the queue, each of another pool."""
        self._by_quota: dict[str, str] = {}
        """The first job that waits for its project's quota, by project."""
        self._reservations: dict[str, Reservation] = {}
        """By first waiting job."""
        self._beside: tuple[int, FabricIndex] | None = None
        """A set of endpoints and the fabric without them."""
        self._starts: list[Start] = []
        self._rooms: list[MakeRoom] = []
        self._preemptions: list[Preempt] = []

    def run(self) -> Decisions:
        """Go through the queue in order until no other job can start."""
        for lane in self._order():
            if self._preemptions:
                break
            self._consider(lane)
        self._keep_leads()
        return Decisions(
            tuple(self._starts),
            tuple(self._rooms),
            tuple(self._preemptions),
            self._holds() if self._explain else (),
        )

    def _order(self) -> Iterator[Lane]:
        """Yield the lane of the next job; the projects alternate only in the fair-share class."""
        last = Precedence.OVERDUE if self._queue.policy.fair_share else Precedence.FAIR_SHARE
        heap = [(lane.keys[0], lane) for lane in self._lanes if lane.keys[0][0] <= last]
        heapify(heap)
        while heap:
            lane = heappop(heap)[1]
            yield lane
            key = self._next(lane)
            if key is not None and key[0] <= last:
                heappush(heap, (key, lane))
        projects: dict[str, list[tuple[Key, Lane]]] = {}
        for lane in self._lanes:
            key = self._next(lane)
            if key is not None:
                projects.setdefault(lane.project, []).append((key, lane))
        turns = []
        for project, lanes in projects.items():
            heapify(lanes)
            turns.append(self._project_order(project, lanes[0][1]))
        heapify(turns)
        while turns:
            project = heappop(turns)[-1]
            lanes = projects[project]
            lane = heappop(lanes)[1]
            yield lane
            key = self._next(lane)
            if key is not None:
                heappush(lanes, (key, lane))
            if lanes:
                heappush(turns, self._project_order(project, lanes[0][1]))

    def _project_order(self, project: str, lane: Lane) -> tuple[float, float, int, str]:
        """Return the sort key of a project: its share, then when its next job was submitted.

        Priority does not count: with it, a project could pass others by raising its own jobs.
        """
        at = self._at[lane]
        return (
            self._queue.account(project).share,
            lane.jobs[at].submitted_at,
            lane.keys[at][2],
            project,
        )

    def _next(self, lane: Lane) -> Key | None:
        at = self._at[lane]
        return lane.keys[at] if at < len(lane.keys) and lane not in self._closed else None

    def _consider(self, lane: Lane) -> None:
        """Start the next job of a lane, or make it the first waiting job of its pool."""
        account = self._queue.account(lane.project)
        if not account.admits(lane.shape.needed):
            self._closed[lane] = "quota"
            self._lead_quota(lane, account)
            return
        ahead = tuple(head for head in self._heads if head.reach & lane.reach)
        if any(lane.pool.members == head.pool.members for head in ahead):
            self._backfill(lane, ahead)
        else:
            self._start_next(lane, account, ahead)

    def _start_next(self, lane: Lane, account: ProjectUsage, ahead: tuple[Head, ...]) -> None:
        """Start the first job of a pool, or make it lead the pool."""
        job = lane.jobs[self._at[lane]]
        wait_s = self._switch_wait_s(job)
        since = self._queue.could_start_at.get(job.name, self._now)
        may_scatter = self._now >= since + wait_s
        placed = self._fit(self._queue.index, job, account, may_scatter=may_scatter)
        if isinstance(placed, Wait):
            self._closed[lane] = placed
            self._lead(lane, job, placed, ahead, wait_s)
            return
        admitted, by = self._admitted(job, placed, ahead)
        if by is not None and self._queue.policy.backfill:
            # It needs none of the endpoints that those ahead can use, if there are others.
            trial = self._without(lane, ahead)
            other = (
                None if trial is None else self._fit(trial, job, account, may_scatter=may_scatter)
            )
            if trial is not None and isinstance(other, Placement):
                other, refused_by = self._admitted(job, other, ahead)
                if refused_by is None:
                    self._start(job, other, ahead)
                    trial.start(as_running(job, other), other.moves)
                    self._beside = _union(ahead), trial
                    return
        if by is None:
            self._start(job, admitted, ahead)
            return
        self._passed_by[lane] = by
        self._at[lane] += 1
        wait = Wait(job.name, "reserved", reserved_for(by))
        self._lead(lane, job, wait, ahead, 0.0)

    def _backfill(self, lane: Lane, ahead: tuple[Head, ...]) -> None:
        """Start the next job of a lane that may pass the first waiting jobs of its endpoints."""
        queue, count = self._queue, lane.shape.pooled
        self._passed_by.setdefault(lane, ahead[-1])
        if not queue.policy.backfill or self._depth <= 0:
            self._closed[lane] = "not_reached"
            return
        if lane.pool.idle < count:
            self._depth -= 1
            self._closed[lane] = "busy"
            return
        for head in ahead:
            if head.closed and head.covers(lane.pool):
                self._closed[lane], self._passed_by[lane] = "behind", head
                return
        reservations = [(head, self._reserve(head)) for head in ahead if head.covers(lane.pool)]
        jobs, at = lane.jobs, self._at[lane]
        # The cheap check first: most jobs of a long queue run too long to pass.
        while at < len(jobs) and self._depth > 0:
            self._depth -= 1
            end = self._end(jobs[at])
            by = next((h for h, r in reservations if not r.may_admit(count, end)), None)
            if by is None:
                self._at[lane] = at
                self._try_backfill(lane, jobs[at], ahead)
                return
            self._passed_by[lane] = by
            at += 1
        self._at[lane] = at

    def _try_backfill(self, lane: Lane, job: Pending, ahead: tuple[Head, ...]) -> None:
        queue = self._queue
        may_scatter = closer.longest_wait_s(queue.index, queue.policy, job) == 0
        account = queue.account(lane.project)
        placed = self._fit(queue.index, job, account, may_scatter=may_scatter)
        if isinstance(placed, Wait):
            self._closed[lane] = placed
            return
        admitted, by = self._admitted(job, placed, ahead)
        if by is not None:
            self._passed_by[lane] = by
            self._at[lane] += 1
        else:
            self._start(job, admitted, ahead)

    def _admitted(
        self, job: Pending, placed: Placement, ahead: tuple[Head, ...]
    ) -> tuple[Placement, Head | None]:
        """Return a placement that delays no first waiting job, or the one that it would delay.

        A job goes without spares that it does not need rather than wait for them.
        """
        by = self._refused_by(job, placed, ahead)
        if by is None or not placed.spares or job.request.spares_needed:
            return placed, by
        alone = replace(placed, spares=())
        return alone, self._refused_by(job, alone, ahead)

    def _refused_by(self, job: Pending, placed: Placement, ahead: tuple[Head, ...]) -> Head | None:
        """Return the first waiting job that a start would delay, None if it delays none."""
        index, end = self._queue.index, self._end(job)
        chosen, passing = _chosen(index, placed), self._queue.policy.backfill
        for head in ahead:
            if not passing or not self._reserve(head).admits(index, chosen, end):
                return head
        return None

    def _start(self, job: Pending, placed: Placement, ahead: tuple[Head, ...]) -> None:
        queue, end = self._queue, self._end(job)
        chosen = _chosen(queue.index, placed)
        for head in ahead:
            self._reserve(head).subtract(queue.index, chosen, end)
        queue.start(job, placed, self._now)
        self._beside = None
        self._starts.append(Start(job.name, placed, backfilled=bool(ahead)))

    def _end(self, job: Pending) -> float | None:
        return None if job.run_time_s is None else self._now + job.run_time_s

    def _without(self, lane: Lane, ahead: tuple[Head, ...]) -> FabricIndex | None:
        """Return the fabric without the endpoints that first waiting jobs can use.

        None if too few endpoints of the lane are left.
        """
        taken, index = _union(ahead), self._queue.index
        left = lane.pool.members & ~taken
        if left.bit_count() < lane.shape.pooled:
            return None
        if self._beside is None or self._beside[0] != taken:
            without = FabricIndex(index.snapshot())
            without.withhold(n for e, n in enumerate(index.names) if taken >> e & 1)
            self._beside = taken, without
        return self._beside[1]

    def _fit(
        self, index: FabricIndex, job: Pending, account: ProjectUsage, *, may_scatter: bool
    ) -> Placement | Wait:
        """Place a job; unless it ``may_scatter``, only where it cannot come closer elsewhere."""
        request = job.request
        placed = _within_quota(account, fit(index, request))
        if may_scatter or isinstance(placed, Wait):
            return placed
        if closer.may_come_closer(index, request, placed):
            best = self._queue.at_best(request)
            if isinstance(best, Placement) and best.span_possible < placed.span_possible:
                return closer.wait_for_closer(request, placed, best)
        return placed

    def _switch_wait_s(self, job: Pending) -> float:
        """Return for how long the next job waits for closer endpoints.

        A job for which others were stopped does not wait: their endpoints would idle.
        """
        queue = self._queue
        if self._promised(job):
            return 0.0
        return closer.longest_wait_s(queue.index, queue.policy, job)

    def _promised(self, job: Pending) -> bool:
        promise = self._queue.promises.get(job.name)
        return promise is not None and promise.holds(self._now)

    def _may_lead(self, lane: Lane, job: Pending, wait: Wait) -> bool:
        """Make a job lead from now on, unless it would not fit even if all others ended."""
        queue, pool = self._queue, lane.pool
        if wait.code == "never_spread" or pool.total - pool.lost < job.request.pooled:
            return False
        since = queue.reserved_at.setdefault(job.name, self._now)
        if self._now - since < queue.policy.patience_s:
            return True
        return isinstance(queue.at_best(job.request), Placement)

    def _lead(
        self, lane: Lane, job: Pending, wait: Wait, ahead: tuple[Head, ...], switch_wait_s: float
    ) -> None:
        """Make a job the first waiting job of its pool, unless it can only start after others."""
        queue, policy, pool = self._queue, self._queue.policy, lane.pool
        shut = [head for head in ahead if head.closed]
        if shut:
            index, request = queue.index, job.request
            gone = _union(shut) | bit_set(index.unavailable, index.size)
            kept = sum(min(h.spares, (h.beside & lane.reach & ~gone).bit_count()) for h in shut)
            if (pool.members & ~gone).bit_count() < request.pooled or (
                (lane.reach & ~gone).bit_count() - kept < request.needed
            ):
                self._passed_by[lane] = shut[0]
                return
        if not self._may_lead(lane, job, wait):
            return
        if wait.code == closer.CODE:
            queue.could_start_at.setdefault(job.name, self._now)
        since, promised = queue.reserved_at[job.name], self._promised(job)
        moves = wait.moves_needed
        may_move = moves is not None and 0 < moves <= policy.make_room_moves
        head = Head(
            job,
            wait,
            pool,
            since,
            ahead,
            promised=promised,
            closed=promised or self._now - since >= policy.patience_s,
            makes_room=wait.code == "locality" and may_move and not ahead,
            switch_wait_s=switch_wait_s,
            could_start_at=queue.could_start_at.get(job.name),
            beside=lane.beside if job.request.spares_needed else 0,
        )
        self._heads.append(head)
        if head.closed:
            queue.account(lane.project).kept += job.request.needed
        if head.makes_room and moves is not None:
            self._rooms.append(MakeRoom(job.name, moves))
        elif policy.preemption is Preemption.PRIORITY and wait.code in _STOPS_HELP and not ahead:
            self._preempt(job, queue.promises.get(job.name))

    def _lead_quota(self, lane: Lane, account: ProjectUsage) -> None:
        """Make a job the first that waits for its project's quota, unless one is already.

        Once it has led for the patience, what becomes free of the quota is kept for it.
        """
        job, needed = lane.jobs[self._at[lane]], lane.shape.needed
        quota = account.project.quota
        if quota is None or needed > quota or lane.project in self._by_quota:
            return
        if account.held + needed <= quota or not self._may_lead(lane, job, _OVER_QUOTA):
            return  # it waits for what is kept for another one, or can never start
        self._by_quota[lane.project] = job.name
        if self._now - self._queue.reserved_at[job.name] >= self._queue.policy.patience_s:
            account.kept += needed

    def _keep_leads(self) -> None:
        """Drop the times of jobs that no longer lead: another one leads their pool."""
        reserved_at = self._queue.reserved_at
        leading = {head.job.name for head in self._heads} | set(self._by_quota.values())
        led = {head.pool.members for head in self._heads}
        for lane in self._lanes:
            if lane.pool.members in led:
                for job in lane.jobs:
                    if job.name in reserved_at and job.name not in leading:
                        del reserved_at[job.name]

    def _preempt(self, job: Pending, promise: Promise | None) -> None:
        if promise is None:
            promise = Promise(self._now, frozenset())
        elif not promise.holds(self._now):
            return  # the jobs stopped for it did not help: stop no more
        victims = self._victims(job, promise.stopped)
        if victims:
            stopped = replace(promise, stopped=promise.stopped.union(victims))
            self._preemptions.append(Preempt(job.name, victims, stopped))

    def _victims(self, job: Pending, spared: frozenset[str]) -> tuple[str, ...]:
        """Select the jobs to stop: the lowest priority first, then the latest start.

        Empty unless the job fits once they are stopped.
        """
        queue, index = self._queue, self._queue.index
        request = job.request
        # The spares of a job with named endpoints are any others.
        pool = index.pool(replace(request, endpoints=()) if request.spares else request)
        needed = request.needed
        gains: list[tuple[RunningJob, int]] = []
        for running in queue.running.values():
            if running.preemptible and running.priority < job.priority:
                held = index.jobs[running.job]
                members = pool.of([index.number[n] for n in (*held.endpoints, *held.spares)])
                gain = sum(e not in index.unavailable for e in members)
                if gain and running.job not in spared:
                    gains.append((running, gain))
        if sum(gain for _, gain in gains) + pool.idle < needed:
            return ()
        gains.sort(key=lambda g: (g[0].priority, -g[0].started_at, g[0].job))
        trial = FabricIndex(index.snapshot())
        free, victims = pool.idle, list[Job]()
        for running, gain in gains:
            victims.append(trial.finish(running.job))
            free += gain
            if free >= needed and isinstance(fit(trial, job.request), Placement):
                break
        else:
            return ()
        # Some may not be needed after all: spare those of the highest priority first.
        chosen: list[str] = []
        for victim in reversed(victims):
            idle = tuple(n for n in victim.endpoints if index.number[n] not in index.unavailable)
            spares = tuple(n for n in victim.spares if index.number[n] not in index.unavailable)
            trial.start(replace(victim, endpoints=idle, spares=spares))
            if isinstance(fit(trial, job.request), Wait):
                trial.finish(victim.name)
                chosen.append(victim.name)
        return tuple(reversed(chosen))

    def _reserve(self, head: Head) -> Reservation:
        known = self._reservations.get(head.job.name)
        if known is None:
            queue = self._queue
            # These two do not depend on the end of another job: a regroup that makes room starts
            # now, and a job that only waits for closer endpoints starts at the end of its wait.
            start = self._now if head.makes_room else None
            if head.wait.code == closer.CODE:
                start = head.latest_start(self._now)
            ends = queue.ends() if start is None and head.wait.code != "reserved" else ()
            known = self._reservations[head.job.name] = reserve(
                queue.index, head, ends, self._now, start=start
            )
        return known

    def _holds(self) -> tuple[QueueHold, ...]:
        queue = self._queue
        heads = {head.job.name: (head, self._reserve(head)) for head in self._heads}
        reasons = Reasons(queue.policy, self._now, heads, queue.account)
        stopping = self._heads[-1] if self._preemptions else None
        found: list[tuple[Key, QueueHold]] = []
        for lane, at in self._at.items():
            why, by = self._closed_why(lane), self._passed_by.get(lane, stopping)
            for i, job in enumerate(lane.jobs):
                hold = reasons.hold_for(lane, job, "behind" if i < at else why, by)
                since, could = queue.reserved_at.get(job.name), queue.could_start_at.get(job.name)
                if since is not None or could is not None:
                    hold = replace(hold, reserved_at=since, could_start_at=could)
                found.append((lane.keys[i], hold))
        return tuple(hold for _, hold in sorted(found, key=lambda pair: pair[0]))

    def _closed_why(self, lane: Lane) -> Wait | str | None:
        """Return why a lane is closed; finds the reason for lanes with too few idle endpoints."""
        closed = self._closed.get(lane)
        if closed != "busy":
            return closed
        placed = fit(self._queue.index, lane.shape)
        return placed if isinstance(placed, Wait) else "behind"
