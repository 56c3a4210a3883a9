"""Documents of the event stream besides events: samples, changes, transactions in progress."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from controller.schema.base import View
from controller.schema.plans import CircuitChangesView, TransactionView
from controller.schema.visibility import OwnerJob, Plain, Visibility


class JobSampleView(View):
    """One second of one job."""

    name: OwnerJob
    rx_bps: float | None
    tx_bps: float | None
    utilisation: float | None


class ContainerSampleView(View):
    """One second of one container."""

    job: OwnerJob
    rank: int
    endpoint: Plain
    rx_bps: float | None
    tx_bps: float | None
    utilisation: float | None
    source: Plain | None
    """Where the utilisation comes from: ``nvml`` or ``emulated``."""


class LinkSampleView(View):
    """One second of one aggregator port, as the port sees it."""

    device: str
    port: int
    rx_bps: float | None
    tx_bps: float | None


class SampleView(View):
    """One second of all that runs."""

    time: float
    jobs: list[JobSampleView]
    containers: list[ContainerSampleView]
    links: Annotated[list[LinkSampleView], Visibility.ALL_PROJECTS]


ChangedKind = Literal[
    "job", "endpoint", "aggregator", "switch", "node", "quarantine", "measurement"
]


class ChangedView(View):
    """An object has changed: read it again.

    A ``switch`` also stands for its circuits and the light at its ports, a ``node`` for its
    containers.
    """

    kind: ChangedKind
    name: Plain
    """Empty if many of the kind changed at once: read the list. Always empty for a ``measurement``
    where the reader does not see all projects."""
    epoch: int


class TransactionFrameView(TransactionView):
    """A transaction in progress: its view and the circuits it changes."""

    circuits: CircuitChangesView = Field(default_factory=CircuitChangesView)
    waits_for: Annotated[str, Visibility.ALL_PROJECTS] = ""
    """What the present phase waits for; the same as ``waiting_for``."""


class ResyncView(View):
    """Frames were missed: read the lists again, then continue with the stream."""

    reason: Plain
