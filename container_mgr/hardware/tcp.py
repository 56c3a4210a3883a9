"""Configures TCP for a NIC whose light may be cut: that costs no more than the dark time.

All functions act on the network namespace of the calling thread.
"""

from __future__ import annotations

from contextlib import suppress
from ipaddress import IPv4Interface
from pathlib import Path

import structlog
from pyroute2 import IPRoute

from container_mgr.values import NIC_IN_CONTAINER

CONGESTION_CONTROLS = ("cubic", "reno")
"""The first that the kernel allows is used. Where the machine's default is another, cubic can be
restricted (net.ipv4.tcp_allowed_congestion_control); reno never is. BBR does not slow down when
packets are lost: on a full link some of its connections get nothing for tens of seconds.
"""

_SYSCTL = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_KEEP_NEIGHBOURS = Path(f"/proc/sys/net/ipv4/conf/{NIC_IN_CONTAINER}/arp_evict_nocarrier")
_LINK_SCOPE, _BY_KERNEL = 253, 2
"""RT_SCOPE_LINK and RTPROT_KERNEL: the address's own route gets metrics (rtnetlink(7))."""
_RTO_MIN_MS = 20
"""The least retransmission time-out. Linux uses 200 ms because peers may delay acknowledgements."""
_RTAX_RTO_MIN = 13
"""The metric's number; the metric applies only when it is locked (linux/rtnetlink.h)."""

_log = structlog.get_logger("container_mgr.hardware.tcp")


def set_congestion_control() -> None:
    """Use a congestion control that slows down when packets are lost."""
    for name in CONGESTION_CONTROLS:
        with suppress(OSError):
            _SYSCTL.write_text(name, encoding="ascii")
            return
    _log.warning("congestion control not set", wanted=CONGESTION_CONTROLS)


def tune_for_dark_time(ip: IPRoute, index: int, address: IPv4Interface) -> None:
    """Configure the NIC ``index``, which has this address and the name of one in a container."""
    # Peers' MACs come from the site file and never change. Linux would drop them with the
    # carrier, and packets sent in the dark would then wait for the next ARP, 1 s later.
    with suppress(FileNotFoundError):  # before Linux 5.16
        _KEEP_NEIGHBOURS.write_text("0", encoding="ascii")
    # Acknowledgements are never delayed: a frozen job is silent after one round trip, and
    # retransmission need not wait for a delayed acknowledgement.
    ip.route(
        "replace",
        dst=str(address.network),
        oif=index,
        prefsrc=str(address.ip),
        scope=_LINK_SCOPE,
        proto=_BY_KERNEL,
        metrics={"quickack": 1, "rto_min": _RTO_MIN_MS, "lock": 1 << _RTAX_RTO_MIN},
    )
