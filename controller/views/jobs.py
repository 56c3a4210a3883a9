"""Documents of jobs and containers. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from typing import Any, Protocol

from controller.base.slices import in_slices
from controller.base.texts import shown
from controller.devices.engine import RankSample, RankStatus
from controller.schema.base import JobState
from controller.schema.engine import EngineJobView
from controller.schema.fabric import EndpointView
from controller.schema.jobs import (
    ASKED,
    ConditionView,
    ContainerView,
    FailureView,
    GpuFiguresView,
    JobView,
    JobVolumeView,
    NicView,
    PlacementView,
    PlanHintView,
    RankView,
    StepsView,
    WaitView,
)
from controller.schema.live import OF_JOBS, TopRowView, TopView
from controller.state.kept.phases import phase_of
from controller.state.light import spread
from controller.state.queue import QueueReport
from controller.state.records import Failure, JobRecord, Observed
from controller.state.state import State
from controller.telemetry.rates import mean, total
from controller.telemetry.steps import StepMeter
from controller.telemetry.throughput import Telemetry
from controller.transaction.model import Phase
from controller.views.fabric import FabricViews
from scheduler import ring
from scheduler.metrics import span
from scheduler.model import Policy
from scheduler.scores import Scorer


class Protection(Protocol):
    """How safe jobs' checkpoints are."""

    def protected(self, job: str) -> tuple[float | None, str] | None:
        """Return since when the newest written step is protected, or is not, and why not.

        The reason is empty while it is protected; None before a step is written. A time is None
        when it was before the controller started.
        """
        ...


class _Moment:
    """Values that all views of one answer share: each is computed once, on first use."""

    def __init__(self, state: State, meter: StepMeter) -> None:
        self._state = state
        self._meter = meter

    @cached_property
    def homes(self) -> Mapping[str, str | None]:
        return self._state.light.homes()

    @cached_property
    def scorer(self) -> Scorer:
        return Scorer(self._state.fabric())

    @cached_property
    def rates(self) -> Mapping[str, float] | None:
        """Every ring's fair share of an access link."""
        return self._meter.rates(self._state.jobs.values(), self.homes)


