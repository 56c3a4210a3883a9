"""A fake of a scheduler beside lightloom, whose jobs do what a test says.

It holds the contract of :mod:`controller.devices.observed`, so that what stands on the contract can
be tried without Slurm.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from itertools import count

from controller.devices.observed import (
    End,
    EngineJob,
    JobChanges,
    JobNeeds,
    ObservedError,
    Published,
    Reach,
    ReadBack,
    SetupCheck,
    Turn,
    Verdict,
)


class FakeEngine:
    """An observed engine in memory. ``now`` is its clock, in seconds since 1970."""

    def __init__(self, endpoints: Sequence[str], kind: str = "slurm") -> None:
        self._kind = kind
        self._endpoints = frozenset(endpoints)
        self._numbers = count(1)
        self._news = asyncio.Condition()
        self.jobs: dict[str, EngineJob] = {}
        """By key, in the order of the queue."""
        self.now = 1_800_000_000.0
        self.up = True
        self.gaps = 0
        """How often it has come back."""
        self.forbidden = False
        """Whether answers and topologies are refused."""
        self.answers: dict[str, tuple[Verdict, str]] = {}
        self.published: Published | None = None
        self.unknown: tuple[str, ...] = ()
        """Nodes of the site file that it does not know."""
        self.restarts_to_publish = False
        self.writes = 0
        """Topologies that were written; one that it has already is not."""
        self.closed = False

    # What a test does.

    async def submit(self, wants: JobNeeds, *, name: str = "job", user: str = "alice") -> str:
        """Put a job into the queue; return its key."""
        key = f"{self._kind}:{next(self._numbers)}"
        waits = EngineJob(
            key=key,
            attempt=0,
            revision="",
            turn=Turn.WAITS,
            wants=wants,
            name=name,
            user=user,
            reason="Resources",
            submitted_at=self.now,
        )
        await self.set(waits)
        return key

    async def block(self, key: str, reason: str, *, curable: bool) -> None:
        """Say why a job waits."""
        await self.set(replace(self.jobs[key], reason=reason, curable=curable))

    async def allocate(self, key: str, endpoints: Sequence[str]) -> None:
        """Give a job its endpoints."""
        await self.set(
            replace(
                self.jobs[key],
                turn=Turn.ALLOCATED,
                endpoints=tuple(endpoints),
                scope=key,
                reason="",
                curable=False,
                started_at=self.now,
            )
        )

    async def run(self, key: str) -> None:
        """Start an allocated job."""
        await self.set(replace(self.jobs[key], turn=Turn.RUNNING))

    async def suspend(self, key: str, suspended: bool = True) -> None:
        """Suspend a job, or resume it."""
        await self.set(replace(self.jobs[key], suspended=suspended))

    async def end(self, key: str, end: End = "completed", exit_code: int | None = 0) -> None:
        """End a job."""
        job = self.jobs[key]
        await self.set(
            replace(
                job,
                turn=Turn.ENDED,
                end=end,
                exit_code=exit_code,
                ended_at=self.now,
                scope="",
                ending=False,
            )
        )

    async def requeue(self, key: str) -> None:
        """Put a job back into the queue."""
        job = self.jobs[key]
        await self.set(
            replace(
                job,
                turn=Turn.WAITS,
                attempt=job.attempt + 1,
                endpoints=(),
                scope="",
                started_at=None,
                suspended=False,
            )
        )

    async def forget(self, key: str) -> None:
        """Remove a job, as an engine does some time after the end."""
        async with self._news:
            del self.jobs[key]
            self._news.notify_all()

    async def go_away(self) -> None:
        """Answer nothing from now on."""
        async with self._news:
            self.up = False
            self._news.notify_all()

    async def come_back(self) -> None:
        """Answer again."""
        async with self._news:
            self.up = True
            self.gaps += 1
            self._news.notify_all()

    async def set(self, seen: EngineJob) -> None:
        """Make a job what it is said to be; its revision and position follow."""
        async with self._news:
            words = (seen.attempt, seen.turn, *seen.endpoints, *seen.strangers)
            self.jobs[seen.key] = replace(seen, revision=".".join(map(str, words)))
            waiting = [key for key, job in self.jobs.items() if job.turn is Turn.WAITS]
            for ahead, key in enumerate(waiting):
                self.jobs[key] = replace(self.jobs[key], ahead=ahead)
            self._news.notify_all()

    async def begin_to_end(self, key: str) -> None:
        """End a job's processes; they are not gone yet."""
        await self.set(replace(self.jobs[key], ending=True))

    # The contract.

    @property
    def kind(self) -> str:
        return self._kind

    @property
    def endpoints(self) -> frozenset[str]:
        return self._endpoints

    async def ends_jobs(self) -> bool:
        self._answering()
        return any(job.ending for job in self.jobs.values())

    async def changes(self) -> AsyncIterator[JobChanges]:
        told: dict[str, EngineJob] | None = None
        gaps = self.gaps
        while True:
            async with self._news:
                while not self.up or (told, gaps) == (self.jobs, self.gaps):
                    await self._news.wait()
                whole = told is None or gaps != self.gaps
                gaps = self.gaps
                before = {} if told is None or whole else told
                told = dict(self.jobs)
                batch = JobChanges(_news(before, told, self.now), complete=whole)
            yield batch

    async def read_job(self, key: str) -> EngineJob | None:
        self._answering()
        return self.jobs.get(key)

    async def still(self, key: str, revision: str) -> bool:
        seen = await self.read_job(key)
        return seen is not None and seen.revision == revision

    async def answer(self, key: str, verdict: Verdict, text: str) -> None:
        self._answering()
        self._allowed()
        if key in self.jobs:
            self.answers[key] = verdict, text

    async def publish(self, topology: Published) -> ReadBack:
        self._answering()
        self._allowed()
        if self.published != topology:
            self.published = topology
            self.writes += 1
        return ReadBack(topology.epoch, unknown=self.unknown)

    def reach(self) -> Reach:
        missing = ("topology: not allowed",) if self.forbidden else ()
        detail = "" if self.up else "it is away"
        return Reach(self.up, self.now, detail, "1.0", "fake", missing)

    async def check(self) -> tuple[SetupCheck, ...]:
        if not self.up:
            return (SetupCheck("version", "fault", "it is away", "start it"),)
        return (SetupCheck("version", "ok", "1.0"),)

    async def close(self) -> None:
        self.closed = True

    def _answering(self) -> None:
        if not self.up:
            raise ObservedError("unavailable", self._kind, "it is away")

    def _allowed(self) -> None:
        if self.forbidden:
            raise ObservedError("forbidden", self._kind, "not allowed")


def _news(
    before: dict[str, EngineJob], now: dict[str, EngineJob], at: float
) -> tuple[EngineJob, ...]:
    """Return what changed; a job that is forgotten before its end was told has ended."""
    changed = [seen for key, seen in now.items() if before.get(key) != seen]
    lost = [
        replace(seen, turn=Turn.ENDED, revision=f"{seen.revision}.lost", scope="", ended_at=at)
        for key, seen in before.items()
        if key not in now and seen.turn is not Turn.ENDED
    ]
    return (*changed, *lost)
