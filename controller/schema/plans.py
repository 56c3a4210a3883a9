"""REST documents of plans, transactions, quarantine and allocations."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from controller.schema.base import JobState, Name, Number, RequestModel, View
from controller.schema.visibility import Instead, JobNames, Message, Plain, Visibility
from scheduler.model import Objective, Policy

VERSION: Literal["lightloom/v1"] = "lightloom/v1"

PlanId = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9-]{1,63}$")]
Port = Annotated[str, StringConstraints(min_length=1, max_length=80)]
MAX_BUDGET = 10_000_000
"""Jobs or endpoints: more than any site has."""


class BatchRequest(RequestModel):
    """Limits of a plan's batches; what is None is as the plan states, or as in the site file."""

    max_dark: int | None = Field(default=None, ge=1, le=MAX_BUDGET)
    """Endpoints dark at once: the plan is cut into batches."""
    max_pauses: int | None = Field(default=None, ge=1, le=100)
    """Of a job, by the batches; 1 if nothing says otherwise."""
    park: bool | None = None
    """Whether idle endpoints may stay dark until the last batch."""


class PlanRequest(BatchRequest):
    """Budgets of a regroup; None is unlimited."""

    most_parts = 20_000

    homes: dict[Name, Name] | None = None
    """Move idle endpoints to exactly these homes, and nothing else."""
    job: Name | None = None
    """Regroup this running job, or make room for this pending one."""
    force: bool = False
    """Ignore cool-down and pause budgets; pinned jobs stay pinned."""
    max_jobs_paused: int | None = Field(default=None, ge=0, le=MAX_BUDGET)
    max_moves: int | None = Field(default=None, ge=0, le=MAX_BUDGET)
    objective: Objective = Objective.PAUSES
    time_limit_s: float = Field(default=10.0, gt=0, le=600)


class MoveView(View):
    """A change of one endpoint's home."""

    endpoint: Annotated[Name, Visibility.ALL]
    source: Annotated[Name, Visibility.ALL] | None = Field(alias="from")
    target: Annotated[Name, Visibility.ALL] | None = Field(alias="to")


class BoundView(View):
    """Lower bounds of any plan, in order of importance."""

    excess_span: float
    running_moves: float
    paused_gpus: float


class CircuitStepView(View):
    """One circuit to break or make; a plan whose steps do not match its moves is refused."""

    switch: Annotated[Name, Visibility.ALL]
    a: Annotated[Port, Visibility.ALL]
    b: Annotated[Port, Visibility.ALL]
    endpoint: Annotated[Name, Visibility.ALL]
    aggregator: Annotated[Name, Visibility.ALL]
    aggregator_port: int


class CircuitChangesView(View):
    """Circuits of a plan."""

    break_: list[CircuitStepView] = Field(default_factory=list, alias="break")
    make: list[CircuitStepView] = Field(default_factory=list)


class FlowChangesView(View):
    """Number of flows added and deleted, over all aggregators."""

    add: int = 0
    delete: int = 0


class GainView(View):
    """Gain of one job: its ring crosses between aggregators less often."""

    job: str
    span_before: int
    span_after: int
    ring_crossings_before: int
    ring_crossings_after: int
    communication_speedup: Number | None = None
    """Predicted time of one all-reduce before over after; None if the rates are not known."""
    step_speedup_low: Number | None = None
    step_speedup_high: Number | None = None
    """Predicted time of a step before over after: an interval while only one placement was
    measured; None if the rates are not known."""
    remaining_s: Number | None = None
    """Expected remaining run time without the plan."""
    saved_low_s: Number | None = None
    saved_high_s: Number | None = None
    """Run time that the plan saves."""
    placements_measured: int = 0


class BudgetView(View):
    """Whether a job tolerates the dark time of a plan: as it is, only paused, or not at all."""

    job: str
    policy: Policy
    tolerance_s: Number | None
    """None is unlimited."""
    dark_s: float
    verdict: Literal["ok", "downgraded", "refused"]
    reason: str = ""


class WorthView(View):
    """Gain of a plan against its pauses, in GPU-seconds."""

    verdict: Literal["yes", "open", "no"]
    gain_low_gpu_s: float
    gain_high_gpu_s: float
    cost_gpu_s: float
    reason: str


class LeftAloneView(View):
    """A job that the plan was not allowed to touch, and why."""

    job: str
    reason: str
    until: Number | None = None
    """When that ends, if it ends by itself."""


class PlanJobView(View):
    """A job whose light a plan moves, as it was when the plan was made."""

    job: Name
    submitted_at: float
    state: JobState
    policy: Policy
    endpoints: list[Name]
    pauses: int
    """How often its light had been moved, as far as known."""


class BatchesView(View):
    """How a plan is carried out in batches: each is one transaction."""

    max_dark: int
    max_pauses: int
    park: bool
    batches: int
    """Number of batches; 0 if they are refused."""
    least: int
    """No order has fewer."""
    largest: int
    """Most endpoints of one batch."""
    pauses: dict[Name, int]
    """By job."""
    refused: str = ""
    """Why no order keeps these limits."""


