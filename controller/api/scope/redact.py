"""Redacts views for the readers of some projects. Pure: other jobs are left out or blanked."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from controller.people.authz import ALL_PROJECTS, Owned
from controller.schema.base import View
from controller.schema.checkpoints import (
    CheckpointsView,
    DrainView,
    IntervalView,
    RecoveriesView,
    VerificationView,
)
from controller.schema.fabric import (
    AggregatorView,
    CircuitView,
    EndpointView,
    EventView,
    NodeView,
    OpticsView,
    SwitchView,
)
from controller.schema.insight.advice import AdviceView, FindingView, PredictionView, WhatIfView
from controller.schema.insight.comms import CommsView
from controller.schema.insight.measurements import MeasurementView
from controller.schema.jobs import ContainerView, FailureView, JobView, WaitView
from controller.schema.live import (
    OF_JOBS,
    HealthView,
    MarkerView,
    PortPowerView,
    PowerSeriesView,
    SeriesView,
    TopRowView,
    TopView,
    TraceView,
)
from controller.schema.plans import QuarantineView, TransactionView
from controller.schema.stream import ChangedView, SampleView, TransactionFrameView
from controller.schema.usage import UsageView
from controller.schema.volumes import DataRemovalView, VolumeView
from controller.stream.feed import Frame, Payload

_JOB = re.compile(r"\b(jobs?[ /])([a-z0-9][a-z0-9-]*)")
"""A job as the controller's messages name it."""
_CONTAINER = re.compile(r"\bll-(?:c-)?([a-z0-9][a-z0-9-]*)-\d+-\d+\b")
_ADDRESS = re.compile(r"\S+://\S+|\b\d{1,3}(?:\.\d{1,3}){3}(?::\d{1,5})?\b")
_OPEN = frozenset({"job", "transaction", "endpoint"})
"""Kinds of objects whose events a reader of all projects sees; the others are devices."""
ANOTHER = "another project's job"
AnyView = TypeVar("AnyView", bound=View)
AnyTransaction = TypeVar("AnyTransaction", bound=TransactionView)
Told = TypeVar("Told", EventView, MarkerView)


