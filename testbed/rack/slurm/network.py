"""The namespaces of Slurm's nodes: the endpoint's NIC, and a wire to slurmctld.

TCP is configured as in lightloom's containers (ADR 0027), whatever the machine's defaults are.
"""

from __future__ import annotations

from ipaddress import IPv4Address, IPv4Interface

from pyroute2 import IPRoute, NetNS, netns

from container_mgr.hardware import tcp
from container_mgr.hardware.nic import NETNS_DIR, entered
from testbed.rack.layout import MTU
from testbed.rack.slurm.config import CONTROL_NETNS, MANAGEMENT, SlurmCluster, SlurmdNode

BRIDGE = "br0"
WIRE = "m0"
DATA = "e0"
"""As in a container: the NIC of the endpoint. It is a macvlan in passthru mode, so that the agent
still finds the NIC on its server."""


def build(cluster: SlurmCluster) -> None:
    """Create all namespaces, the bridge and the wires. OSError, NetlinkError."""
    netns.create(CONTROL_NETNS)
    for node in cluster.nodes:
        netns.create(node.netns)
    with NetNS(CONTROL_NETNS) as control:
        control.link("add", ifname=BRIDGE, kind="bridge")
        _up(control, BRIDGE, cluster.control)
        _up(control, "lo", None)
        bridge = control.link_lookup(ifname=BRIDGE)[0]
        for number, node in enumerate(cluster.nodes):
            wire = f"v{number}"
            with IPRoute() as root:
                root.link(
                    "add",
                    ifname=wire,
                    kind="veth",
                    mtu=MTU,
                    net_ns_fd=CONTROL_NETNS,
                    peer={"ifname": WIRE, "mtu": MTU, "net_ns_fd": node.netns},
                )
            index = control.link_lookup(ifname=wire)[0]
            control.link("set", index=index, master=bridge, state="up")
    for node in cluster.nodes:
        _bring_nic(node)
        with NetNS(node.netns) as inside:
            _up(inside, "lo", None)
            _up(inside, WIRE, node.address)
            index = inside.link_lookup(ifname=DATA)[0]
            inside.addr("add", index=index, address=node.ip, prefixlen=node.prefix_len)
            inside.link("set", index=index, state="up")
        with entered(NETNS_DIR / node.netns), IPRoute() as inside:
            tcp.set_congestion_control()
            index = inside.link_lookup(ifname=DATA)[0]
            tcp.tune_for_dark_time(inside, index, IPv4Interface(f"{node.ip}/{node.prefix_len}"))


def _bring_nic(node: SlurmdNode) -> None:
    name = f"s-{node.endpoint_nic}"[:15]
    with NetNS(node.server_netns) as server:
        below = server.link_lookup(ifname=node.endpoint_nic)[0]
        server.link("add", ifname=name, kind="macvlan", link=below, macvlan_mode="passthru")
        index = server.link_lookup(ifname=name)[0]
        server.link("set", index=index, net_ns_fd=node.netns)
    with NetNS(node.netns) as inside:
        index = inside.link_lookup(ifname=name)[0]
        inside.link("set", index=index, ifname=DATA)


def _up(where: NetNS, name: str, address: IPv4Address | None) -> None:
    index = where.link_lookup(ifname=name)[0]
    if address is not None:
        where.addr("add", index=index, address=str(address), prefixlen=MANAGEMENT.prefixlen)
    where.link("set", index=index, state="up")
