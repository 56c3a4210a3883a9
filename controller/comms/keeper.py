"""Asks the agents every ten seconds what ranks have communicated, and keeps it by job.

Agents keep a rank's figures beyond a restart of the controller, and those of ranks that have ended
for a quarter of an hour. What an ended job communicated is durable; the rest is in memory, within
the budget of the job's project and user.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence

import structlog

from controller.base.errors import ServiceError
from controller.base.slices import Turns
from controller.comms import budget
from controller.comms.kept import kept_view, record_of
from controller.comms.ledger import Bucket, BucketSums, JobComms, advance
from controller.comms.views import view_of
from controller.devices.engine import (
    ExecutionEngine,
    Recording,
    RecordingLimit,
    RecordingLimits,
)
from controller.schema.insight.comms import CommsView
from controller.state.kept.comms import COMMS, CommsRecord
from controller.state.records import JobRecord
from controller.state.state import State
from measure.comms import facts as step_facts
from scheduler.steptime.facts import StepFacts

ASK_EVERY_S = 10.0
ASK_TIMEOUT_S = 5.0

log = structlog.get_logger(__name__)


class CommsKeeper:
    """Belongs to the loop."""

    def __init__(self, state: State, engine: ExecutionEngine) -> None:
        self._state = state
        self._engine = engine
        self._jobs: Mapping[str, JobComms] = {}
        """Of jobs that have not ended; those that have keep their record."""
        self._briefs: Mapping[str, CommsView] = {}
        """Of the jobs in ``_jobs``."""
        self._turn = asyncio.Lock()
        """One reading at a time: an older one must not replace a newer one."""

    def known(self, job: JobRecord) -> JobComms | None:
        """Return what memory has of a job's present run; None if a record has more of it."""
        known = self._jobs.get(job.name)
        if known is None or known.epoch != job.epoch:
            return None
        record = self.record(job)
        if record is not None and len(known.ranks) < record.ranks:
            return None  # after a restart; some agents have forgotten their ranks by now
        return known

    def communicates(self, job: JobRecord) -> bool:
        """Whether a rank of the job's present run has finished an operation."""
        known = self._jobs.get(job.name)
        if known is None or known.epoch != job.epoch:
            return False
        return any(rank.recording.operations for rank in known.ranks.values())

    def record(self, job: JobRecord) -> CommsRecord | None:
        """Return what is kept of a job that has ended."""
        record = self._state.comms.get(job.name)
        same = record is not None and record.submitted_at == job.submitted_at
        return record if same and job.ended else None

    def facts(self, job: str) -> StepFacts | None:
        """Return what is known of a job's steps; for an ended job, of its last ones."""
        known, now = self._jobs.get(job), self._state.jobs.get(job)
        if known is not None and known.facts is not None:
            return known.facts
        record = None if now is None else self.record(now)
        return None if record is None else record.facts

    def brief(self, name: str) -> CommsView | None:
        """Return a job's latest document at once, without the rows of its ranks."""
        job = self._state.jobs.get(name)
        if job is None:
            return None
        if self.known(job) is not None and name in self._briefs:
            return self._briefs[name]
        record = self.record(job)
        return None if record is None else kept_view(record, None, since=False)

    def input_wait(self, job: str) -> tuple[float, float] | None:
        """Return how long a job's steps wait for their batches, and their length, in seconds."""
        known = self._jobs.get(job)
        if known is None:
            return None
        return step_facts.input_wait([rank.recording for rank in known.ranks.values()])

    def collectives(self) -> Mapping[str, Mapping[Bucket, BucketSums]]:
        """Return the sums of the jobs that have not ended, by operation and size."""
        return {
            name: known.buckets
            for name, known in self._jobs.items()
            if (job := self._state.jobs.get(name)) is not None and not job.ended
        }

    async def read(self, job: str = "") -> None:
        """Ask all agents once, for one job or for all."""
        async with self._turn:
            await self._read(job)

    async def _read(self, only: str) -> None:
        now = self._state.clock()
        limits, shares = await self._limits(budget.shares(self._state.jobs.values(), now))
        found = await self._engine.recordings(ASK_TIMEOUT_S, only, limits)
        jobs = await self._by_job(found)
        now, known = self._state.clock(), self._jobs
        # In a thread, one job after the other: a job may have a thousand ranks.
        fresh: dict[str, JobComms] = {}
        briefs: dict[str, CommsView] = {}
        for name, (job, recordings) in jobs.items():
            fresh[name], briefs[name] = await asyncio.to_thread(
                _advanced, known.get(name), recordings, job, now, shares.get(name, 0)
            )
        await self._keep(fresh)
        self._jobs = self._running({**known, **fresh})
        self._briefs = {n: b for n, b in {**self._briefs, **briefs}.items() if n in self._jobs}

    async def _limits(self, shares: Mapping[str, int]) -> tuple[RecordingLimits, dict[str, int]]:
        """Return what to ask the servers for, and the bytes that a rank of each job may take."""
        of_jobs: dict[str, RecordingLimit] = {}
        of_rank: dict[str, int] = {}
        servers: Counter[str] = Counter()
        with Turns() as turns:
            for name, share in shares.items():
                job = self._state.jobs.get(name)
                if job is None or not job.endpoints:
                    continue
                of_jobs[name] = budget.limit_of(len(job.endpoints), share)
                of_rank[name] = share // len(job.endpoints)
                for endpoint in job.endpoints:
                    cable = self._state.cables.get(endpoint)
                    if cable is not None:
                        servers[cable.server] += max(budget.LEAST_ANSWER, of_rank[name])
                await turns.breathe()
        return RecordingLimits(of_jobs, servers), of_rank

    async def run(self) -> None:
        """Ask until cancelled."""
        while True:
            await self.read()
            await asyncio.sleep(ASK_EVERY_S)

    async def _keep(self, fresh: Mapping[str, JobComms]) -> None:
        """Make durable what ended jobs have communicated; forget that of forgotten jobs."""
        state = self._state
        made: dict[str, CommsRecord] = {}
        for name, known in fresh.items():
            job = state.jobs.get(name)
            if job is None or not job.ended:
                continue
            record = await asyncio.to_thread(record_of, job, known, state.clock())
            before = self.record(job)
            if record is not None and (before is None or record.weight > before.weight):
                made[name] = record
        gone = {
            name
            for name, record in state.comms.items()
            if (job := state.jobs.get(name)) is None or job.submitted_at != record.submitted_at
        }
        for name in gone:
            state.comms.remove(name)
        for name, record in made.items():
            if name in state.jobs:  # else it was forgotten meanwhile
                state.comms.put(record)
        gone.update(state.comms.trim(state.project_of))
        if changed := made.keys() | gone:
            with contextlib.suppress(ServiceError):  # the journal writes them with the next commit
                await state.record(*(COMMS.row(name) for name in sorted(changed)))

    async def _by_job(
        self, found: Sequence[Recording]
    ) -> dict[str, tuple[JobRecord, list[Recording]]]:
        """Return the recordings of jobs' present runs; a server speaks for its own ranks only."""
        jobs: dict[str, tuple[JobRecord, list[Recording]]] = {}
        with Turns() as turns:
            for recording in found:
                job = self._state.jobs.get(recording.job)
                if job is not None and self._is_of(recording, job):
                    jobs.setdefault(job.name, (job, []))[1].append(recording)
                await turns.breathe()
        return jobs

    def _is_of(self, recording: Recording, job: JobRecord) -> bool:
        if recording.epoch != job.epoch or recording.rank >= len(job.endpoints):
            return False
        cable = self._state.cables.get(job.endpoints[recording.rank])
        return cable is not None and cable.server == recording.server

    def _running(self, jobs: Mapping[str, JobComms]) -> dict[str, JobComms]:
        records = {name: self._state.jobs.get(name) for name in jobs}
        return {
            name: known
            for name, known in jobs.items()
            if (record := records[name]) is not None and not record.ended
        }


def _advanced(
    known: JobComms | None,
    recordings: Sequence[Recording],
    job: JobRecord,
    now: float,
    of_rank: int,
) -> tuple[JobComms, CommsView]:
    """``of_rank`` are the bytes that a rank may take; a quarter of them is for its past."""
    found = advance(known, recordings, job.epoch, len(job.endpoints), now, past_bytes=of_rank // 4)
    view = view_of(job, found, None, None, now)
    return found, view.model_copy(update={"rank_rows": []})
