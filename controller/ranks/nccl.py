"""NCCL's environment: its NIC, GID, time-outs and ring. Pure.

**Time-outs.** A queue pair gives up a message after ``retries`` tries of 4.096 µs · 2^timeout each
(InfiniBand Architecture Specification, local ACK timeout; ``NCCL_IB_TIMEOUT``,
``NCCL_IB_RETRY_CNT``). With ``dark_s``, the longest dark time planned for the job while it is
awake, and 7 retries, the most that the three bits hold::

    timeout = ceil(log2(4 · dark_s / (4.096e-6 · retries))),  at least 18, at most 31 (five bits)

Four times the dark time, because retries start late and overlap, and a NIC may wait longer or
shorter than configured (the specification allows a factor of four). Not longer than that, because
what is lost in the dark is sent again only when a try has timed out: 0.27 s at 16, 1.07 s at 18,
4.3 s at 20. Never below 18, NCCL's default from 2.14 to 2.22, because congestion also needs time.
A job that states no dark time gets 20, NCCL's default since 2.23.

**Ring.** NCCL joins hosts in rank order. ``NCCL_HOSTID`` makes every rank a host of its own, also
two on one server, because they see neither each other's GPU nor each other's memory;
``NCCL_ALGO=Ring`` keeps to the ring that the scheduler has chosen.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from controller.devices.aggregators import ROCE_DSCP
from controller.ranks.rules import Rule, anything, number
from controller.ranks.tolerance import IB_MARGIN, IB_RETRIES, IB_UNIT_S

MIN_TIMEOUT, MAX_TIMEOUT = 18, 31

NCCL_RULES: Mapping[str, Rule] = {
    "NCCL_IB_TIMEOUT": number(1, MAX_TIMEOUT),
    "NCCL_IB_RETRY_CNT": number(1, 7),
    "NCCL_ALGO": anything(),
}
"""Variables that a job may override. Its time-outs are read before every move of its light."""

NCCL_OWNED: Mapping[str, str] = {
    **dict.fromkeys(
        ("NCCL_SOCKET_IFNAME", "NCCL_IB_HCA", "NCCL_IB_DISABLE"), "a rank has one data NIC"
    ),
    **dict.fromkeys(
        ("NCCL_IB_GID_INDEX", "NCCL_IB_ADDR_FAMILY", "NCCL_IB_ROCE_VERSION_NUM"),
        "the fabric carries RoCEv2 over IPv4",
    ),
    "NCCL_IB_TC": "the aggregators' lossless class is fixed",
    "NCCL_HOSTID": "every rank is a host of its own",
}
"""Variables that a job may not set, and why."""


@dataclass(slots=True, frozen=True)
class Network:
    """The data network as a rank's container sees it."""

    interface: str = "e0"
    rdma: str | None = None
    """The RDMA device; empty without one, None where only the container can read it."""
    gid_index: int | None = None
    """Entry of the GID table for RoCEv2 over IPv4; None lets NCCL (2.21 and newer) find it."""
    dscp: int = ROCE_DSCP
    """Code point of the lossless class."""


def ib_timeout(dark_s: float, retries: int = IB_RETRIES) -> int:
    """Return the local ACK timeout exponent for a planned dark time in seconds."""
    tries = IB_MARGIN * max(dark_s, 0.0) / (IB_UNIT_S * retries)
    needed = math.ceil(math.log2(tries)) if tries > 1 else 0
    return min(MAX_TIMEOUT, max(MIN_TIMEOUT, needed))


def nccl_environment(
    *, host: str, dark_s: float, network: Network, retries: int = IB_RETRIES
) -> dict[str, str]:
    """Return NCCL's variables for the rank whose name is ``host``.

    ``retries`` is the job's own number of tries, when it sets one.
    """
    found = {
        "NCCL_SOCKET_IFNAME": f"={network.interface}",
        "NCCL_IB_ADDR_FAMILY": "AF_INET",
        "NCCL_IB_ROCE_VERSION_NUM": "2",
        "NCCL_IB_TC": str(network.dscp << 2),  # the DSCP is the upper six bits of the traffic class
        "NCCL_IB_TIMEOUT": str(ib_timeout(dark_s, retries)),
        "NCCL_IB_RETRY_CNT": str(retries),
        "NCCL_ALGO": "Ring",
        "NCCL_HOSTID": host,
    }
    if network.rdma:
        found["NCCL_IB_HCA"] = f"={network.rdma}"
    elif network.rdma is not None:
        found["NCCL_IB_DISABLE"] = "1"
    if network.gid_index is not None:
        found["NCCL_IB_GID_INDEX"] = str(network.gid_index)
    return found