class JobViews:
    """Makes the views of jobs.

    The view of an ended job does not change any more, so it is made once.
    """

    def __init__(
        self,
        state: State,
        telemetry: Telemetry,
        fabric: FabricViews,
        meter: StepMeter,
        *,
        protection: Protection,
    ) -> None:
        self._state = state
        self._meter = meter
        self._telemetry = telemetry
        self._fabric = fabric
        self._protection = protection
        self._ended: dict[str, tuple[JobRecord, JobView]] = {}
        self._departed = 0
        """How many records of ended jobs had gone when views were last forgotten."""
        self._seen: list[RankStatus] = []
        self._statuses: dict[tuple[str, int], dict[int, RankStatus]] = {}
        """Latest status of the containers, by job and epoch, then by rank."""

    async def jobs(self, records: Iterable[JobRecord]) -> list[JobView]:
        """Return these jobs; all of them show the same state of the fabric."""
        moment = self._moment()
        return await in_slices(list(records), lambda record: _listed(self._job(record, moment)))

    def job(self, job: JobRecord) -> JobView:
        """Return one job."""
        return self._job(job, self._moment())

    def _moment(self) -> _Moment:
        state = self._state
        if state.jobs.statuses is not self._seen:
            self._seen, self._statuses = state.jobs.statuses, {}
            for status in state.jobs.statuses:
                self._statuses.setdefault((status.job, status.epoch), {})[status.rank] = status
        if state.jobs.departed != self._departed:
            self._departed = state.jobs.departed
            jobs, ended = state.jobs, self._ended.items()
            self._ended = {n: kept for n, kept in ended if jobs.get(n) is kept[0]}
        return _Moment(state, self._meter)

    def _job(self, job: JobRecord, moment: _Moment) -> JobView:
        if not job.ended or (job.name, job.epoch) in self._statuses:
            return self._made(job, moment)
        kept, view = self._ended.get(job.name, (None, None))
        if view is None or kept is not job:
            view = self._made(job, moment)
            self._ended[job.name] = job, view
        return view

    def _made(self, job: JobRecord, moment: _Moment) -> JobView:
        if job.ended:  # its endpoints may have moved, or may have left the site file
            homes: Mapping[str, str | None] = dict(
                zip(job.endpoints, job.final_homes, strict=False)
            )
        else:
            homes = moment.homes
        running = self._state.transactions.of_job(job.name)
        ranks = self._ranks(job, homes)
        placed = bool(job.endpoints)
        cabled = all(e in self._state.cables for e in job.endpoints)
        excess = moment.scorer.excess(job.endpoints, homes) if placed and cabled else 0
        now = self._job_state(job)
        recovery = self._state.recoveries.under_way(job.name, job.submitted_at)
        asked = job.request
        return JobView(
            name=job.name,
            state=now,
            reason=shown(job.reason),
            **{name: getattr(asked, name) for name in ASKED},
            checkpoint=asked.checkpoint and asdict(asked.checkpoint),
            spares=list(job.spares),
            spares_asked=asked.spares,
            recovery=None if recovery is None or job.ended else phase_of(recovery),
            user=job.user,
            image=shown(job.image),
            image_digest=shown(job.image_digest),
            command=[shown(word) for word in asked.command],
            secrets=dict(asked.secrets),
            env={shown(name): shown(value) for name, value in asked.env.items()},
            volumes=[JobVolumeView(**asdict(volume)) for volume in asked.volumes],
            endpoints=list(job.endpoints),
            homes=[homes.get(e) for e in job.endpoints],
            ranks=ranks,
            spread=spread(job.endpoints, homes),
            span=span(job.endpoints, homes) if placed else 0,
            excess_span=excess,
            ring_crossings=ring.crossings(job.endpoints, homes) if placed else 0,
            rx_bps=total([r.rx_bps for r in ranks]),
            tx_bps=total([r.tx_bps for r in ranks]),
            utilisation=mean([r.utilisation for r in ranks]),
            epoch=job.epoch,
            restarts=job.restarts,
            submitted_at=job.submitted_at,
            started_at=job.started_at,
            finished_at=job.finished_at,
            exit_codes=list(job.exit_codes),
            transaction=running.tx.id if running else None,
            pauses=len(job.pauses),
            wait=wait_view(job, self._state.jobs.queue) if job.state == "pending" else None,
            placement=placement_view(job, moment.scorer) if job.holding and cabled else None,
            steps=steps_view(job, self._meter, moment.rates) if job.state == "running" else None,
            failure=failure_view(job.failure) if job.failure else None,
            engine=_engine_view(job.observed, freezes=self._state.freezes(job))
            if job.observed
            else None,
            conditions=[
                *_conditions(job, excess, self._state.jobs.stalled.get(job.name)),
                *self._protected(job),
            ],
        )

    def _protected(self, job: JobRecord) -> list[ConditionView]:
        """Return the condition of a job whose checkpoints could be lost with a server."""
        if job.request.checkpoint is None or job.ended:
            return []
        known = self._protection.protected(job.name)
        since, why = known or (None, "no step is written yet")
        return [
            ConditionView(
                type="Protected",
                status=not why,
                reason="Unprotected" if why else "Apart",
                message=shown(why),
                since=since or job.started_at or job.submitted_at,
            )
        ]

    def _job_state(self, job: JobRecord) -> JobState:
        """Return the state that is shown: a regroup that freezes a job shows as pausing, paused."""
        running = self._state.transactions.of_job(job.name)
        if running is None or job.state != "running":
            return job.state
        tx = running.tx
        policy = next(held.policy for held in tx.jobs if held.name == job.name)
        if policy is Policy.LIVE or tx.phase in (Phase.ADMIT, Phase.COMMIT, Phase.DONE):
            return job.state
        return "pausing" if tx.phase is Phase.QUIESCE else "paused"

    def _ranks(self, job: JobRecord, homes: Mapping[str, str | None]) -> list[RankView]:
        seen = self._statuses.get((job.name, job.epoch), {})
        views = []
        for rank, endpoint in enumerate(job.endpoints):
            status = seen.get(rank)
            cable = self._state.cables.get(endpoint)
            live = cable is not None and job.state in ("running", "paused")
            sample = self._telemetry.sample(job.name, rank) if live else None
            rates = self._telemetry.rates(endpoint) if live else None
            views.append(
                RankView(
                    rank=rank,
                    endpoint=endpoint,
                    home=homes.get(endpoint),
                    server=cable.server if cable else "",
                    state=status.state.value if status else _unseen(job),
                    exit_code=job.exit_codes[rank] if rank < len(job.exit_codes) else None,
                    rx_bps=rates.rx_bps if rates else None,
                    tx_bps=rates.tx_bps if rates else None,
                    utilisation=sample.values.get("utilisation") if sample else None,
                    dark_time_s=job.dark_time_s.get(endpoint, 0.0),
                )
            )
        return views

    def container(self, status: RankStatus) -> ContainerView:
        """Return one container as its agent last reported it."""
        live = status.state.value in ("running", "paused")
        sample = self._telemetry.sample(status.job, status.rank) if live else None
        rates = self._telemetry.rates(status.endpoint) if live else None
        values: Any = sample.values if sample else {}
        return ContainerView(
            name=f"ll-{status.job}-{status.rank}-{status.epoch}",
            job=status.job,
            rank=status.rank,
            epoch=status.epoch,
            endpoint=status.endpoint,
            server=status.server,
            state=status.state.value,
            exit_code=status.exit_code,
            oom=status.oom,
            started_at=status.started_at,
            finished_at=status.finished_at,
            container_id=status.container_id,
            rx_bps=rates.rx_bps if rates else None,
            tx_bps=rates.tx_bps if rates else None,
            utilisation=values.get("utilisation"),
            memory_bytes=values.get("memory_bytes"),
            source=sample.source if sample else None,
            reason=status.reason,
            nic=NicView(**asdict(status.nic)) if status.nic else None,
            gpu=GpuFiguresView.model_validate(values) if sample and sample.real else None,
        )

    async def containers(self) -> list[ContainerView]:
        """Return every container as its agent last reported it."""
        return await in_slices(list(self._state.jobs.statuses), self.container)

    async def top(self) -> TopView:
        """Return the figures of the last second for all running jobs and all endpoints."""
        live = await self.jobs(j for j in self._state.jobs.values() if j.holding)
        of_jobs = await in_slices(live, self._rows)
        rows_of = {job.name: rows for job, rows in zip(live, of_jobs, strict=True)}
        endpoints = await in_slices(await self._fabric.endpoints(), _endpoint_row)
        rates = self._state.site.emulation
        return TopView(
            time=self._state.clock(),
            epoch=self._state.epoch,
            jobs=[
                TopRowView(
                    name=job.name,
                    state=job.state,
                    rx_bps=job.rx_bps,
                    tx_bps=job.tx_bps,
                    utilisation=job.utilisation,
                    **_of_gpus(rows_of[job.name]),
                    spread=job.spread,
                    excess_span=job.excess_span,
                )
                for job in live
            ],
            containers=[row for rows in of_jobs for row in rows],
            endpoints=endpoints,
            access_bps=rates.access_bps if rates else None,
            excess_span=sum(job.excess_span for job in live),
        )

    def _rows(self, job: JobView) -> list[TopRowView]:
        return [
            TopRowView(
                name=f"{job.name}/{rank.rank}",
                job=job.name,
                rank=rank.rank,
                endpoint=rank.endpoint,
                home=rank.home,
                state=rank.state,
                rx_bps=rank.rx_bps,
                tx_bps=rank.tx_bps,
                utilisation=rank.utilisation,
                **_gpu_cells(self._telemetry.sample(job.name, rank.rank)),
            )
            for rank in job.ranks
        ]


