"""What the gate needs of an operation, declared on its route: who may use it, and how much
it reads."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from fastapi.routing import APIRoute

BODY_BYTES = 16 * 2**10
"""Largest body of an operation, by default."""
KIB = 2**10
MIB = 2**20

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
_MARK = "__operation__"


@dataclass(slots=True, frozen=True)
class Operation:
    """What is declared of one operation."""

    verb: str | None
    """What a role must allow; None for a public one: it reveals nothing, or checks credentials
    itself."""
    body: int
    """Largest body in bytes."""
    continuing: bool
    """It is a part of a change that was recorded before: paced as a read, not recorded again."""


def operation(
    verb: str | None, *, body: int = BODY_BYTES, continuing: bool = False
) -> Callable[[Endpoint], Endpoint]:
    """Declare the operation of a route; write it below the route's own decorator."""

    def mark(endpoint: Endpoint) -> Endpoint:
        setattr(endpoint, _MARK, Operation(verb, body, continuing))
        return endpoint

    return mark


def operation_of(route: APIRoute) -> Operation:
    """Return what is declared. RuntimeError for a route that declares nothing."""
    declared = getattr(route.endpoint, _MARK, None)
    if not isinstance(declared, Operation):
        raise RuntimeError(f"nothing declares who may use {route.name} ({route.path})")
    return declared