class PlanView(View):
    """A regroup as data: can be printed and stored; checked against the fabric at apply."""

    id: PlanId
    epoch: int
    """Epoch at which it was made; the present one may be later if nothing it needs has changed."""
    site: Name
    moves: list[MoveView]
    homes_after: dict[Name, Name | None]
    excess_span_before: int
    excess_span_after: int
    running_moves: int
    jobs_paused: list[str]
    paused_gpus: int
    pause_gpu_seconds: float
    bound: BoundView
    optimal: bool
    solver_seconds: float
    circuits: CircuitChangesView = Field(default_factory=CircuitChangesView)
    flows: FlowChangesView = Field(default_factory=FlowChangesView)
    predicted_dark_time_s: float = 0.0
    """With the link-up time."""
    predicted_link_up_s: float = 0.0
    link_up_source: str = ""
    """How the link-up time is known: configured, or learnt from re-lights."""
    predicted_gain: list[GainView] = Field(default_factory=list)
    budgets: list[BudgetView] = Field(default_factory=list)
    """Of every job that the plan affects; one ``refused`` job refuses the plan."""
    worth: WorthView | None = None
    """None if the link rates of the site are not known."""
    left_alone: list[LeftAloneView] = Field(default_factory=list)
    makes_room_for: Name | None = None
    """The pending job that fits afterwards."""
    batches: BatchesView | None = None
    """None if it is carried out at once. With batches it lists no circuits: each chooses ports."""
    basis: list[PlanJobView] | None = None
    """The jobs whose light it moves; without it the plan is valid at its own epoch only."""

    @property
    def empty(self) -> bool:
        """True if nothing moves."""
        return not self.moves


class PhaseView(View):
    """One phase of a transaction and its times; ``finished_at`` None while it runs."""

    name: Plain
    started_at: float
    finished_at: Number | None = None


class TransactionView(View):
    """A plan in progress, or how it ended."""

    id: Plain
    state: Literal["running", "rolling_back", "committed", "rolled_back", "quarantined"]
    phase: Plain
    waiting_for: Annotated[str, Visibility.ALL_PROJECTS] = ""
    phases: list[PhaseView]
    cause: Literal["regroup", "placement", "homes", "attach", "spare"]
    plan_id: Annotated[str | None, Visibility.ALL_PROJECTS] = None
    epoch_before: int
    epoch_after: int | None = None
    moves: list[MoveView]
    jobs: JobNames
    """Jobs whose endpoints move."""
    dark_time_s: dict[Plain, float]
    """Per moved endpoint, from the first pair broken to the last path qualified."""
    started_at: float
    finished_at: Number | None = None
    result: Message = ""
    """One sentence on how it ended; empty while it runs."""
    error: Message = ""
    quarantined_ports: Annotated[list[str], Visibility.ALL_PROJECTS] = Field(default_factory=list)
    warnings: Annotated[list[str], Visibility.ALL_PROJECTS] = Field(default_factory=list)
    """What a move by hand makes worse, in the answer to the request only: jobs whose checkpoints'
    copies are no longer apart."""
    how_to_stop: Annotated[str, Visibility.ALL_PROJECTS] = ""
    """How to stop it now, or why that is not possible; empty after its end."""


class RolloutRequest(BatchRequest):
    """Carry this plan out in batches."""

    most_parts = 1_000_000

    plan: PlanView


class RolloutView(View):
    """A plan that is carried out in batches, or how that ended."""

    id: str
    plan_id: str
    state: Literal["running", "stopping", "committed", "stopped"]
    """``stopping``: no further batch begins."""
    batches: int
    least: int
    """No order has fewer batches."""
    done: int
    """Batches that have committed."""
    max_dark: int
    max_pauses: int
    park: bool
    pauses: dict[str, int]
    """By job: pauses of all batches."""
    transactions: list[str]
    """One for each batch that was begun; the last may be under way."""
    makes_room_for: str | None = None
    started_at: float
    finished_at: Number | None = None
    result: str = ""
    """One sentence on how it ended; empty while it runs."""


class AttachRequest(RequestModel):
    """Target of one endpoint's light; ``aggregator`` None is dark."""

    aggregator: Name | None


class QuarantineView(View):
    """A port (``as0/3``) or an endpoint (``gpu2``) that is out of use, and why."""

    object: Plain
    reason: Annotated[str, Visibility.KEEPERS, Instead("out of use")]
    since: float


class AllocatedJob(RequestModel):
    """A job and its endpoints, in rank order, when the file was written."""

    most_parts = 100_000

    name: Name
    project: Name = "default"
    endpoints: list[Name] = Field(max_length=100_000)


class Allocation(RequestModel):
    """What ``export`` writes and ``import`` reads.

    Only ``homes`` is restored: an endpoint that is not named stays where it is, null is dark.
    ``jobs`` and ``epoch`` describe the state when the file was written.
    """

    most_parts = 500_000

    version: Literal["lightloom/v1"] = VERSION
    kind: Literal["Allocation"] = "Allocation"
    site: Name
    epoch: int = Field(default=0, ge=0, lt=2**63)
    homes: dict[Name, Name | None] = Field(max_length=100_000)
    jobs: list[AllocatedJob] = Field(default_factory=list, max_length=100_000)


class AllocationDiffView(View):
    """What an import changes, or changed."""

    epoch: int
    moves: list[MoveView]
    jobs: list[str]
    """Running jobs whose endpoints move."""
    notes: list[str] = Field(default_factory=list)
    """Differences that an import does not restore: jobs that are not as in the file."""
    warnings: list[str] = Field(default_factory=list)
    """What the moves make worse: jobs whose checkpoints' copies are no longer apart."""
    transaction: TransactionView | None = None
    """The transaction that carries it out; None for a dry run, or if nothing differs."""
