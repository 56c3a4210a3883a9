"""REST documents of jobs' checkpoints."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from checkpoints.ledger import State
from checkpoints.values import Scheme
from controller.schema.base import RequestModel, View
from controller.schema.visibility import Message, Plain, Visibility


class PartView(View):
    """One rank's part of a step."""

    rank: int
    endpoint: Plain
    """That wrote it; empty if unknown."""
    bytes: int
    held_by: list[Plain]
    """Endpoints whose folders have it whole, copies included."""
    parity_by: list[Plain] = Field(default_factory=list)
    """Endpoints that keep the parity of its set."""
    stored: bool = False
    """A store has it."""
    crc_ok: bool | None = None
    """Of the last verification; null before one."""
    why: Plain = ""
    """What is wrong with it."""


class CheckpointView(View):
    """One step of one run of a job. ``parts`` are in rank order."""

    step: int
    epoch: int
    """The run that wrote it."""
    state: State
    complete: bool
    """It may be restored by a job that lost any one server (or aggregator)."""
    restorable: bool
    """Every part of it can be had now."""
    why: Message = ""
    """Why it cannot be restored, or is dropped."""
    scheme: Scheme
    bytes: int
    written_at: float | None = None
    protected_at: float | None = None
    persistent_at: float | None = None
    written_s_median: float | None = None
    """From a rank's first file to its completion."""
    written_s_max: float | None = None
    parts: list[PartView]


class CheckpointsView(View):
    """A job's checkpoints, the newest first."""

    job: Plain
    rule: Plain
    scheme: Scheme
    space_bytes: int
    """Of one rank."""
    known: bool
    """Every server has said what it holds; false for some seconds after a start."""
    silent: list[Plain]
    """Servers with parts that do not answer."""
    restore_step: int | None
    """The step that a restart would load now; null for a start at 0."""
    restore_why: Message = ""
    """Why not a newer one."""
    unprotected_why: Message = ""
    """Why copies are not apart now; empty while they can be."""
    steps: list[CheckpointView]
    ignored: list[Plain] = Field(default_factory=list)
    """What the program wrote and no rule takes for a step; bounded."""
    naming: Plain = ""
    """What the rule takes for a step: how the program must call it."""


class DamageView(View):
    """A part, copy or parity that is not as it was written."""

    step: int
    epoch: int
    rank: int
    endpoint: Plain
    kind: Plain
    damages: list[Plain]


class VerificationView(View):
    """What a verification found."""

    job: Plain
    parts: int
    """Parts, copies and parities that were read."""
    bytes: int
    damaged: list[DamageView]
    silent: list[Plain]
    """Servers that did not answer: what they hold was not read."""


class IntervalView(View):
    """How often the job should write, from its measured cost and the site's failures."""

    job: Plain
    interval_s: float | None
    """Null while something is not known; ``why`` says what."""
    steps: int | None
    now_s: float | None
    """The present interval."""
    cost_s: float | None
    """What one checkpoint holds training up."""
    step_s: float | None
    restart_s: float | None
    mtbf_s: float | None
    """Of all that the job uses together."""
    waste: float | None
    """Part of the time that is lost at the advised interval, and at the present one."""
    waste_now: float | None
    bounded: bool = False
    """No failure was seen: the rate is the most that 95 % allow."""
    why: Message = ""


Cause = Literal["endpoint", "server", "aggregator", "switch", "program", "drain"]
How = Literal["swap", "again", "queue", "shrink", "ended"]


class RecoveryView(View):
    """What happened to a job that lost a rank. Times of phases are seconds; null is not known.

    Fetching runs beside stopping and light.
    """

    number: int
    """Counts the job's recoveries from 1."""
    cause: Cause
    objects: list[Plain]
    """What was lost: ``endpoint/gpu3``, ``server/srv2``."""
    how: How
    """A spare took the place, the same endpoints started again, the job went back to the queue,
    shrank, or ended."""
    why: Message = ""
    """Why not by a spare, and what was lost with it."""
    swaps: dict[Plain, Plain]
    """By dead endpoint: the spare that took its place."""
    failed_at: float
    finished_at: float | None = None
    step_written: int | None = None
    """The newest step that a rank had written before the failure, whole or not."""
    step_restored: int | None = None
    steps_lost: int | None = None
    """Steps between these two. Those made since the last one was written show nowhere; they are
    lost as well."""
    detect_s: float | None = None
    decide_s: float | None = None
    stop_s: float | None = None
    light_s: float | None = None
    fetch_s: float | None = None
    start_s: float | None = None
    import_s: float | None = None
    first_step_s: float | None = None
    """From the import on: the checkpoint's loading is part of it."""
    total_s: float | None = None
    own_s: float | None = None
    """Lightloom's part: without the program's import and first step."""
    gpu_hours_lost: float | None = None


class RecoveriesView(View):
    """A job's recoveries, the oldest first, and what they cost."""

    job: Plain
    ettr: float | None
    """Useful time of steps over wall time, 0 to 1; null where steps are not known."""
    gpu_hours_lost: dict[Plain, float]
    """By cause, the largest first."""
    recoveries: list[RecoveryView]


class SiteRecoveriesView(View):
    """What failures cost the site since ``since``."""

    since: float
    ettr: float | None
    gpu_hours: float
    """Held by jobs."""
    gpu_hours_lost: dict[str, float]
    failures: dict[str, int]
    """By cause."""


class CheckpointSumsView(View):
    """What metrics show of one job's checkpoints."""

    bytes: dict[State, int]
    """Without copies."""
    written_s: float | None = None
    """Median over ranks of what the newest written step took."""
    unprotected_s: float | None = None
    """For how long the newest written step has been without a copy, 0 when it has one; null
    for a job that asks for no copies."""


class RecoverySumsView(View):
    """What metrics show of recoveries."""

    seconds: dict[str, tuple[int, float]]
    """By phase: how many recoveries had it, and their seconds, since the controller started."""
    gpu_hours_lost: dict[str, float]
    """By cause, since counting began."""
    open_s: dict[str, float]
    """By job: for how long the recovery has lasted that is under way."""


DrainKind = Literal["node", "aggregator", "switch"]


class DrainRequest(RequestModel):
    """How to take an object out of use."""

    now: bool = False
    """Without waiting for a protected checkpoint."""


class DrainView(View):
    """An object that is being taken out of use on purpose."""

    object: Plain
    """``node/srv2``, ``aggregator/as1``, ``switch/ocs0``."""
    state: Literal["draining", "drained"]
    since: float
    jobs: Annotated[dict[str, str], Visibility.JOBS]
    """Jobs that still use it, and what they wait for."""
