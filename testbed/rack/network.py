"""Creates the namespaces and links of a layout."""

from __future__ import annotations

import errno

from pyroute2 import IPRoute, NetNS, config, netns
from pyroute2.netlink.exceptions import NetlinkError

from testbed.rack.errors import RackError
from testbed.rack.layout import MTU, OCS_NETNS, RackLayout, Veth

PATIENCE_S = 60
"""Time limit for a new namespace. The kernel creates none while it removes others, and pyroute2,
which creates them in a child process, gives up after two seconds."""
config.default_communicate_timeout = PATIENCE_S
config.default_create_socket_timeout = 2 * PATIENCE_S


def build(layout: RackLayout) -> None:
    """Create everything in ``layout`` but the bridges; fibers stay dark at their optical end.

    Raises RackError(conflict) when a name exists, RackError(failed) when the kernel refuses.
    """
    try:
        for name in layout.namespaces:
            netns.create(name)
        with IPRoute() as root:
            for veth in (*layout.fibers, *layout.uplinks):
                _add(root, veth)
        for name in layout.namespaces:
            _bring_up(name, layout)
    except (NetlinkError, OSError) as error:
        code = error.code if isinstance(error, NetlinkError) else error.errno
        if code == errno.EEXIST:
            raise RackError(
                "conflict",
                "a namespace or link with the rack's name already exists",
                object="network",
                hint="remains of an earlier rack: run `lightloom testbed down`",
            ) from error
        raise RackError(
            "failed",
            f"the kernel refused the rack's network: {error}",
            object="network",
            hint="the kernel must support namespaces and veth links",
        ) from error


def _add(root: IPRoute, veth: Veth) -> None:
    attributes = {"address": veth.mac} if veth.mac else {}
    root.link(
        "add",
        ifname=veth.a,
        kind="veth",
        mtu=MTU,
        net_ns_fd=veth.a_netns,
        peer={"ifname": veth.b, "mtu": MTU, "net_ns_fd": veth.b_netns},
        **attributes,
    )


def _bring_up(name: str, layout: RackLayout) -> None:
    """Set up loopback and all links except the optical ends of fibers, which circuits light."""
    patched = {end for patch in layout.patches for end in (patch.a, patch.b)}
    with NetNS(name) as namespace:
        for link in namespace.get_links():
            ifname = link.get_attr("IFLA_IFNAME")
            fiber_end = name == OCS_NETNS and ifname != "lo" and ifname not in patched
            ours = ifname == "lo" or link.get_nested("IFLA_LINKINFO", "IFLA_INFO_KIND") == "veth"
            if ours and not fiber_end:
                namespace.link("set", index=link["index"], state="up")
