"""What an endpoint is, as a fact with a name. Part of the state, which decides it."""

from __future__ import annotations

from dataclasses import dataclass

from controller.schema.fabric import EndpointState


@dataclass(slots=True, frozen=True)
class Standing:
    """What an endpoint is, and why in words; nothing reads the words."""

    state: EndpointState
    reason: str = ""


IDLE = Standing("idle")
