"""REST documents of a job's communication."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from controller.schema.base import View
from controller.schema.visibility import Plain

Recorder = Literal["recording", "absent", "damaged", "refused", "off", "unknown"]
Definition = Literal["timeline", "pure", "measured", "wire"]


class CommsRowView(View):
    """Calls of one operation with one size, of a rank or of the whole job.

    A job's row has the sum of its ranks' calls and the largest average of a rank.
    """

    rank: int | None = None
    """Null in a row of the job."""
    op: Plain
    """As nccl-tests names it: ``all_reduce``."""
    bytes: int
    """S, the size of the whole array; 0 where the source does not report it."""
    dtype: Plain = ""
    tag: Plain = ""
    calls: int
    total_s: float
    avg_s: float
    min_s: float
    max_s: float
    p50_s: float | None = None
    source: Literal["nccl", "torch", "tf", "wire"]
    timing: Literal["device", "host", "issue"]
    exact: bool = True
    """False where calls are sampled or estimated."""
    coverage: float = 1.0
    """Share of the time that was observed."""
    skew_s: float | None = None
    """Of a job's row: median over calls of the longest minus the shortest rank's duration."""
    transfer_s: float | None = None
    """Of a job's row: median over calls of the shortest rank's duration."""
    last_rank: int | None = None
    """Of a job's row: the rank that came last most often. The others waited for it."""
    last_share: float | None = None
    """Share of the compared calls to which it came last."""
    share: float | None = None
    """Of a job's row: its time as a share of the step."""
    busbw: float | None = None
    """Bytes/s by nccl-tests' definition."""


class OverlapView(View):
    """How communication and computation of a step overlap. Medians of the observed steps."""

    rank: int | None = None
    """Null: the slowest rank of the job."""
    step_s: float
    compute_s: float
    comm_s: float
    exposed_s: float
    """Communication that nothing covers."""
    overlap: float | None
    """0 to 1; null without communication."""
    definition: Definition
    bytes_per_step: float | None = None
    calls_per_step: float | None = None
    steps: int = 0
    """Number of observed steps."""
    source: Literal["nccl", "torch", "tf", "wire"]


class RankCommsView(View):
    """The recorder of one rank."""

    rank: int
    endpoint: Plain
    recorder: Recorder
    reason: Plain = ""
    source: Plain = ""
    age_s: float | None = None
    """Seconds since its figures were read."""
    damaged_rows: int = 0


class CommsView(View):
    """The communication of one run of a job."""

    job: Plain
    epoch: int
    record: Literal["counts", "full", "off"]
    state: Plain
    since: float | None = None
    """Figures are of the time from then on; null is the whole run."""
    updated_at: float | None = None
    ranks: list[RankCommsView]
    rows: list[CommsRowView] = Field(default_factory=list)
    """Of the job, by total time; of one rank where one is asked for."""
    rank_rows: list[CommsRowView] = Field(default_factory=list)
    """Of every rank, for the heat map; limited to the largest 2,000."""
    overlap: OverlapView | None = None
    overlap_ranks: list[OverlapView] = Field(default_factory=list)
    efficiency: float | None = None
    """Bus bandwidth of the operation that takes longest, as a share of what was measured on a
    ring like the job's; null where nothing was."""
    efficiency_of: Plain = ""
    """Which operation, and which measurement it is compared to."""
    notes: list[Plain] = Field(default_factory=list)
    """What limits the figures: a definition, a missing source."""