@dataclass(slots=True, frozen=True)
class Redactor:
    """What a reader may see: jobs of some projects, and no messages of devices."""

    projects: frozenset[str]
    """The reader's projects; ``*`` is all."""
    whose: Mapping[str, Owned]
    """Every known job by name, also jobs that ended."""

    def view(self, view: AnyView) -> AnyView | None:
        """Return the visible part of a view, None for nothing. TypeError for one without a rule.

        Views of checkpoints, recoveries and advice are those of own jobs: who asks has checked it.
        """
        rule = RULES.get(type(view))
        if rule is None:
            raise TypeError(f"no rule says who may see a {type(view).__name__}")
        shown: AnyView | None = rule(self, view)
        return shown

    @property
    def whole(self) -> bool:
        """True if no job is hidden: only messages of devices are removed."""
        return ALL_PROJECTS in self.projects

    def owns(self, job: str | None) -> bool:
        """Whether a job is the reader's; for a reader of all projects always true."""
        if self.whole:
            return True
        known = self.whose.get(job) if job is not None else None
        return known is not None and known.project in self.projects

    def text(self, text: str) -> str:
        """Return ``text`` without names of other projects' jobs and addresses of devices.

        Users' jobs are named ``<project>-…``: such a name is removed whether or not that job
        exists, so that a text which a user can influence reveals nothing.
        """
        if not text:
            return text
        text = _ADDRESS.sub("an address", text)
        if self.whole:
            return text
        text = _CONTAINER.sub(lambda m: m[0] if self.owns(m[1]) else "another container", text)
        return _JOB.sub(lambda m: ANOTHER if self._foreign(m[2]) else m[0], text)

    def _foreign(self, name: str) -> bool:
        return not self.owns(name) and ("-" in name or name in self.whose)

    def job(self, job: JobView) -> JobView | None:
        """Return an own job, None for another; what it waits for may belong to another project."""
        if not self.whole and job.project not in self.projects:
            return None
        conditions = [
            c.model_copy(update={"message": self.text(c.message)}) if c.message else c
            for c in job.conditions
        ]
        changes = {
            "reason": self.text(job.reason),
            "conditions": conditions,
            "wait": self._wait(job.wait) if job.wait else None,
            "failure": self._failure(job.failure) if job.failure else None,
        }
        return job.model_copy(update=changes)

    def _failure(self, failure: FailureView) -> FailureView:
        """Return why an own job failed; its own output is left as it is."""
        texts = ("cause", "others", "unread")
        return failure.model_copy(update={t: self.text(getattr(failure, t)) for t in texts})

    def _wait(self, wait: WaitView) -> WaitView:
        plan = wait.plan
        if plan is not None:
            paused = [name for name in plan.jobs_paused if self.owns(name)]
            plan = plan.model_copy(update={"jobs_paused": paused})
        texts = {"reason": self.text(wait.reason), "remedy": self.text(wait.remedy)}
        return wait.model_copy(update={**texts, "plan": plan})

    def advice(self, view: AdviceView) -> AdviceView:
        """Return advice on own jobs."""
        findings = [self.finding(finding) for finding in view.findings]
        return view.model_copy(update={"findings": findings})

    def finding(self, view: FindingView) -> FindingView:
        """Return advice on an own job; what it says may name another project's job."""
        return view.model_copy(
            update={
                "text": self.text(view.text),
                "evidence": [self.text(text) for text in view.evidence],
                "remedy": self.text(view.remedy),
            }
        )

    def checkpoints(self, view: CheckpointsView) -> CheckpointsView:
        """Return the checkpoints of an own job; what they say may name another project's job."""
        steps = [
            step.model_copy(update={"why": self.text(step.why)}) if step.why else step
            for step in view.steps
        ]
        texts = ("restore_why", "unprotected_why")
        changes = {name: self.text(getattr(view, name)) for name in texts}
        return view.model_copy(update={**changes, "steps": steps})

    def interval(self, view: IntervalView) -> IntervalView:
        """Return how often an own job should write; the reason may name another project's job."""
        return view.model_copy(update={"why": self.text(view.why)})

    def recoveries(self, view: RecoveriesView) -> RecoveriesView:
        """Return the recoveries of an own job; a spare may have been another project's."""
        found = [r.model_copy(update={"why": self.text(r.why)}) for r in view.recoveries]
        return view.model_copy(update={"recoveries": found})

    def drain(self, view: DrainView) -> DrainView:
        """Remove other jobs from what is drained."""
        jobs = {job: self.text(why) for job, why in view.jobs.items() if self.owns(job)}
        return view.model_copy(update={"jobs": jobs})

    def container(self, view: ContainerView) -> ContainerView | None:
        """Return an own container, without other jobs in its agent's message; None for others."""
        if not self.owns(view.job):
            return None
        return view.model_copy(update={"reason": self.text(view.reason)}) if view.reason else view

    def endpoint(self, view: EndpointView) -> EndpointView:
        """Blank the job of an endpoint and its figures, if the job is hidden."""
        if self.owns(view.job):
            texts = {"reason": self.text(view.reason), "unfit": self.text(view.unfit)}
            return view.model_copy(update=texts) if view.reason or view.unfit else view
        return view.model_copy(
            update={
                "job": None,
                "rank": None,
                "reason": "",
                "rx_bps": None,
                "tx_bps": None,
                "utilisation": None,
                "source": None,
                "memory_used_bytes": None,
                "gpu": None,
                "unfit": "",
            }
        )

    def aggregator(self, view: AggregatorView) -> AggregatorView:
        """Remove other jobs and the traffic of their ports."""
        if self.whole:
            return view
        blank = {"rx_bps": None, "tx_bps": None, "readings": None}
        held = {e for job in view.jobs if self.owns(job) for e in self._held(job)}
        ports = [
            port if port.endpoint in held else port.model_copy(update=blank) for port in view.ports
        ]
        jobs = [job for job in view.jobs if self.owns(job)]
        return view.model_copy(update={"ports": ports, "jobs": jobs})

    def switch(self, view: SwitchView) -> SwitchView:
        """Blank the device's address: only the controller needs it."""
        return view.model_copy(update={"url": "", "error": ""})

    def optics(self, view: OpticsView) -> OpticsView:
        """Return the health of ports, without the operator's labels and the alarms."""
        ports = [port.model_copy(update={"label": ""}) for port in view.ports]
        return view.model_copy(update={"ports": ports, "alarms": []})

    def quarantine(self, view: QuarantineView) -> QuarantineView:
        """Return what is out of use, without the reason."""
        return view.model_copy(update={"reason": "out of use"})

    def measurement(self, view: MeasurementView) -> MeasurementView | None:
        """Return a measurement of an own project, None for others."""
        return view if self.whole or view.project in self.projects else None

    def node(self, view: NodeView, containers: int) -> NodeView:
        """Blank the agent's address, remove other jobs and what they do to the server."""
        jobs = [job for job in view.jobs if self.owns(job)]
        blank = {"agent": "", "readings": None}
        return view.model_copy(update={**blank, "jobs": jobs, "containers": containers})

    def volume(self, view: VolumeView) -> VolumeView | None:
        """Return a volume that own projects may use, with their data; None for another one."""
        if self.whole:
            return view.model_copy(update={"problem": self.text(view.problem)})
        data = [entry for entry in view.data if entry.project in self.projects]
        projects = [name for name in view.projects if name in self.projects]
        if view.projects and not projects and not data:
            return None
        texts = {"problem": self.text(view.problem)}
        return view.model_copy(update={**texts, "data": data, "projects": projects})

    def health(self, view: HealthView) -> HealthView:
        """Blank the devices' own messages."""
        devices = [d.model_copy(update={"message": ""}) for d in view.devices]
        hidden = {"store_error": "", "suspect": "", "strangers": ""}
        return view.model_copy(update={"devices": devices, **hidden})

    def _held(self, job: str) -> tuple[str, ...]:
        known = self.whose.get(job)
        return known.endpoints if known is not None and known.holding else ()

    def event(self, view: EventView) -> EventView | None:
        """Return an event about an own job, None for others; events of devices are hidden."""
        kind, _, name = view.object.partition("/")
        if not (kind == "job" and self.owns(name)) and not (self.whole and kind in _OPEN):
            return None
        return self._redacted(view)

    def _redacted(self, view: Told) -> Told:
        message = self.text(view.message)
        same = message == view.message
        return view if same else view.model_copy(update={"message": message})

    def marker(self, view: MarkerView) -> MarkerView | None:
        """Return a marker of an own job; None for any other."""
        kind, _, name = view.object.partition("/")
        if not (kind == "job" and self.owns(name)) and not self.whole:
            return None
        return self._redacted(view)

    def top(self, view: TopView) -> TopView:
        """Return the rows of own jobs; rows of endpoints without other jobs."""
        jobs = [row for row in view.jobs if self.owns(row.name)]
        return view.model_copy(
            update={
                "jobs": jobs,
                "containers": [row for row in view.containers if self.owns(row.job)],
                "endpoints": [self._row(row) for row in view.endpoints],
                "excess_span": sum(row.excess_span or 0 for row in jobs),
            }
        )

    def _row(self, row: TopRowView) -> TopRowView:
        if self.owns(row.job):
            return row
        blank = ("job", "rank", "rx_bps", "tx_bps", "utilisation", "source", "memory_bytes")
        measured = (reading.name for reading in OF_JOBS)
        return row.model_copy(update=dict.fromkeys((*blank, *measured)))

    def series(self, view: SeriesView) -> SeriesView:
        """Return the lines and markers of own jobs."""
        markers = [self.marker(m) for m in view.markers]
        return view.model_copy(
            update={
                "containers": [line for line in view.containers if self.owns(line.job)],
                "markers": [m for m in markers if m is not None],
            }
        )

    def transaction(self, view: AnyTransaction) -> AnyTransaction | None:
        """Return the part of a transaction that moves own jobs, None if it moves none."""
        if self.whole:
            texts = {"error": self.text(view.error), "result": self.text(view.result)}
            return view.model_copy(update=texts) if view.error or view.result else view
        jobs = [job for job in view.jobs if self.owns(job)]
        if not jobs:
            return None
        mine = frozenset(e for job in jobs for e in self.whose[job].endpoints)
        moves = [move for move in view.moves if move.endpoint in mine]
        dark = {e: s for e, s in view.dark_time_s.items() if e in mine}
        changes: dict[str, object] = {
            "jobs": jobs,
            "moves": moves,
            "dark_time_s": dark,
            "plan_id": None,
            "result": self.text(view.result),
            "waiting_for": "",
            "warnings": [],
            "error": self.text(view.error) if len(jobs) == len(view.jobs) else "",
            "quarantined_ports": [],
            "how_to_stop": "",
        }
        if isinstance(view, TransactionFrameView):
            changes["waits_for"] = ""
            changes["circuits"] = view.circuits.model_copy(
                update={
                    "break_": [s for s in view.circuits.break_ if s.endpoint in mine],
                    "make": [s for s in view.circuits.make if s.endpoint in mine],
                }
            )
        return view.model_copy(update=changes)

    def frame(self, item: Frame) -> Frame | None:
        """Return the visible part of one message of the live feed."""
        shown = self._payload(item.data)
        if shown is None or shown is item.data:
            return item if shown is not None else None
        return Frame(item.type, shown, item.id)

    def _payload(self, data: Payload) -> Payload | None:
        match data:
            case SampleView():
                return data if self.whole else self._sample(data)
            case EventView():
                return self.event(data)
            case ChangedView(kind="job", name=name):
                return data if name == "" or self.owns(name) else None
            case ChangedView(kind="measurement"):
                return data if self.whole else data.model_copy(update={"name": ""})
            case TransactionFrameView():
                return self.transaction(data)
            case _:
                return data

    def _sample(self, sample: SampleView) -> SampleView:
        return SampleView(
            time=sample.time,
            jobs=[job for job in sample.jobs if self.owns(job.name)],
            containers=[c for c in sample.containers if self.owns(c.job)],
            links=[],
        )


