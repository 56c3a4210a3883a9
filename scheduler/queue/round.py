"""Runs one round of the queue: starts jobs in order, backfills, and explains the waits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush
from typing import Protocol

from scheduler.model import Job, Locality, Placement, Request, Wait
from scheduler.placement.index import FabricIndex
from scheduler.placement.place import place
from scheduler.queue import closer
from scheduler.queue.explain import Reasons
from scheduler.queue.lanes import Account, Key, Lane, Precedence
from scheduler.queue.model import (
    Decisions,
    Hold,
    MakeRoom,
    Pending,
    Preempt,
    Preemption,
    Promise,
    QueuePolicy,
    Running,
    Start,
)
from scheduler.queue.reservation import Head, Reservation, reserve

_STOPS_HELP = frozenset({"busy", "spread", "spares"})
"""Why a job waits that can start if others are stopped."""


class QueueState(Protocol):
    """The part of the queue that a round uses."""

    index: FabricIndex
    policy: QueuePolicy
    running: dict[str, Running]
    reserved_at: dict[str, float]
    could_start_at: dict[str, float]
    promises: dict[str, Promise]

    def account(self, project: str) -> Account:
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


def _within_quota(account: Account, placed: Placement | Wait) -> Placement | Wait:
    """Leave out the spares that a job does not need and its project's quota does not allow."""
    if isinstance(placed, Wait) or not placed.spares or account.project.quota is None:
        return placed
    room = account.project.quota - account.held - len(placed.endpoints)
    return replace(placed, spares=placed.spares[:room])


