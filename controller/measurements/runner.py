"""Carries out one measurement: moves idle light, runs its jobs, reads them, puts the light back.

Everything that it needs after a restart is in the record: it goes on where it was, reads the
output of ended jobs again, and never submits a job twice.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import structlog

from agentlink.values import Record
from base import clock
from controller.base.errors import ServiceError
from controller.base.texts import clipped
from controller.devices.aggregators import AttachPoint
from controller.devices.engine import ExecutionEngine
from controller.devices.errors import DEVICE_ERRORS
from controller.images.keeper import ImageKeeper
from controller.jobs.keeper import JobKeeper
from controller.jobs.limits import ended_by_limit
from controller.jobs.submission import Submission
from controller.measurements.jobs import check_runs, groups, homed, request_of
from controller.measurements.light import LightOf, lit
from controller.measurements.lines import Collected
from controller.measurements.results import written
from controller.measurements.validity import Crossing, Traffic, moved_light, surroundings
from controller.measurements.views import job_name
from controller.plans.planner import Planner
from controller.ranks.calls import placed
from controller.state.kept.measurements import (
    MEASUREMENTS,
    MeasurementRecord,
    MeasurementRun,
    MeasurementState,
)
from controller.state.records import JobRecord
from controller.state.state import State
from controller.state.transactions import transaction_record
from controller.telemetry.throughput import Telemetry
from measure.envelope import Body, Environment, Measurement
from measure.kinds import Continuing, Line, MeasuredSite, MeasurementKind, Progress, Run, RunEnd
from scheduler.model import Placement
from scheduler.steptime.facts import StepFacts
from scheduler.steptime.road import LinkModel

log = structlog.get_logger(__name__)

POLL_S = 0.2
SAMPLE_S = 1.0
QUEUE_S = 300.0
"""Longest wait for a job to start: its endpoints are reserved for it, and idle."""
OVERTIME_S = 60.0
"""Beyond a run's time limit, until its job has ended."""
READ_S = 60.0
"""Longest time for reading a run's output again."""
RECORDING_S = 15.0
"""Longest wait for the recording of a job that has ended."""
DRAIN_S = 5.0
"""Longest wait for the last lines of a job that has ended."""
STOP_S = 120.0
"""Longest wait for a job to stop when its measurement ends early."""
MOVE_S = 120.0
PUT_BACK_TRIES = 5
PUT_BACK_PAUSE_S = 2.0
ROUNDS = 20
"""Most times that a kind may go on from what its runs found."""


async def _nothing(job: str) -> None:
    pass


@dataclass(slots=True, frozen=True, kw_only=True)
class MeasurementParts:
    """What measurements use of the controller."""

    state: State
    engine: ExecutionEngine
    jobs: JobKeeper
    images: ImageKeeper
    plans: Planner
    telemetry: Telemetry
    facts: Callable[[str], StepFacts | None] = lambda job: None
    """A job's steps, as recorded."""
    links: Callable[[], LinkModel | None] = lambda: None
    """The latest measured links."""
    record: Callable[[str], Awaitable[None]] = _nothing
    """Asks the agents for a job's recording now: a short job's may be unread."""
    finished: Callable[[MeasurementRecord, Measurement], None] = lambda record, result: None
    """Receives every result before it is durable; what it owes the journal is written with it."""
    light: LightOf = lambda endpoint: ()
    monotonic: Callable[[], float] = clock.monotonic


class _StoppedError(Exception):
    """The measurement was cancelled; the text is the reason."""


