"""Reads the step lines that jobs print, and joins them with what is recorded of the jobs.

A program that prints a line of JSON with ``event: step`` and ``step_s`` for each step is the best
source of their duration; with ``compute_s`` and ``comm_s`` also of their parts. Lines have a time,
which separates the steps before a move of light from later ones.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from controller.devices.engine import MISSING, ExecutionEngine
from controller.devices.errors import DEVICE_ERRORS
from controller.state.records import JobRecord
from controller.state.state import State
from measure.compare.steps import RunSteps, facts_of_run, steps_of
from measure.kinds import Line
from scheduler.steptime.facts import StepFacts
from scheduler.steptime.identify import LEAST_STEPS

ASK_EVERY_S = 5.0
SELDOM_S = 60.0
"""Time between two questions about a job that has printed no step so far."""
SOON_S = 600.0
"""So long after its start a job is asked often although it has printed no step."""
READ_S = 5.0
"""Longest time of one job's reading."""
MOST_RANKS = 4
"""Ranks of a job that are read: all of them make the same steps."""
KEPT_STEPS = 64
"""Latest steps of a rank that are kept; more are not read at once either."""
KEPT_ENDED = 200
"""Ended jobs whose steps stay."""
_MOST_CHARS = 4096
"""A longer line is not a step's."""
_MOST = 1e18
_NUMBERS = ("step_s", "compute_s", "comm_s", "wait_s")
_EXACT = frozenset({"nccl", "torch"})

Recorded = Callable[[str], StepFacts | None]
Step = Mapping[str, Any]


@dataclass(slots=True)
class _Job:
    epoch: int
    began_at: float
    """Of its present placement; seconds since 1970."""
    steps: dict[int, dict[object, tuple[float, Step]]] = field(default_factory=dict)
    """By rank and number: when the line was printed, and its figures."""
    gradient_bytes: float | None = None
    asked_at: float = 0.0


class PrintedSteps:
    """Belongs to the loop."""

    def __init__(self, state: State, engine: ExecutionEngine, recorded: Recorded) -> None:
        """``recorded`` are a job's facts without what it prints."""
        self._state = state
        self._engine = engine
        self._recorded = recorded
        self._jobs: dict[str, _Job] = {}

    def began(self, job: JobRecord) -> None:
        """Note that a job's placement, or that of a neighbour on its links, is new as of now."""
        known = self._jobs.get(job.name)
        if known is None or known.epoch != job.epoch:
            self._jobs[job.name] = _Job(job.epoch, self._state.clock())
        else:
            known.began_at = self._state.clock()

    def facts(self, name: str) -> StepFacts | None:
        """Return what is known of a job's steps at its present placement.

        What is recorded counts alone for a job that prints no steps. Of one that does, at least
        ten of this placement are needed, but where a recorder sees the calls themselves.
        """
        recorded, known = self._recorded(name), self._jobs.get(name)
        job = self._state.jobs.get(name)
        if job is None or known is None or known.epoch != job.epoch or not known.steps:
            return recorded
        steps = _run_of(known)
        if len(steps.step_s) < LEAST_STEPS:
            return recorded if recorded is not None and recorded.source in _EXACT else None
        found = facts_of_run(len(job.endpoints), [steps], [recorded] if recorded else [])
        return found[0] if found else None

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await self.read()
            await asyncio.sleep(ASK_EVERY_S)

    async def read(self) -> None:
        """Read the new lines of all running jobs once, one job after the other."""
        jobs = self._state.jobs
        self._jobs = {name: known for name, known in self._jobs.items() if name in jobs}
        ended = [name for name in self._jobs if jobs[name].ended]
        for name in ended[:-KEPT_ENDED]:
            del self._jobs[name]
        for job in list(jobs.values()):
            known = self._jobs.get(job.name)
            if job.state == "running" and job.owner.judges and known and known.epoch == job.epoch:
                await self._read(job, known)

    async def _read(self, job: JobRecord, known: _Job) -> None:
        now = self._state.clock()
        often = known.steps or now - (job.started_at or now) < SOON_S
        if not often and now - known.asked_at < SELDOM_S:
            return
        known.asked_at = now
        size = len(job.endpoints)
        ranks = sorted({size * part // MOST_RANKS for part in range(MOST_RANKS)})
        with contextlib.suppress(*DEVICE_ERRORS):
            async with asyncio.timeout(READ_S):
                for rank in ranks:
                    await self._read_rank(job, known, rank)
                if known.steps and known.gradient_bytes is None:
                    async for _, record in self._lines(job, 0, '"gradient_bytes"', None):
                        known.gradient_bytes = _number(record.get("gradient_bytes"))

    async def _read_rank(self, job: JobRecord, known: _Job, rank: int) -> None:
        have = known.steps.get(rank, {})
        latest = max((time for time, _ in have.values()), default=None)
        async for time, record in self._lines(job, rank, '"step_s"', latest):
            number = record.get("step")
            if record.get("event") != "step":
                continue
            mine = known.steps.setdefault(rank, {})
            figures = {name: record[name] for name in _NUMBERS if name in record}
            mine.setdefault(number if isinstance(number, int) else time, (time, figures))
            while len(mine) > KEPT_STEPS:
                del mine[next(iter(mine))]

    async def _lines(
        self, job: JobRecord, rank: int, search: str, since: float | None
    ) -> AsyncIterator[tuple[float, dict[str, Any]]]:
        cable = self._state.cables.get(job.endpoints[rank])
        if cable is None:
            return
        lines = self._engine.logs(
            job.name,
            rank,
            KEPT_STEPS,
            False,
            {rank: cable.server},
            since=since,
            search=search,
            epoch=job.epoch,
        )
        async for line in lines:
            if line.stream != MISSING and (record := _record(line.text)) is not None:
                yield line.time, record


def _run_of(known: _Job) -> RunSteps:
    """Return the steps that lie wholly in the present placement, as far as all ranks have them."""
    told = {
        rank: {
            number: figures
            for number, (time, figures) in found.items()
            if time - (_number(figures.get("step_s")) or 0.0) >= known.began_at
        }
        for rank, found in known.steps.items()
    }
    common = _common(told.values())
    if len(common) < LEAST_STEPS:  # lines without numbers, or ranks that are far behind
        first = min(told)
        told, common = {first: told[first]}, list(told[first])
    lines = [
        Line(0, rank, {"event": "step", **found[number]})
        for rank, found in told.items()
        for number in common
    ]
    steps = steps_of(lines, 0, KEPT_STEPS, skip=0)
    return replace(steps, gradient_bytes=known.gradient_bytes or 0.0)


def _common(told: Iterable[Mapping[object, Step]]) -> list[object]:
    first, *others = told
    return [number for number in first if all(number in other for other in others)]


def _record(text: str) -> dict[str, Any] | None:
    """Return the object that a line holds; None for any other line."""
    if not text.startswith("{") or len(text) > _MOST_CHARS:
        return None
    try:
        record = json.loads(text)
    except (ValueError, RecursionError):
        return None
    return record if isinstance(record, dict) else None


def _number(value: object) -> float | None:
    """Return a number that a length or a size can be."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if 0 <= value < _MOST else None
