"""Documents of the light in the optical switches: its levels, their history, and its path."""

from __future__ import annotations

import math

from controller.base.errors import ServiceError
from controller.schema.live import HopView, PortPowerView, PowerSeriesView, TraceView
from controller.state.state import State
from controller.telemetry.light import OpticalPower
from ocs_driver.base import PortPower
from sitefile import EndpointCable


def port_powers(power: OpticalPower) -> list[PortPowerView]:
    """Return the light at every port that the site uses."""
    return [
        PortPowerView(
            switch=switch,
            port=port,
            far=far,
            power_in_dbm=latest.in_dbm if (latest := power.at(switch, port)) else None,
            power_out_dbm=latest.out_dbm if latest else None,
        )
        for switch, ports in power.ports.items()
        for port, far in ports.items()
    ]


def power_series(power: OpticalPower, switch: str, port: str, since_s: float) -> PowerSeriesView:
    """Return a port's light over the last ``since_s`` seconds. ServiceError ``not_found``."""
    far = power.ports.get(switch, {}).get(port)
    if far is None:
        raise ServiceError(
            "not_found",
            f"the site uses no port {switch}/{port} of an optical switch",
            object=f"switch/{switch}",
            hint="see `lightloom trace ENDPOINT`, or the list of powers",
        )
    window = power.window(switch, port, since_s)
    light_in, light_out = window.values[:, 0].T.tolist()
    return PowerSeriesView(
        switch=switch,
        port=port,
        far=far,
        interval_s=window.interval_s,
        times=window.times.tolist(),
        power_in_dbm=[_known(v) for v in light_in],
        power_out_dbm=[_known(v) for v in light_out],
    )


def trace(state: State, power: OpticalPower, cable: EndpointCable) -> TraceView:
    """Follow an endpoint's light to its aggregator, hop by hop."""
    at = state.light.attachments.get(cable.name)
    device, port = cable.fiber.device, cable.fiber.port
    hops = [HopView(kind="endpoint", at=f"{cable.server}/{cable.nic}", detail=cable.model)]
    if device not in power.ports:  # hard-wired: the path passes no optical switch
        hops.append(HopView(kind="aggregator", at=f"{device}/{port}", detail="fixed cable"))
        return TraceView(endpoint=cable.name, complete=True, hops=hops)
    near = power.at(device, port)
    hops.append(_optical(f"{device}/{port}", "from the endpoint's fiber", near))
    if at is None:
        return TraceView(
            endpoint=cable.name, complete=False, hops=hops, reason="no circuit: it is dark"
        )
    far_port = state.site.aggregator(at.aggregator).fibers[at.port].port
    far = power.at(device, far_port)
    hops.append(_optical(f"{device}/{far_port}", "to the aggregator's fiber", far))
    hops.append(HopView(kind="aggregator", at=str(at)))
    up, down = _loss(near, far), _loss(far, near)
    hops[1].loss_db, hops[2].loss_db = up, down
    return TraceView(
        endpoint=cable.name, complete=True, hops=hops, loss_up_db=up, loss_down_db=down
    )


def _known(dbm: float) -> float | None:
    return None if math.isnan(dbm) else round(dbm, 3)


def _optical(at: str, detail: str, power: PortPower | None) -> HopView:
    return HopView(
        kind="switch",
        at=at,
        detail=detail,
        power_in_dbm=power.in_dbm if power else None,
        power_out_dbm=power.out_dbm if power else None,
    )


def _loss(source: PortPower | None, target: PortPower | None) -> float | None:
    """Return the loss in dB between the light that enters at ``source`` and leaves at ``target``.

    None if either level is not known.
    """
    if source is None or target is None:
        return None
    if source.in_dbm is None or target.out_dbm is None:
        return None
    return round(source.in_dbm - target.out_dbm, 2)