def failure_view(failure: Failure) -> FailureView:
    """Return why a run of a job failed."""
    return FailureView(
        rank=failure.rank,
        endpoint=failure.endpoint,
        epoch=failure.epoch,
        exit_code=failure.exit_code,
        signal=failure.signal,
        oom=failure.oom,
        cause=shown(failure.cause),
        others=shown(failure.others),
        lines=[shown(line) for line in failure.lines],
        unread=shown(failure.unread),
    )


def _listed(view: JobView) -> JobView:
    """Return the view for a list of jobs, which has no output in it."""
    if view.failure is None:
        return view
    return view.model_copy(update={"failure": view.failure.model_copy(update={"lines": None})})


def _endpoint_row(e: EndpointView) -> TopRowView:
    return TopRowView(
        name=e.name,
        job=e.job,
        rank=e.rank,
        endpoint=e.name,
        home=e.home,
        state=e.state,
        rx_bps=e.rx_bps,
        tx_bps=e.tx_bps,
        utilisation=e.utilisation,
        source=e.source,
        memory_bytes=e.memory_used_bytes,
        **({r.name: getattr(e.gpu, r.name) for r in OF_JOBS} if e.gpu else {}),
    )


def _gpu_cells(sample: RankSample | None) -> dict[str, Any]:
    """Return the fields that a container's sample adds to its row."""
    if sample is None:
        return {}
    known = sample.values.get
    return {
        "source": sample.source,
        "memory_bytes": known("memory_bytes"),
        **({reading.name: known(reading.name) for reading in OF_JOBS} if sample.real else {}),
    }


