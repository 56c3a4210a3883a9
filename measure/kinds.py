"""The contract between a type of measurement (pure) and the controller, which runs its jobs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

from measure.envelope import Body, Json, Row
from scheduler.steptime.facts import StepFacts

PROBE_IMAGE = "ll-probe:latest"
TORCH_IMAGE = "ll-torch:latest"
PROBE_PATH = "/lightloom/probe"
"""Where agents show the files of the package ``probe`` to every rank, read-only."""
PROBE_ENV = {"PYTHONPATH": "/lightloom"}
"""Makes ``python3 -m probe.links`` find the package."""


class SettingsError(ValueError):
    """A setting that is wrong: its name, why, and what to do."""

    def __init__(self, setting: str, message: str, hint: str = "") -> None:
        super().__init__(f"{setting}: {message}")
        self.setting = setting
        self.message = message
        self.hint = hint


@dataclass(slots=True, frozen=True)
class MeasuredEndpoint:
    """An endpoint that a measurement may use."""

    endpoint: str
    server: str
    home: str
    """Its aggregator when the measurement starts."""


@dataclass(slots=True, frozen=True)
class MeasuredSite:
    """What is known of the site before anything is measured. Rates are bit/s of one direction."""

    places: Sequence[MeasuredEndpoint]
    access_bps: float | None = None
    inter_aggregator_bps: float | None = None
    links: Mapping[frozenset[str], int] = field(default_factory=dict)
    """Parallel links per pair of aggregators."""
    free_ports: Mapping[str, int] = field(default_factory=dict)
    """Per aggregator: ports that idle endpoints could be moved to, ports of ``places`` included."""
    emulated: bool = False
    fits: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    """Links as measured, by class: latency in s, goodput in bytes/s (``LinkModel``)."""
    ring_share: float = 1.0
    """Share of a link's goodput that a measured ring got."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Run:
    """One job of a measurement. The controller runs them in order."""

    command: Sequence[str]
    endpoints: Sequence[str]
    """In rank order."""
    label: str = ""
    """What distinguishes it from the others, for progress and errors."""
    homes: Mapping[str, str] = field(default_factory=dict)
    """Where its endpoints are moved to first; empty leaves them. Put back at the end."""
    together: int = 0
    """Consecutive runs with the same number above 0 run at the same time."""
    image: str = ""
    """Empty: the controller's default image."""
    env: Mapping[str, str] = field(default_factory=dict)
    cpu: float | None = None
    memory_bytes: int | None = None
    io_bps: int | None = None
    volumes: Sequence[tuple[str, str, bool]] = ()
    """Name, path and whether it is read-only."""
    project: str = ""
    """Empty: the project of the measurement."""
    record: str = "off"
    """``counts`` where the measurement needs the recorder of communication."""
    timeout_s: float = 600.0
    """The controller ends the run then; what it printed before counts."""


@dataclass(slots=True, frozen=True)
class Line:
    """A line of JSON (an object) that a rank of a run printed."""

    run: int
    """Position in the list of runs."""
    rank: int
    record: Row


@dataclass(slots=True, frozen=True)
class RunEnd:
    """How a run ended."""

    completed: bool
    reason: str = ""
    """Why it did not complete, or that its time limit ended it: its lines until then count."""
    job: str = ""
    """The name of its job; empty if it never had one."""
    homes: Mapping[str, str | None] = field(default_factory=dict)
    started_at: float | None = None
    finished_at: float | None = None
    facts: StepFacts | None = None
    """Its steps from its recording; None without one."""


@dataclass(slots=True, frozen=True)
class Progress:
    """How far a measurement is."""

    done: int
    total: int
    text: str = ""


class MeasurementKind(Protocol):
    """One type of measurement. Pure: randomness comes from ``seed``."""

    @property
    def name(self) -> str:
        """The type: ``links``."""
        ...

    def settings(self, given: Mapping[str, Json], fabric: MeasuredSite) -> Row:
        """Return all settings with their defaults. Raises SettingsError."""
        ...

    def runs(self, settings: Row, fabric: MeasuredSite, seed: int) -> Sequence[Run]:
        """Return the jobs to run. Raises SettingsError when the endpoints do not suffice."""
        ...

    def progress(self, settings: Row, fabric: MeasuredSite, lines: Sequence[Line]) -> Progress:
        """Return how far the measurement is, from the lines so far."""
        ...

    def body(
        self,
        settings: Row,
        fabric: MeasuredSite,
        seed: int,
        lines: Sequence[Line],
        ends: Sequence[RunEnd],
    ) -> Body:
        """Compute the result. Lines may be missing, repeated or wrong: a job wrote them."""
        ...


@runtime_checkable
class Importing(Protocol):
    """A kind that reads the files of other tools as well."""

    @property
    def imports(self) -> Mapping[str, Callable[[str], Body]]:
        """Readers of tools' files, by the tool's name. They raise SettingsError."""
        ...


@runtime_checkable
class Tabled(Protocol):
    """A kind whose results people read in another form than the general tables."""

    def table(self, result: Row) -> str:
        """Return a result (the envelope as JSON) as lines of text."""
        ...


@runtime_checkable
class Continuing(Protocol):
    """A kind that decides on further runs from what the first ones found."""

    def more(
        self,
        settings: Row,
        fabric: MeasuredSite,
        seed: int,
        lines: Sequence[Line],
        ends: Sequence[RunEnd],
    ) -> Sequence[Run]:
        """Return runs that follow those so far, whose ends are all in ``ends``; none when done.

        The controller calls it again after they have ended, until it returns none. The positions
        of ``Line.run`` count on.
        """
        ...
