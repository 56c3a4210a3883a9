"""Computes the namespaces, links, bridges and circuit ends of a site on one machine. Pure.

A fiber is a veth pair whose far end is in the namespace of all emulated optical switches, so
that both directions of a link are shaped and dropped there, independent of its other end. A
hard-wired cable runs through the same namespace, with a permanent patch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sitefile import CabledSite, Port
from testbed.rack.errors import RackError

PREFIX = "ll-"
"""Prefix of all objects that the rack creates on the machine."""
FABRIC_NETNS = "ll-fab"
"""Namespace of ovs-vswitchd and the aggregators' bridges."""
OCS_NETNS = "ll-ocs"
"""Namespace with one link end per optical port."""
MAX_NAME = 15
"""Longest link name of Linux: IFNAMSIZ (linux/if.h) without the final zero."""
MTU = 1500


@dataclass(slots=True, frozen=True)
class Veth:
    """One link: end ``a`` in namespace ``a_netns``, end ``b`` in ``b_netns``.

    ``a`` is the end that gets a carrier once ``b`` is set up. With an empty ``mac`` the kernel
    chooses the address.
    """

    a: str
    a_netns: str
    b: str
    b_netns: str
    mac: str = ""


@dataclass(slots=True, frozen=True)
class Bridge:
    """One aggregator: ``ports`` maps OpenFlow port numbers to links."""

    name: str
    dpid: int
    ports: Mapping[int, str]
    tls: bool = False
    """Whether it connects to its controller with TLS."""


@dataclass(slots=True, frozen=True)
class Patch:
    """Two link ends in the optical namespace that are joined permanently (a fixed cable)."""

    a: str
    b: str


@dataclass(slots=True, frozen=True)
class RackLayout:
    """The complete network of a rack."""

    namespaces: tuple[str, ...]
    fibers: tuple[Veth, ...]
    """End ``b`` is in the optical namespace and is dark until a circuit lights it."""
    uplinks: tuple[Veth, ...]
    bridges: tuple[Bridge, ...]
    patches: tuple[Patch, ...]
    link_maps: Mapping[str, Mapping[str, str]]
    """Maps an optical switch and its port to the link in the optical namespace."""


def server_netns(server: str) -> str:
    """Return the namespace that holds the NICs of ``server``."""
    return f"{PREFIX}{server}"


def bridge_name(aggregator: str) -> str:
    """Return the bridge that emulates ``aggregator``."""
    return f"{PREFIX}{aggregator}"


def lay_out(site: CabledSite) -> RackLayout:
    """Return the layout of ``site``. Raises RackError(invalid) for a name that Linux refuses."""
    optical = {switch.name for switch in site.switches}
    link_maps: dict[str, dict[str, str]] = {switch.name: {} for switch in site.switches}
    fibers: list[Veth] = []
    patches: list[Patch] = []
    for endpoint in site.endpoints:
        far = f"o-{endpoint.name}"
        fibers.append(
            Veth(endpoint.nic, server_netns(endpoint.server), far, OCS_NETNS, mac=endpoint.mac)
        )
        if endpoint.fiber.device in optical:
            link_maps[endpoint.fiber.device][endpoint.fiber.port] = far

    bridge_ports: dict[str, dict[int, str]] = {cable.name: {} for cable in site.aggregators}
    for cable in site.aggregators:
        for number, port in cable.fibers.items():
            fiber = _aggregator_fiber(cable.name, number)
            fibers.append(fiber)
            bridge_ports[cable.name][number] = fiber.a
            link_maps[port.device][port.port] = fiber.b
        for number, endpoint_name in cable.fixed.items():
            fiber = _aggregator_fiber(cable.name, number)
            fibers.append(fiber)
            bridge_ports[cable.name][number] = fiber.a
            patches.append(Patch(f"o-{endpoint_name}", fiber.b))

    uplinks: list[Veth] = []
    for uplink in site.uplinks:
        a, b = _uplink_end(uplink.a), _uplink_end(uplink.b)
        uplinks.append(Veth(a, FABRIC_NETNS, b, FABRIC_NETNS))
        for port, link in ((uplink.a, a), (uplink.b, b)):
            bridge_ports[port.device][_port_number(port)] = link

    layout = RackLayout(
        namespaces=(FABRIC_NETNS, OCS_NETNS, *(server_netns(s.name) for s in site.servers)),
        fibers=tuple(fibers),
        uplinks=tuple(uplinks),
        bridges=tuple(
            Bridge(bridge_name(cable.name), cable.dpid, bridge_ports[cable.name], cable.tls)
            for cable in site.aggregators
        ),
        patches=tuple(patches),
        link_maps=link_maps,
    )
    _check_names(layout)
    return layout


def _aggregator_fiber(aggregator: str, number: int) -> Veth:
    name = f"{aggregator}-p{number}"
    return Veth(name, FABRIC_NETNS, f"o-{name}", OCS_NETNS)


def _uplink_end(port: Port) -> str:
    return f"{port.device}-u{port.port}"


def _port_number(port: Port) -> int:
    try:
        return int(port.port)
    except ValueError:
        raise RackError(
            "invalid",
            f"uplink end {port} is not an OpenFlow port number",
            object=str(port),
            hint="write uplinks as aggregator/number, for example as0/8",
        ) from None


def _check_names(layout: RackLayout) -> None:
    links = [end for veth in (*layout.fibers, *layout.uplinks) for end in (veth.a, veth.b)]
    names = [*links, *(bridge.name for bridge in layout.bridges)]
    for name in names:
        if len(name) > MAX_NAME:
            raise RackError(
                "invalid",
                f"link name {name!r} has {len(name)} characters, Linux allows {MAX_NAME}",
                object=name,
                hint="give the endpoint, NIC or aggregator a shorter name in the site file",
            )
    ends = [(veth.a_netns, veth.a) for veth in (*layout.fibers, *layout.uplinks)]
    ends += [(veth.b_netns, veth.b) for veth in (*layout.fibers, *layout.uplinks)]
    for netns, name in ends:
        if ends.count((netns, name)) > 1:
            raise RackError(
                "invalid",
                f"two links in namespace {netns} would have the name {name!r}",
                object=name,
                hint="rename one of the endpoints or NICs in the site file",
            )
    if len(set(layout.namespaces)) != len(layout.namespaces):
        raise RackError(
            "invalid",
            "a server has the name of a namespace that the rack needs",
            object="servers",
            hint="rename servers with the name 'fab' or 'ocs'",
        )
