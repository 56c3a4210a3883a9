"""Documents of the usage of endpoints."""

from __future__ import annotations

from typing import Literal

from controller.schema.base import View
from controller.schema.visibility import Plain

By = Literal["project", "user", "job"]


class UsageSumsView(View):
    """Usage in endpoint-seconds: one endpoint held for one second is 1."""

    held_s: float = 0.0
    """Endpoints held by jobs, from when a job takes them until it releases them."""
    frozen_s: float = 0.0
    """The part of it in which the containers were paused, or stopped by a regroup."""
    dark_s: float = 0.0
    """The part of it in which an endpoint had no light because its light was moved."""
    weighted_s: float = 0.0
    """``held_s`` times the job's span divided by the least span its endpoints can have."""
    jobs: int = 0
    """Jobs that took their first endpoints in the window."""


class UsageLineView(UsageSumsView):
    """The usage of one project, user or job; the fields of the others are None."""

    project: Plain | None = None
    user: Plain | None = None
    """Empty: submitted without authentication, or before names were kept."""
    job: Plain | None = None
    submitted_at: float | None = None


class UsageView(View):
    """Usage from ``since`` up to, not including, ``until``."""

    since: float
    until: float
    by: By
    lines: list[UsageLineView]
    """Those that held most come first; at most 500."""
    others: UsageSumsView
    """What no line shows: beyond the limit, or of jobs that are kept as sums of days only."""
    total: UsageSumsView
