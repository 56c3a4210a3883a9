"""Doing the same to many ranks at once; every one succeeds or fails by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from container_mgr.docker.engine import EngineFailure, EngineRefusedError, EngineTimeoutError
from container_mgr.values import AgentError, Container

_Item = TypeVar("_Item")


@dataclass(slots=True, frozen=True)
class Outcome:
    """What became of a batch: containers as they are now, and one fault for each that failed."""

    containers: tuple[Container, ...]
    faults: tuple[AgentError, ...] = ()
    settled: bool | None = None
    """After a freeze: all that these containers had sent is acknowledged; None is not known."""


async def batch(
    items: Sequence[_Item],
    name: Callable[[_Item], str],
    act: Callable[[_Item], Awaitable[Container]],
) -> Outcome:
    """Act on all at the same time; one that fails does not keep the others."""
    results = await asyncio.gather(*(act(item) for item in items), return_exceptions=True)
    containers, faults = [], []
    for item, result in zip(items, results, strict=True):
        if isinstance(result, Container):
            containers.append(result)
        elif isinstance(result, AgentError):
            faults.append(result)
        elif isinstance(result, EngineFailure):
            faults.append(fault_of(name(item), result))
        elif isinstance(result, OSError):  # a full disk, a directory that is not ours
            faults.append(AgentError("failed", name(item), str(result)))
        else:
            raise result
    return Outcome(tuple(containers), tuple(faults))


def fault_of(obj: str, error: EngineFailure) -> AgentError:
    """Say what the engine's failure means for ``obj``."""
    if isinstance(error, EngineTimeoutError):
        return AgentError(
            "timeout", obj, str(error), "outcome unknown: observe before trying again"
        )
    if isinstance(error, EngineRefusedError):
        return AgentError("failed", obj, str(error))
    return AgentError("unavailable", obj, str(error), "is the Docker Engine running?")
