"""REST documents of live figures, logs and health."""

from __future__ import annotations

from typing import Annotated, Literal

from controller.devices.engine import LogStream
from controller.schema.base import View
from controller.schema.readings import fields, lines
from controller.schema.visibility import Internal, Message, OwnerJob, Plain, Visibility
from readings.catalogue import kept, of
from readings.reading import Object

OF_JOBS = tuple(reading for reading in of(Object.GPU) if reading.of_job)
"""The readings of GPUs that rows have; of a job their maximum or sum."""


class TopRowView(View):
    """Live figures of one job, container or endpoint."""

    name: Plain
    job: Annotated[str | None, Visibility.HOLDER] = None
    rank: Annotated[int | None, Visibility.OWN] = None
    endpoint: Plain | None = None
    home: Plain | None = None
    state: Plain
    rx_bps: Annotated[float | None, Visibility.OWN] = None
    tx_bps: Annotated[float | None, Visibility.OWN] = None
    utilisation: Annotated[float | None, Visibility.OWN] = None
    source: Annotated[str | None, Visibility.OWN] = None
    """Source of the utilisation and the figures below: ``nvml`` or ``emulated``."""
    memory_bytes: Annotated[int | None, Visibility.OWN] = None
    __annotations__ |= fields(OF_JOBS, Visibility.OWN)
    spread: dict[Plain, int] | None = None
    excess_span: int | None = None


class TopView(View):
    """The last second."""

    time: float
    epoch: int
    jobs: list[TopRowView]
    containers: list[TopRowView]
    endpoints: list[TopRowView]
    access_bps: float | None = None
    excess_span: int
    """Over all running jobs."""


class MarkerView(View):
    """A mark in a plot: a job's start, a regroup, its end."""

    time: float
    reason: Plain
    object: Annotated[str, Visibility.SUBJECT]
    message: Message


class SeriesLineView(View):
    """One container's samples; every list is as long as ``times``, None if unknown."""

    job: OwnerJob
    rank: int
    endpoint: Plain
    server: Plain
    rx_bps: list[float | None]
    tx_bps: list[float | None]
    __annotations__ |= lines(kept("telemetry"), optional=False)
    __annotations__ |= lines(kept("gpu"), optional=True)
    """None if no GPU reported anything in this time."""


class SeriesView(View):
    """At most 15 minutes of 1 Hz samples on one common grid of times."""

    interval_s: float = 1.0
    times: list[float]
    containers: list[SeriesLineView]
    markers: list[MarkerView]


class LogLineView(View):
    """One line of a container's output, or why output of a rank is not here."""

    rank: int
    time: float
    stream: LogStream
    """With ``missing`` the text says which output cannot be read, and why."""
    text: str


class DeviceHealthView(View):
    """One device or agent that the controller is connected to."""

    name: Plain
    kind: Literal["aggregator", "switch", "agent"]
    connected: bool
    message: Internal = ""


class HealthView(View):
    """The controller itself."""

    status: Literal["ok", "degraded", "starting"]
    version: Plain
    site: Plain
    epoch: int
    started_at: float
    devices: list[DeviceHealthView]
    emulated: list[Plain]
    """Emulated parts; empty on a real site."""
    store_error: Internal = ""
    """Why the last durable write failed: new work is refused until one succeeds."""
    suspect: Internal = ""
    """Why the controller doubts its own view and repairs nothing; empty if it does not."""
    strangers: Internal = ""
    """Which containers of unknown runs live, and what to do about them; empty without any."""
    older: Plain = ""
    """Why the store may be an older copy, and what to do about it; empty when it is not."""
    misplaced: Plain = ""
    """Which endpoints of jobs have their light elsewhere, as no move succeeds; empty for none."""


class PortPowerView(View):
    """Light at one port of an optical switch as measured by it; None if it is not measured."""

    switch: Plain
    port: Plain
    far: Plain
    """What is connected: an endpoint, or an aggregator's port ``as0/3``."""
    power_in_dbm: float | None
    power_out_dbm: float | None


class PowerSeriesView(View):
    """Light at one port over time; every list is as long as ``times``, None if not measured."""

    switch: Plain
    port: Plain
    far: Plain
    interval_s: float
    """15 s within a day, 5 minutes (means of the dBm) beyond."""
    times: list[float]
    power_in_dbm: list[float | None]
    power_out_dbm: list[float | None]


class HopView(View):
    """One hop on the path of an endpoint's light."""

    kind: Literal["endpoint", "switch", "aggregator"]
    at: Plain
    """``srv0/e-gpu0``, ``ocs0/1.1.1``, ``as0/3``."""
    detail: Plain = ""
    power_in_dbm: float | None = None
    power_out_dbm: float | None = None
    loss_db: float | None = None
    """Loss in the switch of the light that enters here."""


class TraceView(View):
    """The path of an endpoint's light to its aggregator."""

    endpoint: Plain
    complete: bool
    hops: list[HopView]
    loss_up_db: float | None = None
    """From the endpoint to the aggregator."""
    loss_down_db: float | None = None
    reason: Plain = ""
    """Why the path is incomplete; empty if it is complete."""
