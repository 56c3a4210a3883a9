"""One look at all containers."""

from __future__ import annotations

import asyncio

import structlog

from controller.engine import ExecutionEngine
from controller.executor import DEVICE_ERRORS
from controller.state import State

log = structlog.get_logger(__name__)

OBSERVE_TIMEOUT_S = 30.0
"""Longer than the engine waits for one server that hangs: the others are still worth seeing."""


async def look(state: State, engine: ExecutionEngine) -> bool:
    """Read all containers into the state; False when that was not possible."""
    try:
        async with asyncio.timeout(OBSERVE_TIMEOUT_S):
            state.statuses = await engine.observe()
    except DEVICE_ERRORS as error:
        log.warning("containers_not_observed", error=str(error))
        return False
    return True
