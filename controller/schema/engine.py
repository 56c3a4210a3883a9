"""Documents about another engine, such as Slurm, that owns the jobs of some endpoints."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from controller.schema.base import View
from controller.schema.visibility import Plain


class EngineJobView(View):
    """What another engine says of a job that it owns, and what light did for it."""

    engine: Plain
    id: Plain
    """The engine's own number of the job."""
    attempt: int = 0
    """How often the engine has restarted it."""
    title: Plain = ""
    """What its owner calls it."""
    nodes: int = 0
    """Nodes that it asks for."""
    leaves: int = 0
    """Most aggregators that it accepts; 0 says nothing."""
    curable: bool = False
    """It waits for something that light may change."""
    freezes: bool = False
    """Its processes can be frozen while light moves; else they run on."""
    problems: list[Plain] = Field(default_factory=list)
    answered: Plain = ""
    """What was done for its light when it got its endpoints."""


class AllocationAnswerView(View):
    """What was done for an allocation. Durations in seconds."""

    job: str
    id: str
    attempt: int
    verdict: Literal["go", "wait", "dark"]
    text: str
    moves: int = 0
    transaction: str = ""
    engine_s: float = 0.0
    """Asking the engine which endpoints it gave."""
    plan_s: float = 0.0
    light_s: float = 0.0
    at: float


class WaitingAnswerView(View):
    """What was done for a job in the engine's queue. Durations in seconds."""

    job: str
    text: str
    moves: int = 0
    transaction: str = ""
    plan_s: float = 0.0
    light_s: float = 0.0
    publish_s: float = 0.0
    at: float


class PublishedView(View):
    """The topology that the engine has. Times are seconds since 1970."""

    epoch: int | None = None
    """As it was read back; null when it is not lightloom's."""
    at: float | None = None
    took_s: float | None = None
    error: str = ""
    differences: list[str] = Field(default_factory=list)


class EngineView(View):
    """How it stands with the other engine."""

    kind: str
    up: bool
    since: float
    detail: str = ""
    version: str = ""
    transport: str = ""
    missing: list[str] = Field(default_factory=list)
    """Rights and parts that it lacks."""
    isolation: Literal["open", "job"]
    endpoints: int
    jobs: int
    """That hold endpoints."""
    waiting: int
    left_out: int = 0
    """Jobs of a long queue that are not watched."""
    published: PublishedView | None = None
    """Null where the topology is not published."""
    allocations: list[AllocationAnswerView] = Field(default_factory=list)
    helped: list[WaitingAnswerView] = Field(default_factory=list)
    slowest_s: float | None = None
    """Slowest of the latest answers to allocations."""


class EngineCheckView(View):
    """One line of the examination of an engine's set-up."""

    subject: str
    grade: Literal["ok", "warning", "fault"]
    found: str
    mend: str = ""


class EngineChecksView(View):
    """The examination of an engine's set-up."""

    kind: str
    ok: bool
    """No line is a fault."""
    checks: list[EngineCheckView]
