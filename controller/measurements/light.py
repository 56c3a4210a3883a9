"""Puts what is known of the light beside what stands out: a slow fiber often is a dim one."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from controller.state.state import State
from controller.telemetry.light import OpticalPower
from controller.views.light import trace
from measure.envelope import Row

LightOf = Callable[[str], Sequence[Row]]
"""The light at the ports of an endpoint's path."""
_PREFIX = "endpoint/"


def levels(state: State, power: OpticalPower, endpoint: str) -> Sequence[Row]:
    """Return the light at every optical port between an endpoint and its aggregator, in dBm.

    Nothing for an endpoint that is hard-wired, or no longer in the site file.
    """
    cable = state.cables.get(endpoint)
    if cable is None:
        return ()
    return [
        {
            "endpoint": endpoint,
            "port": hop.at,
            "power_in_dbm": hop.power_in_dbm,
            "power_out_dbm": hop.power_out_dbm,
            "loss_db": hop.loss_db,
        }
        for hop in trace(state, power, cable).hops
        if hop.kind == "switch"
    ]


def lit(anomalies: Sequence[Row], light: LightOf) -> list[Row]:
    """Return the anomalies, each with the light of the endpoints that it names."""
    return [
        {
            **row,
            "light": [
                level
                for name in row.get("objects", ())
                if str(name).startswith(_PREFIX)
                for level in light(str(name).removeprefix(_PREFIX))
            ],
        }
        for row in anomalies
    ]
