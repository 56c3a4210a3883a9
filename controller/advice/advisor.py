"""Advice: gathers what is known of jobs, and has it judged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from base.figures import figure
from controller.advice.findings import JobFinding, Judgement, Situation, judge
from controller.advice.homes import compact_homes
from controller.advice.whatif import range_view
from controller.base.errors import not_found
from controller.base.slices import in_slices
from controller.schema.insight.advice import AdviceView, FindingView, Limit
from controller.schema.insight.comms import CommsView
from controller.state.records import JobRecord
from controller.state.scheduling import spread_of
from controller.state.state import State
from controller.telemetry.steps import FactsOf, StepMeter
from measure.loading.floor import Floor, floor_of
from scheduler.metrics import SpanBound, span
from scheduler.occupancy import all_homes
from scheduler.steptime.calibrate import PredictionInterval

CommsOf = Callable[[str], CommsView | None]
"""The recorded communication of a job."""
WaitOf = Callable[[str], tuple[float, float] | None]
"""How long the steps of a job wait for their batches, and their length, in seconds."""
ResultOf = Callable[[str], Awaitable[Mapping[str, Any] | None]]
"""The result of a measurement by its id."""
RankEvidence = Callable[[JobRecord, int], Sequence[str]]
"""What is known of a rank's endpoint: light, utilisation, its server's load."""


async def _no_result(ident: str) -> None:
    del ident


class Advisor:
    """Finds what limits jobs."""

    def __init__(
        self,
        state: State,
        meter: StepMeter,
        *,
        facts: FactsOf,
        comms: CommsOf = lambda job: None,
        waits: WaitOf = lambda job: None,
        results: ResultOf = _no_result,
        evidence: RankEvidence = lambda job, rank: (),
    ) -> None:
        self._state = state
        self._meter = meter
        self._facts = facts
        self._comms = comms
        self._waits = waits
        self._results = results
        self._evidence = evidence

    async def advise(self, job: str | None, jobs: Collection[str] | None = None) -> AdviceView:
        """Judge one job, or all that run, in order of gain; of ``jobs`` only (None is all).

        ServiceError ``not_found``.
        """
        records, moment = self._state.jobs, _Moment(self._state, self._meter)
        if job is not None:
            if jobs is not None and job not in jobs:
                raise not_found("job", job)
            record = records.require(job)
            moment.inputs = await self._inputs([record])
            judged = self._judged(record, moment)
            return _view(job, judged.limit, [(job, f) for f in judged.findings], judged.unknown)
        shown = [
            record
            for record in records.values()
            if record.holding and (jobs is None or record.name in jobs)
        ]
        moment.inputs = await self._inputs(shown)
        all_ = await in_slices(shown, lambda record: (record.name, self._judged(record, moment)))
        found = [(name, finding) for name, judged in all_ for finding in judged.findings]
        found.sort(key=lambda pair: -pair[1].weight)
        unknown = list(dict.fromkeys(text for _, judged in all_ for text in judged.unknown))
        return _view(None, None, found, unknown)

    async def _inputs(self, jobs: Iterable[JobRecord]) -> dict[str, Mapping[str, Any]]:
        """Return the latest valid result of ``measure input`` of each volume that jobs use."""
        used = {mount.volume for job in jobs for mount in job.request.volumes}
        latest: dict[str, str] = {}
        for record in self._state.measurements.values():
            volume = str(record.settings.get("volume"))
            if record.type == "input" and record.valid and volume in used:
                latest[volume] = record.id
        found = {volume: await self._results(ident) for volume, ident in latest.items()}
        return {volume: result for volume, result in found.items() if result is not None}

    def _judged(self, job: JobRecord, moment: _Moment) -> Judgement:
        if job.state == "pending":
            return judge(self._waiting(job))
        endpoints = self._state.cabled(job)
        if job.ended:  # its endpoints may be anywhere by now
            was = dict(zip(job.endpoints, job.final_homes, strict=False))
            homes: Mapping[str, str | None] = {**moment.homes, **was}
        else:
            homes = moment.homes
        members = [moment.endpoints[e] for e in endpoints]
        view = self._comms(job.name)
        here = span(endpoints, homes)
        spread = spread_of(job.request)
        least = moment.bound.least(members, spread, homes) if members else here
        facts = self._facts(job.name)
        compact, reasons = None, tuple[str, ...]()
        if here > least:
            after = compact_homes(replace(moment.fabric, homes=homes), endpoints)
            if after is not None and not job.ended:
                compact, reasons = self._compact(job, after, moment)
            elif after is not None and facts is not None:
                compact = self._meter.speedup_alone(facts, endpoints, homes, after)
        computes = {
            row.rank: row.compute_s
            for row in (view.overlap_ranks if view else ())
            if row.rank is not None
        }
        return judge(
            Situation(
                job=job.name,
                ended=job.ended,
                facts=facts,
                span=here,
                span_least=least,
                compact=compact,
                compact_reasons=reasons,
                input_wait=self._waits(job.name),
                floor=_floor(job, moment.inputs),
                compute_s=computes,
                rank_evidence=_Evidence(job, self._evidence, view),
                recorder=_recorder(view),
                links_measured=moment.roads is not None and moment.roads.measured,
            )
        )

    def _waiting(self, job: JobRecord) -> Situation:
        queue = self._state.jobs.queue
        hold, hint = queue.holds.get(job.name), queue.hints.get(job.name)
        return Situation(
            job=job.name,
            waits=hold.reason if hold else job.reason or "it has not been considered yet",
            wait_remedy=hold.remedy if hold else "",
            wait_command=f"lightloom plan --job {job.name}" if hint else "",
        )

    def _compact(
        self, job: JobRecord, after: Mapping[str, str | None], moment: _Moment
    ) -> tuple[PredictionInterval | None, tuple[str, ...]]:
        then = self._meter.roads(moment.rings, after)
        if moment.roads is None or then is None:
            return None, ()
        outlook = self._meter.outlook(job.name, moment.roads, then)
        return outlook.ratio, outlook.unidentified


class _Moment:
    """What all judgements of one answer share."""

    def __init__(self, state: State, meter: StepMeter) -> None:
        self.inputs: Mapping[str, Mapping[str, Any]] = {}
        """By volume: the latest valid result of ``measure input``."""
        self.fabric = state.fabric()
        self.homes = all_homes(self.fabric)
        self.endpoints = {e.name: e for e in self.fabric.site.endpoints}
        self.bound = SpanBound(self.fabric)
        self.rings = {job.name: job.endpoints for job in self.fabric.jobs}
        self.roads = meter.roads(self.rings, self.homes)


class _Evidence(Mapping[int, Sequence[str]]):
    """Evidence by rank, gathered only for the rank that is asked for."""

    def __init__(self, job: JobRecord, evidence: RankEvidence, view: CommsView | None) -> None:
        self._job = job
        self._evidence = evidence
        self._view = view

    def __getitem__(self, rank: int) -> Sequence[str]:
        if not 0 <= rank < len(self._job.endpoints):
            raise KeyError(rank)
        endpoint = f"its endpoint is {self._job.endpoints[rank]}"
        return (endpoint, *_last(self._view, rank), *self._evidence(self._job, rank))

    def __iter__(self) -> Iterator[int]:
        return iter(range(len(self._job.endpoints)))

    def __len__(self) -> int:
        return len(self._job.endpoints)


def _last(view: CommsView | None, rank: int) -> tuple[str, ...]:
    """Return how often a rank came last to the collective that takes longest."""
    rows = view.rows if view else ()
    row = next((row for row in rows if row.last_share is not None and not row.tag), None)
    if row is None or row.last_rank != rank or row.last_share is None or row.skew_s is None:
        return ()
    times = f"{100 * row.last_share:.0f} % of its calls of {row.op}"
    return (f"it came last to {times}, and another rank waited {figure(row.skew_s)} s in each",)


def _floor(job: JobRecord, inputs: Mapping[str, Mapping[str, Any]]) -> Floor | None:
    """Return the longest of the shortest steps that a job's volumes allow."""
    request = job.request
    found = [
        floor_of(inputs[mount.volume], request.io_bps, request.memory_bytes)
        for mount in request.volumes
        if mount.volume in inputs
    ]
    return max((f for f in found if f is not None), key=lambda f: f.step_s, default=None)


def _recorder(view: CommsView | None) -> str:
    """Return why nothing is recorded, by the first rank that does not record."""
    if view is None:
        return ""
    if view.record == "off":
        return "recording is off"
    silent = next((rank for rank in view.ranks if rank.recorder != "recording"), None)
    if silent is None:
        return ""
    why = f" ({silent.reason})" if silent.reason else ""
    return f"the recorder of rank {silent.rank} is {silent.recorder}{why}"


def _view(
    job: str | None,
    limit: Limit | None,
    found: Sequence[tuple[str, JobFinding]],
    unknown: Sequence[str],
) -> AdviceView:
    return AdviceView(
        job=job,
        limit=limit,
        findings=[
            FindingView(
                job=name,
                limit=finding.limit,
                text=finding.text,
                evidence=list(finding.evidence),
                gain=range_view(finding.gain),
                remedy=finding.remedy,
                command=finding.command,
            )
            for name, finding in found
        ],
        unknown=list(unknown),
    )
