"""REST documents of predictions and advice."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from controller.schema.base import Name, RequestModel, View
from controller.schema.visibility import Message, Plain

Limit = Literal["input", "compute", "network", "scatter", "straggler", "overlap", "none", "unknown"]


class RangeView(View):
    """A prediction: the truth lies between the two if the model holds."""

    low: float
    high: float


class WhatIfRequest(RequestModel):
    """Homes to suppose for endpoints of a running job; nothing moves."""

    most_parts = 20_000

    homes: dict[str, Name]


class WhatIfView(View):
    """What a job's step would be with other homes."""

    job: Plain
    prediction: Plain
    """Its id: kept, and compared with what is measured when these homes come true."""
    homes_before: dict[Plain, Plain | None]
    homes_after: dict[Plain, Plain | None]
    span_before: int
    span_after: int
    step_now_s: float | None
    step_then_s: RangeView | None
    """Null where only the ratio is known."""
    change: RangeView | None
    """(then - now) / now; null where nothing is known of the job."""
    ring_rate_before: float | None
    ring_rate_after: float | None
    possible: bool
    """Whether ports suffice to move them there now."""
    basis: list[Plain]
    """What the prediction rests on."""
    unidentified: list[Plain]
    """Why it is an interval."""


class PredictionView(View):
    """A prediction, and what was measured."""

    id: Plain
    job: Plain
    cause: Literal["whatif", "plan", "compare", "advise"]
    made_at: float
    homes: dict[Plain, Plain | None]
    step_s: RangeView | None
    step_before_s: float | None = None
    measured_s: float | None = None
    measured_at: float | None = None
    error: float | None = None
    """|predicted - measured| / measured, from the middle of the interval; null until measured."""
    basis: list[Plain] = Field(default_factory=list)
    state: Literal["open", "met", "expired"]


class FindingView(View):
    """One thing that limits a job, and the remedy."""

    job: Plain
    limit: Limit
    text: Message
    evidence: list[Message]
    gain: RangeView | None
    """Share of the step's time that the remedy saves."""
    remedy: Message
    command: Plain = ""


class AdviceView(View):
    """Findings in order of gain."""

    job: Plain | None
    """Null: the whole site."""
    limit: Limit | None = None
    findings: list[FindingView]
    unknown: list[Plain] = Field(default_factory=list)
    """What was not measured, and the command that measures it."""
