"""Calls of the execution engine for one job, with the errors that people understand."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from controller import failpoints
from controller.engine import FREEZE_TIMEOUT_S, EngineError, ExecutionEngine, Pull
from controller.errors import ErrorCode, ServiceError
from controller.views import JobRequest

IMAGE_TIMEOUT_S = 2.0
"""For the question whether any server may fetch an image."""

_CODES: dict[str, ErrorCode] = {
    "invalid": "invalid",
    "not_found": "not_found",
    "conflict": "conflict",
    "unavailable": "unavailable",
    "timeout": "timeout",
}


def refusal(job: str, error: EngineError) -> ServiceError:
    """Return what an engine's error means for a job."""
    code = _CODES.get(error.code, "failed")
    return ServiceError(code, str(error), object=f"job/{job}", hint=error.hint)


async def check_image(engine: ExecutionEngine, request: JobRequest) -> None:
    """Refuse at submit (ServiceError ``invalid``) an image that no server would fetch."""
    if request.image is None or request.pull is Pull.NEVER:
        return
    try:
        await engine.check_image(request.image, request.pull, IMAGE_TIMEOUT_S)
    except EngineError as error:
        raise ServiceError(
            "invalid",
            error.faults[0].message,
            object=f"job/{request.name or 'unnamed'}",
            hint="see docs/images.md",
        ) from error


async def freeze(engine: ExecutionEngine, job: str) -> None:
    """Freeze all containers of a job. ServiceError."""
    async with failpoints.around("freeze"):
        await _bounded(job, engine.freeze(job))


async def thaw(engine: ExecutionEngine, job: str) -> None:
    """Let all containers of a job go on. ServiceError."""
    async with failpoints.around("thaw"):
        await _bounded(job, engine.thaw(job))


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
