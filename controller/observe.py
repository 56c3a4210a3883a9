"""One look at all containers."""

from __future__ import annotations

import asyncio

import structlog

from controller.engine import ExecutionEngine, RankStatus
from controller.executor import DEVICE_ERRORS
from controller.state import State

log = structlog.get_logger(__name__)

OBSERVE_TIMEOUT_S = 30.0
"""Longer than the engine waits for one server that hangs: the others are still worth seeing."""


async def look(state: State, engine: ExecutionEngine) -> bool:
    """Read all containers into the state; False when that was not possible."""
    try:
        async with asyncio.timeout(OBSERVE_TIMEOUT_S):
            seen = await engine.observe()
    except DEVICE_ERRORS as error:
        log.warning("containers_not_observed", error=str(error))
        return False
    state.statuses = [status for status in seen if _credible(state, status)]
    return True


def _credible(state: State, status: RankStatus) -> bool:
    """Return False for a rank that the intent has on another endpoint.

    An agent speaks for its own endpoints only; one that has been taken over must not end other
    servers' jobs by what it says of their ranks.
    """
    job = state.jobs.get(status.job)
    if job is None or not job.holding or job.epoch != status.epoch:
        return True
    mine = status.rank < len(job.endpoints) and job.endpoints[status.rank] == status.endpoint
    if not mine:
        log.warning(
            "rank_not_believed",
            job=status.job,
            rank=status.rank,
            server=status.server,
            endpoint=status.endpoint,
        )
    return mine