class MeasurementRunner:
    """One measurement under way."""

    def __init__(self, parts: MeasurementParts, kind: MeasurementKind, ident: str) -> None:
        self._parts = parts
        self._state = parts.state
        self._kind = kind
        self._ident = ident
        self._runs: list[Run] = []
        self._lines = Collected()
        self._traffic = Traffic()
        self._out: set[int] = set()
        """Runs whose jobs were submitted and have not ended."""
        self._resumed = self._record.started_at is not None
        self._stop = asyncio.Event()
        self._why = "cancelled by the operator"
        self.progress: Progress | None = None
        self.ended = asyncio.Event()
        self._claim()

    @property
    def _record(self) -> MeasurementRecord:
        return self._state.measurements[self._ident]

    @property
    def _fabric(self) -> MeasuredSite:
        fabric = self._record.fabric
        if fabric is None:
            raise ValueError("an imported measurement does not run")
        return fabric

    def stop(self) -> None:
        """End it as soon as its jobs are stopped and its light is back."""
        self._stop.set()

    async def run(self) -> None:
        """Carry it out to its end; a stop of the daemon leaves it to the next start."""
        if self._record.cancelling:
            self.stop()
        watch = asyncio.create_task(self._watch(), name=f"watch {self._ident}")
        state: MeasurementState = "failed"
        reason, result = "", None
        try:
            state, reason, result = await self._measured()
        except _StoppedError as error:
            state, reason = "cancelled", str(error)
        except ServiceError as error:
            reason = error.message
        except Exception as error:
            log.exception("measurement_broke", measurement=self._ident)
            reason = f"it broke: {type(error).__name__}: {clipped(str(error))}"
        finally:
            watch.cancel()
            await asyncio.gather(watch, return_exceptions=True)
        await self._stop_jobs()
        reason = "; ".join(filter(None, (reason, await self._put_back())))
        await self._finish(state, reason, result)

    async def _stop_jobs(self) -> None:
        """Cancel the jobs that still run; each ends in its own time if its agents are away."""
        for number in range(len(self._record.runs)):
            until = self._parts.monotonic() + STOP_S
            while (job := self._job(number)) is not None and not job.ended:
                await self._cancel(job.name)
                if self._parts.monotonic() > until:
                    break
                await asyncio.sleep(POLL_S)

    # --- all runs ---------------------------------------------------------------------------

    async def _measured(self) -> tuple[MeasurementState, str, Measurement | None]:
        record, kind, fabric = self._record, self._kind, self._fabric
        settings, seed, homes = record.settings, record.seed, record.homes
        self._runs = homed(await asyncio.to_thread(kind.runs, settings, fabric, seed), homes)
        await self._carry_out(0)
        for _ in range(ROUNDS if isinstance(kind, Continuing) else 0):
            more = await self._more()
            if not more:
                break
            first = len(self._runs)
            self._runs += homed(more, homes)
            check_runs(self._runs, [place.endpoint for place in fabric.places])
            await self._carry_out(first)
        lines, ends = self._lines.all(), self._ends()
        try:
            body = await asyncio.to_thread(kind.body, settings, fabric, seed, lines, ends)
            around = await asyncio.to_thread(surroundings, lines, self._ranks(), fabric)
        except Exception as error:
            log.exception("measurement_has_no_body", measurement=self._ident)
            text = f"{type(error).__name__}: {clipped(str(error))}"
            return "failed", f"its result cannot be computed: {text}", None
        measurement = self._envelope(body, ends, *around)
        if any(end.completed for end in ends) or (not ends and body.rows):
            return "completed", "", measurement
        return "failed", _first_problem(ends, lines), measurement if body.rows else None

    async def _more(self) -> Sequence[Run]:
        kind, record = self._kind, self._record
        if not isinstance(kind, Continuing):
            return ()
        lines, ends = self._lines.all(), self._ends()
        return await asyncio.to_thread(
            kind.more, record.settings, self._fabric, record.seed, lines, ends
        )

    async def _carry_out(self, first: int) -> None:
        """Run the runs from ``first`` on; those that ended before a restart are only read."""
        known = self._record.runs
        fresh = [
            MeasurementRun(run.label, tuple(run.endpoints), dict(run.homes))
            for run in self._runs[len(known) :]
        ]
        if fresh:
            others = {name for run in fresh for name in run.endpoints}
            own = self._record.endpoints
            self._state.measurements.change(
                self._ident,
                runs=(*known, *fresh),
                endpoints=(*own, *sorted(others - set(own) - self._promised())),
            )
            self._claim()
            await self._keep()
        for number, run in enumerate(self._runs):
            if tuple(run.endpoints) != self._record.runs[number].endpoints:
                why = "this version of the program would run other jobs: start it again"
                raise ServiceError("failed", why)
        for group in groups(self._runs[first:], first):
            left = [number for number in group if self._record.runs[number].end is None]
            for number in set(group) - set(left):
                if (job := self._job(number)) is not None:
                    await self._read(number, job)
            self._check_stop()
            if left:
                await self._group(left)
                self._check_stop()

    def _check_stop(self) -> None:
        if self._stop.is_set():
            raise _StoppedError(self._why)

    def _ends(self) -> list[RunEnd]:
        return [run.end for run in self._record.runs[: len(self._runs)] if run.end is not None]

    # --- one group of runs ------------------------------------------------------------------

    async def _group(self, numbers: Sequence[int]) -> None:
        """Run some runs at once; each ends with the reason why it did not complete."""
        if all(self._job(number) is None for number in numbers):  # none was begun before a restart
            try:
                await self._rehome(numbers)
            except ServiceError as error:
                for number in numbers:
                    await self._end(number, RunEnd(False, _text(error)))
                return
        try:
            async with asyncio.TaskGroup() as together:
                for number in numbers:
                    together.create_task(self._one(number))
        finally:
            self._out.clear()

    async def _one(self, number: int) -> None:
        """Run one job to its end; stops the whole measurement when the job is cancelled."""
        name = job_name(self._ident, number)
        job = self._job(number)
        if job is None:
            try:
                job = await self._submitted(number, name)
            except ServiceError as error:
                await self._end(number, RunEnd(False, _text(error)))
                return
        self._out.add(number)
        if self._record.state == "pending":
            self._state.measurements.change(
                self._ident, state="running", started_at=self._state.clock(), reason=""
            )
            await self._keep()
        overdue = await self._until_ended(number, name)
        job = self._job(number)
        self._out.discard(number)
        if job is None:
            await self._end(number, RunEnd(False, "its job is not known any more", name))
            return
        if job.started_at is not None:
            await self._read(number, job)
        if self._wants_facts(job):
            with contextlib.suppress(TimeoutError, *DEVICE_ERRORS):
                async with asyncio.timeout(RECORDING_S):
                    await self._parts.record(job.name)
        await self._end(number, self._end_of(number, job, overdue))
        if job.state == "cancelled" and not overdue and not self._stop.is_set():
            self._why = f"its job {name} was cancelled"
            self.stop()

    async def _submitted(self, number: int, name: str) -> JobRecord:
        request = request_of(name, self._runs[number], self._record.project)
        digest = await self._parts.images.pin_request(request)
        asked = Submission(request, digest, probe=True)
        (job,) = await self._parts.jobs.submit([asked], self._record.user)
        return job

    def _job(self, number: int) -> JobRecord | None:
        """Return the job of a run if it was submitted and is still known."""
        job = self._state.jobs.get(job_name(self._ident, number))
        if job is None or not job.request.probe or job.submitted_at < self._record.submitted_at:
            return None
        return job

    async def _until_ended(self, number: int, name: str) -> str:
        """Follow a job to its end; return why it was ended for being late, empty if it was not."""
        now, limit_s = self._parts.monotonic, self._runs[number].timeout_s
        since, began, overdue = now(), None, ""
        follow: asyncio.Task[None] | None = None
        try:
            while (job := self._job(number)) is not None and not job.ended:
                if job.state == "running" and follow is None:
                    began = now()
                    follow = asyncio.create_task(self._follow(number, job), name=f"follow {name}")
                if job.state == "pending":
                    await self._start(job)
                if began is None and now() - since > QUEUE_S:
                    overdue = f"it waited {QUEUE_S:g} s to start: {job.reason}"
                elif began is not None and now() - began > limit_s + OVERTIME_S:
                    overdue = f"it did not end within {limit_s:g} s"
                if overdue or self._stop.is_set():
                    await self._cancel(name)
                await asyncio.sleep(POLL_S)
            if follow is not None:
                await asyncio.wait({follow}, timeout=DRAIN_S)
        finally:
            if follow is not None:
                follow.cancel()
                await asyncio.gather(follow, return_exceptions=True)
        return overdue

    async def _start(self, job: JobRecord) -> None:
        """Start a job on the endpoints that are reserved for it, ahead of the queue."""
        state = self._state
        unusable = state.unavailable()
        taken = {*state.jobs.holders(), *self._promised()}
        if not state.suspect and not any(
            e in unusable or e in taken for e in job.request.endpoints
        ):
            await self._parts.jobs.admit(job, Placement(job.name, job.request.endpoints))

    async def _cancel(self, name: str) -> None:
        try:
            await self._parts.jobs.cancel(name)
        except ServiceError as error:  # it is tried again until the job has ended
            log.info("job_not_cancelled_yet", job=name, reason=error.message)

    def _end_of(self, number: int, job: JobRecord, overdue: str) -> RunEnd:
        """Return how a job ended; one that its limit ended counts with its earlier lines."""
        homes = self._state.light.homes()
        final = job.final_homes or tuple(homes.get(name) for name in job.endpoints)
        facts = self._parts.facts(job.name) if self._wants_facts(job) else None
        told = facts is not None or self._lines.has(number)
        ended = job.state == "completed"
        return RunEnd(
            ended or (told and not overdue and ended_by_limit(job)),
            "" if ended else clipped(overdue or job.reason or job.state, 500),
            job.name,
            dict(zip(job.endpoints, final, strict=False)),
            job.started_at,
            job.finished_at,
            facts,
        )

    @staticmethod
    def _wants_facts(job: JobRecord) -> bool:
        return job.request.record is not Record.OFF and job.started_at is not None

    async def _end(self, number: int, end: RunEnd) -> None:
        runs = list(self._record.runs)
        runs[number] = replace(runs[number], end=end)
        self._state.measurements.change(self._ident, runs=tuple(runs))
        await self._keep()

    # --- output -----------------------------------------------------------------------------

    async def _follow(self, number: int, job: JobRecord) -> None:
        """Add lines while a job runs, for the progress; its whole output is read at its end."""
        ranks = len(job.endpoints)
        where = placed(self._state, job)
        lines = self._parts.engine.logs(job.name, None, None, True, where, epoch=job.epoch)
        with contextlib.suppress(*DEVICE_ERRORS):
            await self._lines.read(number, ranks, lines)

    async def _read(self, number: int, job: JobRecord) -> None:
        """Read the whole output of a job that has ended."""
        ranks, where = len(job.endpoints), placed(self._state, job)
        lines = self._parts.engine.logs(job.name, None, None, False, where, epoch=job.epoch)
        try:
            async with asyncio.timeout(READ_S):
                await self._lines.read(number, ranks, lines)
        except DEVICE_ERRORS as error:
            self._lines.lost(number, ranks, str(error) or "time-out")

    # --- light ------------------------------------------------------------------------------

    async def _rehome(self, numbers: Sequence[int]) -> None:
        """Move the idle endpoints of some runs to where they are wanted. ServiceError."""
        now = self._state.light.homes()
        wanted = {e: h for number in numbers for e, h in self._runs[number].homes.items()}
        moves = {name: home for name, home in wanted.items() if now.get(name) != home}
        if not moves:
            return
        before = {name: home for name in moves if (home := now.get(name)) is not None}
        kept = {**before, **self._record.homes_before}
        if kept != self._record.homes_before:
            await self._state.intend(
                {MEASUREMENTS.row(self._ident): lambda now: replace(now, homes_before=kept)}
            )
        await self._move(moves)

    async def _move(self, moves: Mapping[str, str]) -> None:
        """Move idle endpoints in one transaction. ServiceError unless all of them arrive."""
        holders, promised = self._state.jobs.holders(), self._promised()
        for name in moves:
            if name in holders or name in promised:
                job = holders.get(name)
                why = f"carries job {job.name}" if job else "is reserved for another job"
                raise ServiceError(
                    "conflict",
                    f"{name} {why}",
                    object=f"endpoint/{name}",
                    hint="measure other endpoints, or wait until it is idle",
                )
        view = await self._parts.plans.move(moves, MOVE_S)
        if view.state != "committed":
            why = view.error or view.result or f"transaction {view.id} is {view.state}"
            raise ServiceError("failed", f"the light did not move: {why}")

    async def _put_back(self) -> str:
        """Put the light back where it was; return what could not be put back."""
        problem = ""
        for attempt in range(PUT_BACK_TRIES):
            now, holders = self._state.light.homes(), self._state.jobs.holders()
            before = self._record.homes_before
            taken = sorted(name for name in before if name in holders)
            moves = {n: h for n, h in before.items() if now.get(n) != h and n not in holders}
            if not moves:
                names = ", ".join(name for name in taken if now.get(name) != before[name])
                problem = f"{names} carry jobs and stay where they are" if names else ""
                break
            if attempt:
                await asyncio.sleep(PUT_BACK_PAUSE_S)
            try:
                await self._move(moves)
            except ServiceError as error:
                problem = f"{', '.join(sorted(moves))} are not back: {error.message}"
            else:
                problem = ""
        if problem:
            text = f"{problem}; move them with `lightloom attach`"
            self._state.events.add("warning", f"measurement/{self._ident}", "NotPutBack", text)
        return problem

    def _promised(self) -> frozenset[str]:
        """Return the endpoints that are reserved for others."""
        mine = f"measurement/{self._ident}"
        promised = self._state.jobs.promised
        return frozenset(e for key, names in promised.items() if key != mine for e in names)

    def _claim(self) -> None:
        """Reserve the endpoints of all runs: no other job gets them between two runs."""
        claimed = frozenset(self._record.endpoints)
        self._state.jobs.promised[f"measurement/{self._ident}"] = claimed

    # --- watching ---------------------------------------------------------------------------

    async def _watch(self) -> None:
        """Once a second: the traffic of others, and how far the measurement is."""
        told = -1
        while True:
            await asyncio.sleep(SAMPLE_S)
            holding = [job for n in self._out if (job := self._job(n)) is not None and job.holding]
            if any(job.state == "running" for job in holding):
                self._traffic.add(
                    [name for job in holding for name in job.endpoints],
                    self._state.light.homes(),
                    [job for job in self._state.jobs.values() if job.holding],
                    lambda name: self._parts.telemetry.rates(name).tx_bps,
                    self._uplinks(),
                )
            if len(self._lines) != told or self.progress is None:
                told = len(self._lines)
                await self._update_progress()

    def _uplinks(self) -> dict[str, Crossing]:
        """Return what crosses each aggregator's links to others, by the ports' counters."""
        found: dict[str, Crossing] = {}
        for link in self._state.site.uplinks:
            for end in (link.a, link.b):
                port = AttachPoint(end.device, int(end.port))
                rates = self._parts.telemetry.port_rates(port)
                so_far = found.get(end.device, Crossing(0.0, 0.0))
                found[end.device] = so_far.plus(rates.tx_bps, rates.rx_bps)
        return found

    async def _update_progress(self) -> None:
        record, lines = self._record, self._lines.all()
        done = sum(run.end is not None for run in record.runs)
        found = Progress(done, len(record.runs))
        with contextlib.suppress(Exception):  # lines are what jobs wrote
            found = await asyncio.to_thread(
                self._kind.progress, record.settings, self._fabric, lines
            )
        labels = ", ".join(self._runs[n].label for n in sorted(self._out) if self._runs[n].label)
        self.progress = replace(found, text=clipped(found.text or labels, 200))

    # --- the end ----------------------------------------------------------------------------

    def _ranks(self) -> dict[int, tuple[str, ...]]:
        return {number: run.endpoints for number, run in enumerate(self._record.runs)}

    def _envelope(
        self, body: Body, ends: Sequence[RunEnd], around: Environment, busy: Sequence[str]
    ) -> Measurement:
        record, fabric, reasons = self._record, self._fabric, list(busy)
        jobs = [job for n in range(len(record.runs)) if (job := self._job(n)) is not None]
        transactions = [
            *self._state.transactions.finished.values(),
            *(
                transaction_record(running, None, self._state.clock())
                for running in self._state.transactions.running.values()
            ),
        ]
        homes: dict[str, str | None] = {}
        for end in ends:
            homes |= end.homes
            if end.started_at is not None and end.finished_at is not None:
                used = frozenset(home for home in end.homes.values() if home)
                reasons += moved_light(transactions, used, end.started_at, end.finished_at)
        reasons += [f"job {name} was frozen" for name in self._frozen(jobs)]
        reasons += self._lines.problems()
        if verdict := self._traffic.verdict(fabric.inter_aggregator_bps):
            reasons.append(verdict)
        if self._resumed:
            reasons.append("the controller restarted: nothing watched the links meanwhile")
        image = next((job.image_digest or job.image for job in jobs), "")
        others = self._traffic.others_bps
        environment = replace(around, image=image, others_on_links_bps=others)
        used_endpoints = {name for run in record.runs for name in run.endpoints}
        return Measurement(
            type=record.type,
            id=record.id,
            jobs=[end.job for end in ends if end.job],
            source="emulated" if fabric.emulated else "measured",
            started_at=record.started_at or record.submitted_at,
            finished_at=self._state.clock(),
            fabric_epoch=self._state.epoch,
            endpoints=[name for name in record.endpoints if name in used_endpoints],
            homes=homes,
            settings=record.settings,
            seed=record.seed,
            environment=environment,
            body=replace(
                body,
                anomalies=lit(body.anomalies, self._parts.light),
                invalid_because=[*body.invalid_because, *reasons],
            ),
        )

    def _frozen(self, jobs: Sequence[JobRecord]) -> list[str]:
        began = {f"job/{job.name}": job.started_at for job in jobs}
        paused = {
            event.object
            for event in self._state.events.newer(0)
            if event.reason == "JobPaused"
            and (at := began.get(event.object)) is not None
            and event.time >= at
        }
        return [job.name for job in jobs if job.pauses or f"job/{job.name}" in paused]

    async def _finish(
        self, state: MeasurementState, reason: str, result: Measurement | None
    ) -> None:
        fields: dict[str, object] = {"valid": None}
        if result is not None:
            try:
                text = await asyncio.to_thread(written, result)
            except ValueError as error:
                state, reason = "failed", f"its result cannot be kept: {error}"
            else:
                self._state.measurements.results[self._ident] = text.text
                fields["invalid_because"] = text.invalid_because
                fields["valid"] = not text.invalid_because
                fields["result_bytes"] = len(text.text)
                self._report(result)
        now = self._state.clock()
        self._state.measurements.change(
            self._ident, state=state, reason=clipped(reason, 1000), finished_at=now, **fields
        )
        self._state.jobs.promised.pop(f"measurement/{self._ident}", None)
        self._state.jobs.wake.set()
        word = {"completed": "Completed", "failed": "Failed"}.get(state, "Cancelled")
        severity = "error" if state == "failed" else "info"
        self._state.events.add(
            severity,  # type: ignore[arg-type]
            f"measurement/{self._ident}",
            f"Measurement{word}",
            reason or f"{self._record.type}",
        )
        await self._keep()
        self.ended.set()

    def _report(self, result: Measurement) -> None:
        """Report the result; an error of a receiver does not change how it ended."""
        try:
            self._parts.finished(self._record, result)
        except Exception:
            log.exception("measurement_was_not_heard", measurement=self._ident)

    async def _keep(self) -> None:
        """Make the record durable; what the store refuses now goes with a later commit."""
        with contextlib.suppress(ServiceError):
            await self._state.record(MEASUREMENTS.row(self._ident))
            self._state.measurements.results.pop(self._ident, None)


def _text(error: ServiceError) -> str:
    return clipped("; ".join(filter(None, (error.message, error.hint))), 500)


def _first_problem(ends: Sequence[RunEnd], lines: Sequence[Line]) -> str:
    """Return why no run completed: a probe's message, else how its job ended."""
    said = next((line.record for line in lines if line.record.get("probe") == "error"), None)
    how = next((end.reason for end in ends if end.reason), "no run completed")
    return f"{how}: {clipped(str(said.get('message')), 300)}" if said else how
