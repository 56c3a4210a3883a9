"""Calls the execution engine and translates its errors for users."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import structlog

from controller.base import failpoints
from controller.base.errors import ErrorCode, ServiceError
from controller.devices.engine import (
    FREEZE_TIMEOUT_S,
    EngineError,
    ExecutionEngine,
    RankStatus,
)
from controller.devices.errors import DEVICE_ERRORS
from controller.state.records import JobRecord
from controller.state.state import State

log = structlog.get_logger(__name__)

OBSERVE_TIMEOUT_S = 30.0
"""Longer than the engine waits for a server that hangs: the others are still observed."""

_CODES: dict[str, ErrorCode] = {
    "invalid": "invalid",
    "not_found": "not_found",
    "conflict": "conflict",
    "unavailable": "unavailable",
    "timeout": "timeout",
}


UNANSWERED = ("unavailable", "timeout")
"""Error codes of calls without an answer: whether they were carried out is unknown."""


def placed(state: State, job: JobRecord) -> dict[int, str]:
    """Return the server of each of a job's ranks whose endpoint is still in the site file."""
    cables = (state.cables.get(endpoint) for endpoint in job.endpoints)
    return {rank: cable.server for rank, cable in enumerate(cables) if cable}


def refusal(job: str, error: EngineError) -> ServiceError:
    """Translate an engine's error for a job."""
    code = _CODES.get(error.code, "failed")
    return ServiceError(code, str(error), object=f"job/{job}", hint=error.hint)


async def freeze(engine: ExecutionEngine, job: JobRecord) -> None:
    """Freeze all containers of a job. ServiceError."""
    async with failpoints.around("freeze"):
        await _bounded(job.name, engine.freeze(job.name))


async def thaw(engine: ExecutionEngine, state: State, job: JobRecord) -> None:
    """Let all processes of a job continue, also those that others started. ServiceError."""
    async with failpoints.around("thaw"):
        await _bounded(job.name, thaw_processes(engine, state, job.name))


async def freeze_processes(
    engine: ExecutionEngine, state: State, name: str, settle_s: float
) -> bool | None:
    """Freeze a job's processes, also those of others, as :meth:`ExecutionEngine.freeze`."""
    job = state.jobs.get(name)
    if job is None or (scope := job.owner.scope) is None:
        return await engine.freeze(name, settle_s)
    return await engine.freeze_scope(scope, set(placed(state, job).values()), settle_s)


async def thaw_processes(engine: ExecutionEngine, state: State, name: str) -> None:
    """Let all processes of a job continue, also those that others started. Raises EngineError."""
    job = state.jobs.get(name)
    if job is None or (scope := job.owner.scope) is None:
        await engine.thaw(name)
    elif scope:
        await engine.thaw_scope(scope, set(placed(state, job).values()))


async def _bounded(job: str, call: Coroutine[Any, Any, object]) -> None:
    try:
        async with asyncio.timeout(FREEZE_TIMEOUT_S):
            await call
    except EngineError as error:
        raise refusal(job, error) from error
    except (OSError, TimeoutError):
        raise ServiceError(
            "timeout",
            f"the agents of job {job} did not answer",
            object=f"job/{job}",
            hint="see `lightloom get nodes`",
        ) from None


async def observe_containers(state: State, engine: ExecutionEngine) -> bool:
    """Read the status of all containers into the state; False when that was not possible."""
    try:
        async with asyncio.timeout(OBSERVE_TIMEOUT_S):
            seen = await engine.observe()
    except DEVICE_ERRORS as error:
        log.warning("containers_not_observed", error=str(error))
        return False
    state.saw_epochs(status.epoch for status in seen)
    for server, answers in engine.reachable().items():
        if answers:
            state.reports.heard(server, "containers")
    state.jobs.statuses = [status for status in seen if _credible(state, status)]
    return True


def _credible(state: State, status: RankStatus) -> bool:
    """Return False for a rank that the intent has on another endpoint.

    An agent reports only its own endpoints; a compromised one must not end other servers' jobs
    by what it reports about their ranks.
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