def _of_gpus(rows: Sequence[TopRowView]) -> dict[str, float | None]:
    """Return the readings of a job's GPUs together."""
    found = {}
    for reading in OF_JOBS:
        values = [v for row in rows if (v := getattr(row, reading.name)) is not None]
        found[reading.name] = (
            total(values) if reading.of_job == "sum" else max(values, default=None)
        )
    return found


def _conditions(
    job: JobRecord, excess: int, stalled: tuple[float, str] | None
) -> list[ConditionView]:
    placed_at = job.started_at or job.submitted_at
    conditions = [
        ConditionView(
            type="Placed",
            status=bool(job.endpoints),
            reason="Allocated" if job.endpoints else "Waiting",
            message="" if job.endpoints else shown(job.reason),
            since=placed_at,
        )
    ]
    if job.endpoints:
        conditions.append(
            ConditionView(
                type="Compact",
                status=excess == 0,
                reason="LeastSpan" if excess == 0 else "ExcessSpan",
                message=""
                if excess == 0
                else f"touches {excess} aggregator{'' if excess == 1 else 's'} too many",
                since=placed_at,
            )
        )
    if job.state == "running":
        conditions.append(
            ConditionView(
                type="Progressing",
                status=stalled is None,
                reason="Stalled" if stalled else "Running",
                message=stalled[1] if stalled else "",
                since=stalled[0] if stalled else placed_at,
            )
        )
    if job.ended:
        conditions.append(
            ConditionView(
                type="Succeeded",
                status=job.state == "completed",
                reason=job.state.capitalize(),
                message=shown(job.reason),
                since=job.finished_at or job.submitted_at,
            )
        )
    return conditions


def wait_view(job: JobRecord, queue: QueueReport) -> WaitView | None:
    """Return why a pending job waits; None until the queue has been evaluated."""
    hold = queue.holds.get(job.name)
    if hold is None:
        return None
    hint = queue.hints.get(job.name)
    return WaitView(
        position=queue.positions[job.name],
        queued=len(queue.holds),
        code=hold.code,
        reason=hold.reason,
        remedy=hold.remedy,
        reserved_at=hold.reserved_at,
        could_start_at=hold.could_start_at,
        earliest_start=hold.earliest_start,
        moves_needed=hold.moves_needed,
        plan=None
        if hint is None
        else PlanHintView(
            moves=hint.moves,
            running_moves=hint.running_moves,
            jobs_paused=list(hint.jobs),
            paused_gpus=hint.gpus,
            command=f"lightloom plan --job {job.name}",
        ),
    )


def steps_view(
    job: JobRecord, meter: StepMeter, rates: Mapping[str, float] | None
) -> StepsView | None:
    """Return the estimate of a job's step; None without rates, or while it does not run.

    ``rates`` are the rings' shares of an access link.
    """
    if rates is None or job.state != "running":
        return None
    rate = rates.get(job.name)
    known = meter.learnt(job.name)
    busy = None
    if known is not None and known.placements and rate is not None:
        step = known.predict(rate)
        busy = 1.0 / step.high if step.exact else None
    return StepsView(
        placements=known.placements if known else 0,
        ring_rate=rate,
        busy_fraction=busy,
        unidentified=list(known.unidentified) if known else ["compute_s", "ring_s", "hide"],
    )


def placement_view(job: JobRecord, scorer: Scorer) -> PlacementView | None:
    """Return the scores of a job's placement; None before it has one."""
    if not job.endpoints:
        return None
    scores, left = scorer.of(job.endpoints), scorer.left
    return PlacementView(
        span=scores.span,
        span_reachable=scores.span_reachable,
        idle=left.idle,
        largest_compact=left.largest,
        fragmentation=left.external,
        stranded=dict(left.stranded),
    )


def _unseen(job: JobRecord) -> str:
    """Return the state of a rank whose server reports no container."""
    judged = job.owner.judges or job.state not in ("running", "paused")
    return "absent" if judged else "running"


def _engine_view(told: Observed, *, freezes: bool) -> EngineJobView:
    return EngineJobView(
        engine=told.engine,
        id=told.number,
        attempt=told.attempt,
        title=shown(told.title),
        nodes=told.servers,
        leaves=told.leaves,
        curable=told.curable,
        freezes=freezes,
        problems=[shown(text) for text in told.problems],
        answered=shown(told.answered),
    )
