"""Does the same with many ranks concurrently; each succeeds or fails by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from container_mgr.docker.engine import EngineFailure, EngineRefusedError, EngineTimeoutError
from container_mgr.values import AgentError, Container

_Item = TypeVar("_Item")


@dataclass(slots=True, frozen=True)
class BatchOutcome:
    """The result of a batch: containers in their current state, and a fault for each failure."""

    containers: tuple[Container, ...]
    faults: tuple[AgentError, ...] = ()
    settled: bool | None = None
    """After a freeze: whether all data that they sent is acknowledged; None when unknown."""


async def batch(
    items: Sequence[_Item],
    name: Callable[[_Item], str],
    act: Callable[[_Item], Awaitable[Container]],
) -> BatchOutcome:
    """Act on all items concurrently; a failure does not affect the others."""
    results = await asyncio.gather(*(act(item) for item in items), return_exceptions=True)
    containers, faults = [], []
    for item, result in zip(items, results, strict=True):
        if isinstance(result, Container):
            containers.append(result)
        elif isinstance(result, AgentError):
            faults.append(result)
        elif isinstance(result, EngineFailure):
            faults.append(fault_of(name(item), result))
        elif isinstance(result, OSError):  # a full disk, a directory without access
            faults.append(AgentError("failed", name(item), str(result)))
        else:
            raise result
    return BatchOutcome(tuple(containers), tuple(faults))


def fault_of(obj: str, error: EngineFailure) -> AgentError:
    """Convert a failure of the engine to a fault of ``obj``."""
    if isinstance(error, EngineTimeoutError):
        return AgentError(
            "timeout", obj, str(error), "outcome unknown: observe before trying again"
        )
    if isinstance(error, EngineRefusedError):
        return AgentError("failed", obj, str(error))
    return AgentError("unavailable", obj, str(error), "is the Docker Engine running?")
