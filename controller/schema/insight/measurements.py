"""REST documents of measurements."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field

from controller.schema.base import Name, RequestModel, View
from controller.schema.visibility import Plain, Visibility

MeasurementType = Literal["links", "collectives", "scaling", "storage", "input", "compare"]
MeasurementState = Literal["pending", "running", "completed", "failed", "cancelled"]


class MeasurementRequest(RequestModel):
    """A measurement on idle endpoints."""

    most_parts = 20_000

    type: MeasurementType
    endpoints: list[Name] = Field(default_factory=list)
    """Exactly these, in rank order; all that are idle, lit and fit if empty."""
    homes: dict[str, Name] = Field(default_factory=dict)
    """Where endpoints are moved first, by a transaction; they are put back at the end."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """As the type has them; docs/measure.md lists them."""
    seed: int = Field(default=1, ge=0, lt=2**63)
    project: Name = "default"
    """Of its jobs."""
    dry_run: bool = False
    """Show the runs; start nothing."""


class MeasurementImport(RequestModel):
    """The result of another tool, to be kept as a measurement."""

    most_parts = 200_000

    type: Literal["links", "collectives", "storage"]
    tool: Name
    """``nccl-tests``, ``osu``, ``perftest``, ``fio``."""
    text: str = Field(max_length=4_000_000)
    """The file as the tool wrote it."""


class ProgressView(View):
    """How far a measurement is."""

    done: int
    total: int
    text: Plain = ""


class RunView(View):
    """One job of a measurement."""

    job: Plain = ""
    """Empty before it is submitted."""
    label: Plain = ""
    endpoints: list[Plain]
    homes: dict[Plain, Plain | None] = Field(default_factory=dict)


class EnvironmentView(View):
    """Where it ran."""

    image: Plain = ""
    mtu: int | None = None
    kernel: Plain = ""
    cores: int | None = None
    load_1m: float | None = None
    others_on_links_bps: float | None = None


class ToolView(View):
    """The program that measured."""

    name: Plain
    version: Plain = ""


class ResultView(View):
    """The envelope: docs/measure.md has the rows of each type."""

    kind: Literal["measurement"] = "measurement"
    version: int = 1
    type: Plain
    id: Plain
    jobs: list[Plain]
    source: Plain
    """``emulated``, ``measured`` or ``imported``."""
    started_at: float
    finished_at: float
    fabric_epoch: int
    endpoints: list[Plain]
    homes: dict[Plain, Plain | None]
    settings: Annotated[dict[str, Any], Visibility.ALL]
    seed: int
    tool: ToolView
    environment: EnvironmentView
    rows: Annotated[list[dict[str, Any]], Visibility.ALL]
    groups: Annotated[list[dict[str, Any]], Visibility.ALL]
    anomalies: Annotated[list[dict[str, Any]], Visibility.ALL]
    fits: Annotated[list[dict[str, Any]], Visibility.ALL]
    summary: Annotated[dict[str, Any], Visibility.ALL]
    valid: bool
    invalid_because: list[Plain]


class MeasurementView(View):
    """One measurement; ``result`` is null in lists and until it has ended."""

    id: Plain
    type: Plain
    state: MeasurementState
    reason: Plain = ""
    """Why it is in this state."""
    user: Plain = ""
    project: Annotated[str, Visibility.PROJECT] = "default"
    submitted_at: float
    started_at: float | None = None
    finished_at: float | None = None
    endpoints: list[Plain]
    progress: ProgressView | None = None
    runs: list[RunView] = Field(default_factory=list)
    valid: bool | None = None
    """Null until it has ended."""
    invalid_because: list[Plain] = Field(default_factory=list)
    result: ResultView | None = None
