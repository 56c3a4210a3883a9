"""Predicts how long a rewiring leaves endpoints without light. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from controller.transaction.circuits import Link, Rewiring
from ocs_driver.base import Capabilities

CONTROL_S = 0.02
"""The controller's share of a dark time: read-back, flows and probes of one transaction."""


USUAL_CIRCUIT_S = 0.025


USUAL_BULK_S = 0.2
"""Of a MEMS switch of the Calient S series; used for switches of unknown capabilities."""


def predicted_dark_time_s(
    rewiring: Rewiring,
    capabilities: Mapping[str, Capabilities | None],
    link_up_s: Callable[[Link], float],
) -> float:
    """Return the longest bulk and link-up time plus the controller's share, in seconds.

    0 when no light is cut. ``link_up_s`` returns how long a link needs from light to carrier.
    """
    times = [
        _bulk_s(max(len(change.delete), len(change.make)), capabilities.get(change.switch))
        + max(map(link_up_s, change.make), default=0.0)
        for change in rewiring.changes
        if change.delete
    ]
    return round(max(times) + CONTROL_S, 6) if times else 0.0


def _bulk_s(circuits: int, known: Capabilities | None) -> float:
    one = known.switch_time_s if known else USUAL_CIRCUIT_S
    bulk = known.bulk_time_s if known else USUAL_BULK_S
    return min(circuits * one, bulk)
