"""Finds out why a run of a job failed: reads the last output of the ranks that failed."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from controller.devices.engine import MISSING, EngineError, ExecutionEngine, RankState, RankStatus
from controller.ranks.calls import placed
from controller.ranks.first_cause import MAX_LINES, evidence, first_cause, last_lines
from controller.state.records import Failure, JobRecord
from controller.state.state import State

READ_S = 5.0
"""For the last output of all ranks that are read; a job's end waits no longer for it."""
MAX_READ = 16
"""Ranks whose output is compared; those that ended first."""


class Diagnosis:
    """Reads what the agents keep of a job that failed. Changes nothing."""

    def __init__(self, state: State, engine: ExecutionEngine) -> None:
        self._state = state
        self._engine = engine

    def before(self, job: JobRecord) -> list[RankStatus]:
        """Return the ranks of the job's run as they are known now, before they are stopped."""
        known = [s for s in self._state.jobs.statuses if s.job == job.name and s.epoch == job.epoch]
        blamed = job.failure
        if blamed is None or blamed.epoch != job.epoch or not known:
            return known
        if blamed.rank in {s.rank for s in known}:
            return known
        server = placed(self._state, job).get(blamed.rank, "")
        gone = RankStatus(
            job.name, blamed.rank, job.epoch, blamed.endpoint, server, RankState.ABSENT
        )
        return [*known, gone]

    async def failure(
        self, job: JobRecord, before: Sequence[RankStatus], stopped: Sequence[RankStatus]
    ) -> Failure | None:
        """Return why the job failed, with the last lines of the rank that failed first.

        ``before`` are its ranks before they were stopped, ``stopped`` how those ended. Without
        them, after a restart of the controller, the cause noted before counts.
        """
        ends, lived = merged(before, stopped)
        blamed = job.failure if job.failure and job.failure.epoch == job.epoch else None
        found = first_cause(ends, stopped=lived) or blamed
        if found is None:
            return None
        graded = [s for s in ends if evidence(s, (), s.rank in lived) is not None]
        graded.sort(key=lambda s: (s.finished_at or 0.0, s.rank))
        ranks = {found.rank, *(s.rank for s in graded[:MAX_READ])}
        read = dict(zip(ranks, await self._read(job, ranks), strict=True))
        output = {rank: lines for rank, (lines, _) in read.items()}
        found = first_cause(ends, output, lived) or found
        lines, unread = read.get(found.rank) or ((), "it was not read")
        return replace(found, lines=lines, unread=unread)

    async def lines(self, job: JobRecord, rank: int) -> tuple[tuple[str, ...], str]:
        """Return the last lines of a rank, or why they cannot be read."""
        return (await self._read(job, {rank}))[0]

    async def _read(self, job: JobRecord, ranks: set[int]) -> list[tuple[tuple[str, ...], str]]:
        return await asyncio.gather(*(self._last(job, rank) for rank in ranks))

    async def _last(self, job: JobRecord, rank: int) -> tuple[tuple[str, ...], str]:
        lines: list[str] = []
        stream = self._engine.logs(
            job.name, rank, MAX_LINES, False, placed(self._state, job), epoch=job.epoch
        )
        try:
            async with asyncio.timeout(READ_S):
                async for line in stream:
                    if line.stream == MISSING:
                        return last_lines(lines), line.text
                    lines.append(line.text)
        except EngineError as error:
            return (), f"the output of rank {rank} cannot be read: {error.faults[0].message}"
        except TimeoutError:
            return last_lines(lines), f"the output of rank {rank} was not there in {READ_S:g} s"
        return last_lines(lines), ""


def merged(
    before: Sequence[RankStatus], stopped: Sequence[RankStatus]
) -> tuple[list[RankStatus], frozenset[int]]:
    """Return how all ranks ended, and which of them lived when the job was stopped.

    A rank that had ended, or was unfit, stays as it was then; the stop reports the others.
    """
    after = {s.rank: s for s in stopped}
    lived = {s.rank for s in before if _lives(s)}
    ends = [after.get(s.rank, s) if s.rank in lived else s for s in before]
    return ends, frozenset(lived)


def _lives(status: RankStatus) -> bool:
    return status.state not in (RankState.EXITED, RankState.ABSENT) and not status.reason
