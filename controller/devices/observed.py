"""The observed engine: a scheduler beside lightloom that owns the jobs of some endpoints.

Slurm (later Kubernetes) queues, starts and ends these jobs. lightloom watches them, moves light
under their endpoints, freezes their processes for the dark time, and publishes to the engine
which endpoints are near each other now. The implementation is :mod:`controller.devices.slurm`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal, Protocol

from scheduler.model import Locality, Policy


class Turn(StrEnum):
    """Where the engine is with a job."""

    WAITS = "waits"
    ALLOCATED = "allocated"
    """It has its endpoints; nothing runs on them yet."""
    RUNNING = "running"
    ENDED = "ended"


class Verdict(StrEnum):
    """lightloom's answer to the engine, and through it to the user, about a job."""

    GO = "go"
    """Its light is as good as it gets: start it."""
    WAIT = "wait"
    DARK = "dark"
    """It may start without a path between its endpoints: lightloom could not help in time."""


End = Literal["completed", "failed", "cancelled"]


@dataclass(slots=True, frozen=True, kw_only=True)
class JobNeeds:
    """What a job asks for. Its owner wrote a part of it: checked by the engine's adapter."""

    count: int
    """Endpoints; 0 for a job that uses none."""
    servers: int
    """Nodes of the engine that they are spread over."""
    leaves: int = 0
    """Most aggregators that it accepts (Slurm: ``--switches``); 0 sets no limit."""
    locality: Locality | None = None
    """None leaves this and the next two to the site."""
    policy: Policy | None = None
    dark_tolerance_s: float | None = None
    pinned: bool = False
    """Its light must not be moved once it runs."""
    time_limit_s: float | None = None
    problems: tuple[str, ...] = ()
    """Wishes that were not understood, in words for their owner."""


@dataclass(slots=True, frozen=True, kw_only=True)
class EngineJob:
    """One job as the engine has it now. Texts are clipped; times are seconds since 1970."""

    key: str
    """``slurm:4711``: never used again by another job."""
    attempt: int
    """How often the engine has started it again; the first start is 0."""
    revision: str
    """Changes with all that a move of its light depends on: attempt, turn, end, endpoints."""
    turn: Turn
    wants: JobNeeds
    name: str = ""
    """What its owner calls it."""
    user: str = ""
    endpoints: tuple[str, ...] = ()
    """In rank order; empty while it waits."""
    strangers: tuple[str, ...] = ()
    """Nodes of its allocation that the site file does not map to endpoints."""
    scope: str = ""
    """Names its processes to the agents (``slurm:4711``); empty when they cannot be frozen."""
    reason: str = ""
    """The engine's reason why it waits, or how it ended."""
    curable: bool = False
    """It waits for something that light may change; the model decides whether it does."""
    ahead: int = 0
    """Its position in the engine's queue, the first is 0."""
    submitted_at: float = 0.0
    started_at: float | None = None
    ended_at: float | None = None
    end: End = "completed"
    """How it ended; of no meaning before."""
    exit_code: int | None = None
    suspended: bool = False
    ending: bool = False
    """The engine ends its processes: no move of its light is of use any more."""


@dataclass(slots=True, frozen=True)
class JobChanges:
    """The engine's jobs: all of them, or those that have changed since the batch before."""

    seen: tuple[EngineJob, ...]
    complete: bool
    """A job that is missing from a complete batch has ended."""


@dataclass(slots=True, frozen=True)
class Published:
    """Which of the engine's endpoints are near each other; always all of them."""

    epoch: int
    leaves: Mapping[str, tuple[str, ...]]
    """Aggregator -> endpoints under it; those that are dark are under none."""
    dark: tuple[str, ...] = ()


@dataclass(slots=True, frozen=True)
class ReadBack:
    """What the engine has of a published topology, as it was read back."""

    epoch: int | None
    """Of the topology that the engine has; None when it is not one of lightloom's."""
    differences: tuple[str, ...] = ()
    """In words; empty when the engine has what was published."""
    unknown: tuple[str, ...] = ()
    """Nodes of the site file that the engine lacks; they are not published."""


@dataclass(slots=True, frozen=True)
class Reach:
    """Whether the engine answers. ``since`` is seconds since 1970."""

    up: bool
    since: float
    detail: str = ""
    """Why it does not answer; empty when it does."""
    version: str = ""
    transport: str = ""
    missing: tuple[str, ...] = ()
    """Rights and parts that it lacks, in words: what lightloom cannot do without them."""


@dataclass(slots=True, frozen=True)
class SetupCheck:
    """One line of the examination of an engine's set-up."""

    subject: str
    """``version``, ``rights``, ``topology``, ``node gpu0``."""
    grade: Literal["ok", "warning", "fault"]
    found: str
    mend: str = ""
    """What to do; empty when it is ok."""


class ObservedError(Exception):
    """A call to the engine that failed.

    Codes: ``unavailable`` (it does not answer), ``timeout`` (outcome unknown: read back before
    trying again), ``forbidden`` (a right or the token is missing), ``conflict`` (a foreign file, or
    the job has changed), ``invalid`` (the engine's answer or set-up cannot be understood).
    """

    def __init__(self, code: str, obj: str, message: str, hint: str = "") -> None:
        super().__init__(f"{obj}: {message}")
        self.code = code
        self.obj = obj
        self.message = message
        self.hint = hint


class ObservedEngine(Protocol):
    """Watches another scheduler's jobs. Every call has a time limit and is idempotent."""

    @property
    def kind(self) -> str:
        """``slurm``: the first part of its jobs' keys."""
        ...

    @property
    def endpoints(self) -> frozenset[str]:
        """The endpoints that are the engine's; no other job gets them."""
        ...

    @property
    def restarts_to_publish(self) -> bool:
        """Whether it reads a topology only by a restart: that holds up what begins or ends then."""
        ...

    async def ends_jobs(self) -> bool:
        """Whether processes of any job, also of one without endpoints, still end. ObservedError."""
        ...

    def changes(self) -> AsyncIterator[JobChanges]:
        """Yield everything first, then what changed, without end.

        Never raises for an engine that is away: it goes on when that answers again, with a
        complete batch.
        """
        ...

    async def read_job(self, key: str) -> EngineJob | None:
        """Return one job as it is now; None when the engine has no such job. ObservedError."""
        ...

    async def still(self, key: str, revision: str) -> bool:
        """Whether a job is as it was at ``revision``: asked before light moves. ObservedError."""
        ...

    async def answer(self, key: str, verdict: Verdict, text: str) -> None:
        """Send the engine and the job's owner the decision. ObservedError.

        ``text`` is shown to the owner. A job that has gone meanwhile is not an error.
        """
        ...

    async def publish(self, topology: Published) -> ReadBack:
        """Give the engine the topology, whole, and read it back. ObservedError.

        The engine never has a part of it; what it had before stays when this fails. A topology
        that the engine has already is not written again.
        """
        ...

    def reach(self) -> Reach:
        """Return whether the engine answers, from the latest calls."""
        ...

    async def check(self) -> tuple[SetupCheck, ...]:
        """Examine versions, rights, plugins, hooks and the map of nodes; never raises."""
        ...

    async def close(self) -> None:
        """Release its connections."""
        ...
