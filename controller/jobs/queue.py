"""Runs the queue: decides with ``scheduler.queue.decide``, starts jobs, stops preempted ones."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Protocol

from base import clock
from base.pools import Pool
from controller.jobs import decisions
from controller.jobs.refusals import StartRefusals
from controller.jobs.volumes import Explainer
from controller.state.intend import keys
from controller.state.queue import QueueReport
from controller.state.records import JobRecord
from controller.state.scheduling import left_alone, without
from controller.state.state import State
from scheduler.model import Fabric, Placement
from scheduler.queue.model import Decisions, Preempt, QueueHold

SCHEDULE_EVERY_S = 5.0
"""Longest time between two decisions; a change wakes the queue at once, after ``PAUSE_S``."""
PAUSE_S = 0.05
"""Shortest time between two decisions."""
PAUSE_FACTOR = 4.0
"""The pause is at least this many times the last decision's duration: in a burst of submissions one
decision serves many jobs, and the rest of the controller gets most of the time."""

EXPLAIN_BATCH = 500
"""Jobs whose reasons are updated before other tasks get their turn on the event loop."""


class Starter(Protocol):
    """The operations on jobs that a decision needs."""

    async def admit(self, job: JobRecord, placement: Placement) -> str:
        """Allocate a job's endpoints and begin to start it; return why not, or ""."""

    async def requeue(self, name: str, reason: str) -> None:
        """Stop a running job's containers and put it back into the queue."""

    @property
    def refusals(self) -> StartRefusals:
        """The starts that servers refused."""


class QueueKeeper:
    """Starts the waiting jobs that can start, and records why the others wait."""

    def __init__(self, state: State, starter: Starter) -> None:
        self._state = state
        self._starter = starter
        self.rounds = 0
        """Number of decisions on the queue."""
        self._pool = Pool("queue")
        self._took_s = 0.0
        """Duration of the last decision."""

    async def run(self) -> None:
        """Decide after every change, until cancelled."""
        await self._state.reports.wait()
        while True:
            self._state.jobs.wake.clear()
            if not self._state.suspect:
                before = self.rounds
                await self.schedule()
                if self.rounds != before:
                    await asyncio.sleep(max(PAUSE_S, PAUSE_FACTOR * self._took_s))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(SCHEDULE_EVERY_S):
                    await self._state.jobs.wake.wait()

    async def schedule(self) -> None:
        """Decide on all waiting jobs once, and carry out the decision.

        Starts that have become impossible meanwhile (an endpoint was lost) are left to the next
        decision, which the change has triggered already.
        """
        state = self._state
        if not any(job.state == "pending" for job in state.jobs.values()):
            state.jobs.queue = QueueReport()
            return
        now = state.clock()
        fabric = without(state.fabric(ours=True), state.jobs.promised_endpoints())
        jobs = [job for job in state.jobs.values() if not state.changing(keys.job(job.name))]
        self._trim_promises()
        alone = left_alone(jobs, state.site.scheduling.regroup.budget, now)
        scheduling = state.site.scheduling
        began = clock.monotonic()
        # In its own thread: with thousands of endpoints a decision would block the event loop, and
        # a shared thread pool could delay the queue.
        decided, found = await self._pool.run(
            decisions.decide_and_explain,
            fabric,
            jobs,
            tuple(state.projects()),
            scheduling.queue,
            lambda name: name not in alone,
            promises=state.promises.all,
            avoid={
                job.name: avoided
                for job in jobs
                if job.state == "pending" and (avoided := self._starter.refusals.avoided(job))
            },
            held=frozenset(
                job.name for r in state.transactions.running.values() for job in r.tx.jobs
            ),
            now=now,
        )
        self._took_s = clock.monotonic() - began
        self.rounds += 1
        found = replace(found, holds=self._explained(found.holds))
        state.jobs.queue = found
        if await self._carry_out(decided, fabric):
            for preemption in decided.preemptions:
                await self._preempt(preemption)
        await self._explain(found.holds)

    def _trim_promises(self) -> None:
        """Drop the promises to jobs that started or left the queue."""
        if self._state.promises.trim(self._state.jobs):
            self._state.journal.owe(keys.FACTS)

    async def _preempt(self, preemption: Preempt) -> None:
        """Stop jobs for a waiting one, which has precedence from now on."""
        state = self._state
        job = state.jobs.get(preemption.job)
        if job is None or job.state != "pending":
            return  # cancelled while the decision was made
        victims = [state.jobs.get(name) for name in preemption.victims]
        if any(victim is None or victim.state != "running" for victim in victims):
            state.jobs.wake.set()  # one of them ended: fewer victims may suffice
            return
        state.promises.give(job, preemption.promise)
        state.journal.owe(keys.FACTS)  # durable with the first of them that is stopped
        reason = f"stopped to make way for job {job.name}"
        await asyncio.gather(*(self._starter.requeue(name, reason) for name in preemption.victims))

    async def _carry_out(self, decided: Decisions, fabric: Fabric) -> bool:
        """Start the chosen jobs; False when the fabric has changed since the decision."""
        state = self._state
        for start in decided.starts:
            job = state.jobs.get(start.job)
            if job is None or job.state != "pending":
                continue  # cancelled while the decision was made
            if not self._holds(start.placement, fabric):
                state.jobs.wake.set()
                return False
            problem = await self._starter.admit(job, start.placement)
            if problem:
                self._waits(start.job, problem)
                continue
            self._trim_promises()
            if start.backfilled:
                text = "started ahead of earlier jobs without delaying them"
                state.events.add("info", f"job/{start.job}", "Backfilled", text)
        return True

    def _holds(self, placement: Placement, fabric: Fabric) -> bool:
        """Whether the placement's assumptions about the fabric still hold."""
        state = self._state
        moved = (move.endpoint for move in placement.moves)
        touched = {*placement.endpoints, *placement.spares, *moved}
        homes, holders, lost = state.light.homes(), state.jobs.holders(), state.unavailable()
        return not any(e in holders or e in lost or homes[e] != fabric.homes[e] for e in touched)

    def _explained(self, holds: Mapping[str, QueueHold]) -> dict[str, QueueHold]:
        """Name the volumes and servers in the reasons of jobs that wait for them."""
        state = self._state
        explain = Explainer(state.site, state.offers, state.connections.servers())
        return {
            name: explain.hold(hold, job) if (job := state.jobs.get(name)) is not None else hold
            for name, hold in holds.items()
        }

    async def _explain(self, holds: Mapping[str, QueueHold]) -> None:
        state = self._state
        for done, (name, hold) in enumerate(holds.items()):
            if done % EXPLAIN_BATCH == EXPLAIN_BATCH - 1:
                await asyncio.sleep(0)
            self._waits(name, hold.reason)
            job = state.jobs.get(name)
            if job is None:
                continue
            since = {"reserved_at": hold.reserved_at, "could_start_at": hold.could_start_at}
            if (job.reserved_at, job.could_start_at) != tuple(since.values()):
                state.jobs.annotate(name, **since)
                state.journal.owe(keys.job(name))  # its time at the head survives a restart

    def _waits(self, name: str, reason: str) -> None:
        """Record why a job waits, without waking the queue."""
        job = self._state.jobs.get(name)
        if job is not None and job.state == "pending" and job.reason != reason:
            self._state.jobs.annotate(name, reason=reason)
