"""The instructions of a regroup transaction; ``controller.fabric.executor`` carries them out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from controller.devices.aggregators import AttachPoint
from controller.transaction.circuits import End, SwitchChange
from scheduler.model import Policy


@dataclass(slots=True, frozen=True)
class WriteLog:
    """Make the transaction's present phase durable; answered by Written or NotWritten."""

    step: int


@dataclass(slots=True, frozen=True)
class AwaitLull:
    """Wait, bounded, until the running job on these endpoints sends almost nothing."""

    step: int
    endpoints: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class QuiesceJob:
    """Freeze (``pause``) or stop (``restart``) all containers of a job."""

    step: int
    job: str
    policy: Policy
    checkpoint_s: float | None = None
    """``restart``: its ranks must exit with 0 within this time; None accepts any exit."""


@dataclass(slots=True, frozen=True)
class AwaitQuiet:
    """Wait, bounded, until the port counters of these endpoints stop changing."""

    step: int
    endpoints: tuple[str, ...]


@dataclass(slots=True, frozen=True)
class Drain:
    """Hold the traffic of the endpoints in ``target``, and admit probes there."""

    step: int
    target: Mapping[End, AttachPoint | None]


@dataclass(slots=True, frozen=True)
class Switch:
    """Delete and make circuits on one optical switch; idempotent."""

    step: int
    change: SwitchChange


@dataclass(slots=True, frozen=True)
class Qualify:
    """Prove that ``end`` is reachable through ``point``."""

    step: int
    end: End
    point: AttachPoint


@dataclass(slots=True, frozen=True)
class Route:
    """Install the flows for ``target`` (None is dark) and release the held traffic."""

    step: int
    target: Mapping[End, AttachPoint | None]


@dataclass(slots=True, frozen=True)
class ResumeJob:
    """Thaw (``pause``) or start again (``restart``) all containers of a job."""

    step: int
    job: str
    policy: Policy


@dataclass(slots=True, frozen=True)
class FailJob:
    """The job cannot go on; needs no answer."""

    step: int
    job: str
    reason: str


@dataclass(slots=True, frozen=True)
class SetDeadline:
    """Post DeadlinePassed(step) in ``after_s`` unless the step has ended; needs no answer."""

    step: int
    after_s: float


Instruction = (
    WriteLog
    | AwaitLull
    | QuiesceJob
    | AwaitQuiet
    | Drain
    | Switch
    | Qualify
    | Route
    | ResumeJob
    | FailJob
    | SetDeadline
)
