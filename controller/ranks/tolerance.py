"""How long a job tolerates being dark, and what follows for a move that takes longer. Pure.

- An explicit ``dark_tolerance_s`` of the job wins.
- NCCL over RoCE gives up a message after 4.096 µs · 2^timeout per try, ``retry`` tries
  (InfiniBand's local ACK timeout; ``NCCL_IB_TIMEOUT``, ``NCCL_IB_RETRY_CNT``). Both are set for
  every job according to its tolerance here (:mod:`controller.ranks.nccl`). A quarter of the budget
  is used: retries start late and overlap.
- TensorFlow's collectives were observed to survive some 4 s over TCP.

A ``live`` job that would be dark for too long is paused instead (a frozen program counts no
retries). A ``pause`` job's own clocks go on while it is frozen, so beyond its tolerance the move
is refused. A ``restart`` job is stopped and tolerates any dark time.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from base.figures import figure
from controller.state.records import JobRecord
from scheduler.model import Policy

TENSORFLOW_S = 4.0
IB_UNIT_S = 4.096e-6
IB_TIMEOUT = 20
IB_RETRIES = 7
IB_MARGIN = 4.0
FROZEN_LIMIT_S = 30.0
"""Longest freeze of a job that states none: half the shortest usual heartbeat limit (60 s)."""


@dataclass(slots=True, frozen=True)
class DarkTimeCheck:
    """What a dark time of ``dark_s`` means for a job: as it is, paused instead, or refused."""

    job: str
    policy: Policy
    """The policy it is moved with."""
    tolerance_s: float | None
    """None means no limit."""
    dark_s: float
    verdict: Literal["ok", "downgraded", "refused"] = "ok"
    reason: str = ""


def check_dark_time(job: JobRecord, policy: Policy, dark_s: float) -> DarkTimeCheck:
    """Return how ``job`` can be moved when its endpoints are dark for ``dark_s``."""
    if policy is Policy.RESTART or job.state == "paused":
        return DarkTimeCheck(job.name, policy, None, dark_s)
    awake_s, source = awake_tolerance(job)
    if policy is Policy.LIVE and dark_s <= awake_s:
        return DarkTimeCheck(job.name, policy, awake_s, dark_s)
    frozen_s = frozen_tolerance_s(job)
    dark = f"dark for {figure(dark_s)} s, it tolerates"
    if dark_s <= frozen_s:
        if policy is Policy.PAUSE:
            return DarkTimeCheck(job.name, policy, frozen_s, dark_s)
        reason = f"{dark} {figure(awake_s)} s ({source}): paused instead"
        return DarkTimeCheck(job.name, Policy.PAUSE, frozen_s, dark_s, "downgraded", reason)
    reason = f"{dark} {figure(frozen_s)} s even when frozen"
    return DarkTimeCheck(job.name, policy, frozen_s, dark_s, "refused", reason)


def awake_tolerance(job: JobRecord) -> tuple[float, str]:
    """Return how long a running job tolerates being dark, in seconds, and why."""
    request = job.request
    if request.dark_tolerance_s is not None:
        return request.dark_tolerance_s, "its own figure"
    if {"NCCL_IB_TIMEOUT", "NCCL_IB_RETRY_CNT"} & request.env.keys():
        budget = ib_budget_s(request.env)
        if budget is not None:
            return budget / IB_MARGIN, "a quarter of NCCL's retries"
    return TENSORFLOW_S, "TensorFlow's collectives"


def frozen_tolerance_s(job: JobRecord) -> float:
    """Return how long a job tolerates being frozen, in seconds."""
    own = job.request.dark_tolerance_s
    return FROZEN_LIMIT_S if own is None else own


def ib_budget_s(env: Mapping[str, str]) -> float | None:
    """Return after how many seconds NCCL's queue pairs give up; None for unreadable settings."""
    try:
        timeout = int(env.get("NCCL_IB_TIMEOUT", IB_TIMEOUT))
        retries = int(env.get("NCCL_IB_RETRY_CNT", IB_RETRIES))
    except ValueError:
        return None
    if not (1 <= timeout <= 31 and 0 <= retries <= 7):
        return None
    return IB_UNIT_S * 2.0**timeout * retries
