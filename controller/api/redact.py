"""Views cut down to some jobs. Pure: what is not the reader's own is left out or blanked."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from controller.authz import Owned, Principal
from controller.feed import Frame, frame
from controller.views import (
    AggregatorView,
    EndpointView,
    EventView,
    HealthView,
    JobView,
    NodeView,
    SeriesView,
    SwitchView,
    TopRowView,
    TopView,
    TransactionView,
)
from controller.views_stream import ChangedView, SampleView, TransactionFrameView

_JOB_WORD = re.compile(r"\bjob[ /]([a-z0-9-]{1,63})")
AnyTransaction = TypeVar("AnyTransaction", bound=TransactionView)


@dataclass(slots=True, frozen=True)
class Redactor:
    """What belongs to the reader now."""

    own: Mapping[str, tuple[str, ...]]
    """Own jobs and the endpoints they got, also those that ended."""
    hidden: frozenset[str]
    endpoints: frozenset[str]
    """Those that own jobs hold now."""

    @classmethod
    def of(cls, principal: Principal, owners: Iterable[Owned]) -> Redactor:
        """Return what cuts views down to what ``principal`` may see."""
        own: dict[str, tuple[str, ...]] = {}
        hidden: list[str] = []
        held: list[str] = []
        for job in owners:
            if not principal.sees(job.project):
                hidden.append(job.job)
                continue
            own[job.job] = job.endpoints
            if job.holding:
                held += job.endpoints
        return cls(own, frozenset(hidden), frozenset(held))

    def owns(self, job: str | None) -> bool:
        """Whether a job is the reader's."""
        return job in self.own

    def text(self, text: str) -> str:
        """Return ``text`` without the names of other projects' jobs."""
        return _JOB_WORD.sub(
            lambda m: "another project's job" if m.group(1) in self.hidden else m.group(0), text
        )

    def job(self, job: JobView) -> JobView:
        """Return an own job; what it waits for may be somebody else's."""
        if not self.hidden:
            return job
        conditions = [
            c.model_copy(update={"message": self.text(c.message)}) for c in job.conditions
        ]
        return job.model_copy(update={"reason": self.text(job.reason), "conditions": conditions})

    def endpoint(self, view: EndpointView) -> EndpointView:
        """Blank whose it is and what it does."""
        if self.owns(view.job):
            return view
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
        """Blank other jobs and the traffic of their ports."""
        blank = {"rx_bps": None, "tx_bps": None}
        ports = [
            port if port.endpoint in self.endpoints else port.model_copy(update=blank)
            for port in view.ports
        ]
        jobs = [job for job in view.jobs if self.owns(job)]
        return view.model_copy(update={"ports": ports, "jobs": jobs})

    def switch(self, view: SwitchView) -> SwitchView:
        """Blank the device's address: only the controller speaks to it."""
        return view.model_copy(update={"url": "", "error": ""})

    def node(self, view: NodeView, containers: int) -> NodeView:
        """Blank the agent's address and other jobs."""
        jobs = [job for job in view.jobs if self.owns(job)]
        return view.model_copy(update={"agent": "", "jobs": jobs, "containers": containers})

    def health(self, view: HealthView) -> HealthView:
        """Blank the devices' own words."""
        devices = [d.model_copy(update={"message": ""}) for d in view.devices]
        hidden = {"store_error": "", "suspect": "", "strangers": ""}
        return view.model_copy(update={"devices": devices, **hidden})

    def event(self, view: EventView) -> bool:
        """Whether an event is about an own job."""
        kind, _, name = view.object.partition("/")
        return kind == "job" and self.owns(name)

    def top(self, view: TopView) -> TopView:
        """Return the rows of own jobs, and endpoints without the others'."""
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
        return row.model_copy(update=dict.fromkeys((*blank, "temperature_c", "power_w")))

    def series(self, view: SeriesView) -> SeriesView:
        """Return the lines and markers of own jobs."""
        own = {f"job/{name}" for name in self.own}
        return view.model_copy(
            update={
                "containers": [line for line in view.containers if self.owns(line.job)],
                "markers": [m for m in view.markers if m.object in own],
            }
        )

    def transaction(self, view: AnyTransaction) -> AnyTransaction | None:
        """Return the part of a transaction that moves own jobs, None when there is none."""
        jobs = [job for job in view.jobs if self.owns(job)]
        if not jobs:
            return None
        mine = frozenset(e for job in jobs for e in self.own[job])
        moves = [move for move in view.moves if move.endpoint in mine]
        dark = {e: s for e, s in view.dark_time_s.items() if e in mine}
        changes: dict[str, object] = {
            "jobs": jobs,
            "moves": moves,
            "dark_time_s": dark,
            "plan_id": None,
            "waiting_for": "",
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
        """Return what a reader may see of one message of the live feed."""
        match item.data:
            case SampleView() as sample:
                cut = SampleView(
                    time=sample.time,
                    jobs=[j for j in sample.jobs if self.owns(j.name)],
                    containers=[c for c in sample.containers if self.owns(c.job)],
                    links=[],
                )
                return frame("sample", cut)
            case EventView() as event:
                return item if self.event(event) else None
            case ChangedView() as changed:
                mine = changed.kind != "job" or changed.name == "" or self.owns(changed.name)
                return item if mine else None
            case TransactionFrameView() as moving:
                shown = self.transaction(moving)
                return frame("transaction", shown, item.id) if shown is not None else None
            case _:
                return item