class Round:
    """One round; ``run`` carries the starts out in the queue."""

    def __init__(self, queue: QueueState, now: float, *, explain: bool) -> None:
        self._queue = queue
        self._now = now
        self._explain = explain
        self._lanes = queue.lanes()
        self._at = dict.fromkeys(self._lanes, 0)
        """Position of the next job of every lane; earlier ones wait."""
        self._depth = queue.policy.backfill_depth
        """Jobs that may still be considered after the first waiting job."""
        self._closed: dict[Lane, Wait | str] = {}
        """Lanes of which no job can start any more, and why."""
        self._head: Head | None = None
        self._reservation: Reservation | None = None
        self._starts: list[Start] = []
        self._rooms: list[MakeRoom] = []
        self._preemptions: list[Preempt] = []

    def run(self) -> Decisions:
        """Go through the queue in order until no other job can start."""
        policy = self._queue.policy
        for lane in self._order():
            head = self._head
            if head is None:
                self._start_next(lane)
                continue
            if self._preemptions or not policy.backfill or self._depth <= 0:
                break
            self._backfill(lane, head)
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

    def _start_next(self, lane: Lane) -> None:
        """Start the next job of a lane, or make it the first waiting job."""
        job = lane.jobs[self._at[lane]]
        account = self._queue.account(lane.project)
        if not account.admits(lane.shape.needed):
            self._closed[lane] = "quota"
            return
        wait_s = self._switch_wait_s(job)
        since = self._queue.could_start_at.get(job.name, self._now)
        placed = self._fit(job, account, may_scatter=self._now >= since + wait_s)
        if isinstance(placed, Wait):
            self._closed[lane] = placed
            self._set_head(job, placed, wait_s)
        else:
            self._queue.start(job, placed, self._now)
            self._starts.append(Start(job.name, placed))

    def _backfill(self, lane: Lane, head: Head) -> None:
        """Start the next job of a lane that may pass the first waiting job."""
        queue, count, now = self._queue, lane.shape.pooled, self._now
        if not queue.account(lane.project).admits(lane.shape.needed):
            self._closed[lane] = "quota"
            return
        if lane.pool.idle < count:
            self._depth -= 1
            self._closed[lane] = "busy"
            return
        reservation = self._reserve(head)
        if reservation.closed and reservation.pool is lane.pool:
            self._closed[lane] = "behind"
            return
        jobs, at = lane.jobs, self._at[lane]
        # The cheap check first: most jobs of a long queue run too long to pass.
        while at < len(jobs) and self._depth > 0:
            self._depth -= 1
            run_time = jobs[at].run_time_s
            end = None if run_time is None else now + run_time
            if reservation.may_admit(lane.pool, count, end):
                self._at[lane] = at
                self._try_backfill(lane, jobs[at], end, reservation)
                return
            at += 1
        self._at[lane] = at

    def _try_backfill(
        self, lane: Lane, job: Pending, end: float | None, reservation: Reservation
    ) -> None:
        queue = self._queue
        may_scatter = closer.longest_wait_s(queue.index, queue.policy, job) == 0
        placed = self._fit(job, queue.account(lane.project), may_scatter=may_scatter)
        if isinstance(placed, Wait):
            self._closed[lane] = placed
            return
        chosen = [queue.index.number[name] for name in (*placed.endpoints, *placed.spares)]
        if reservation.admits(queue.index, chosen, end):
            queue.start(job, placed, self._now)
            self._starts.append(Start(job.name, placed, backfilled=True))
        else:
            self._at[lane] += 1

    def _fit(self, job: Pending, account: Account, *, may_scatter: bool) -> Placement | Wait:
        """Place a job; unless it ``may_scatter``, only where it cannot come closer elsewhere."""
        index, request = self._queue.index, job.request
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

    def _set_head(self, job: Pending, wait: Wait, switch_wait_s: float) -> None:
        """Make a job the first waiting job, unless it would not fit even if all others ended."""
        queue, policy = self._queue, self._queue.policy
        pool = queue.index.pool(job.request)
        if wait.code == "never_spread" or pool.total - pool.lost < job.request.pooled:
            return
        since = queue.reserved_at.setdefault(job.name, self._now)
        waited = self._now - since
        if waited >= policy.patience_s and isinstance(queue.at_best(job.request), Wait):
            return
        if wait.code == closer.CODE:
            queue.could_start_at.setdefault(job.name, self._now)
        could = queue.could_start_at.get(job.name)
        self._head = Head(job, wait, since, self._promised(job), switch_wait_s, could)
        moves = wait.moves_needed
        if wait.code == "locality" and moves is not None and 0 < moves <= policy.make_room_moves:
            self._rooms.append(MakeRoom(job.name, moves))
        elif policy.preemption is Preemption.PRIORITY and wait.code in _STOPS_HELP:
            self._preempt(job, queue.promises.get(job.name))

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
        gains: list[tuple[Running, int]] = []
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
        if self._reservation is None:
            queue = self._queue
            closed = head.promised or self._now - head.reserved_at >= queue.policy.patience_s
            # These two do not depend on the end of another job: a regroup that makes room starts
            # now, and a job that only waits for closer endpoints starts at the end of its wait.
            start = self._now if self._rooms else None
            if head.wait.code == closer.CODE:
                start = head.latest_start(self._now)
            ends = queue.ends() if start is None else ()
            self._reservation = reserve(
                queue.index, head.job.request, ends, self._now, closed=closed, start=start
            )
        return self._reservation

    def _holds(self) -> tuple[Hold, ...]:
        head = self._head
        reservation = None if head is None else self._reserve(head)
        reasons = Reasons(self._queue.policy, self._now, head, reservation, self._queue.account)
        waiting = [
            (lane.keys[i], reasons.hold_for(lane, job, self._closed_why(lane), passed=i < at))
            for lane, at in self._at.items()
            for i, job in enumerate(lane.jobs)
        ]
        return tuple(hold for _, hold in sorted(waiting, key=lambda pair: pair[0]))

    def _closed_why(self, lane: Lane) -> Wait | str | None:
        """Return why a lane is closed; finds the reason for lanes with too few idle endpoints."""
        closed = self._closed.get(lane)
        if closed != "busy":
            return closed
        placed = fit(self._queue.index, lane.shape)
        return placed if isinstance(placed, Wait) else "behind"