def _open(_: Redactor, view: AnyView) -> AnyView:
    """Return a view that reveals nothing of jobs, or only what was asked for own projects."""
    return view


RULES: Mapping[type[View], Callable[[Redactor, Any], Any]] = {
    AdviceView: Redactor.advice,
    AggregatorView: Redactor.aggregator,
    CheckpointsView: Redactor.checkpoints,
    CircuitView: _open,
    CommsView: _open,
    ContainerView: Redactor.container,
    DataRemovalView: _open,
    DrainView: Redactor.drain,
    EndpointView: Redactor.endpoint,
    EventView: Redactor.event,
    HealthView: Redactor.health,
    IntervalView: Redactor.interval,
    JobView: Redactor.job,
    MeasurementView: Redactor.measurement,
    OpticsView: Redactor.optics,
    PortPowerView: _open,
    PowerSeriesView: _open,
    PredictionView: _open,
    QuarantineView: Redactor.quarantine,
    RecoveriesView: Redactor.recoveries,
    SeriesView: Redactor.series,
    SwitchView: Redactor.switch,
    TopView: Redactor.top,
    TraceView: _open,
    TransactionView: Redactor.transaction,
    UsageView: _open,
    VerificationView: _open,
    VolumeView: Redactor.volume,
    WhatIfView: _open,
}
"""What callers see who belong to some projects only; a view without a rule is shown to none."""
