"""Writes HTB link rates and the fixed patches as lines for ``tc -batch``.

One tc process configures a whole namespace. The parameters are those that kept their rate
with segmentation offload enabled: a burst of 32 kB, a quantum of 60 kB, a queue of 100 packets.
Shaping must be set up after the bridges exist: Open vSwitch removes a link's queueing when it
adds the link, and does not change it afterwards.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence

from testbed.rack.errors import RackError
from testbed.rack.layout import FABRIC_NETNS, OCS_NETNS, Patch, RackLayout

TC_TIMEOUT_S = 60.0
MIN_BPS = 8_000.0
"""Lowest rate: below it the smallest burst lasts longer than any protocol waits."""


def check_rate(name: str, bps: float) -> int:
    """Return ``bps`` as whole bit/s. Raises RackError(invalid) for an invalid rate."""
    if not MIN_BPS <= bps <= 1e12:
        raise RackError(
            "invalid",
            f"{name} of {bps:g} bit/s cannot be emulated",
            object=name,
            hint=f"choose a rate between {MIN_BPS:g} and 1e12 bit/s",
        )
    return int(bps)


def htb_class(link: str, bps: int, *, verb: str = "add") -> str:
    """Return the line that sets the rate of ``link``; ``verb`` is ``add`` or ``change``."""
    return (
        f"class {verb} dev {link} parent 1: classid 1:1 "
        f"htb rate {bps}bit ceil {bps}bit burst 32k quantum 60000"
    )


def htb_setup(links: Iterable[str], bps: int) -> list[str]:
    """Return the lines that shape the egress of each link to ``bps`` bit/s."""
    lines: list[str] = []
    for link in links:
        lines.append(f"qdisc add dev {link} root handle 1: htb default 1")
        lines.append(htb_class(link, bps))
        lines.append(f"qdisc add dev {link} parent 1:1 handle 10: pfifo limit 100")
    return lines


def patch_lines(patches: Iterable[Patch]) -> list[str]:
    """Return the lines that join two links: all frames that enter one leave the other."""
    lines: list[str] = []
    for patch in patches:
        for source, target in ((patch.a, patch.b), (patch.b, patch.a)):
            lines.append(f"qdisc add dev {source} ingress")
            lines.append(
                f"filter add dev {source} parent ffff: protocol all prio 1 "
                f"u32 match u32 0 0 action mirred egress redirect dev {target}"
            )
    return lines


def access_links(layout: RackLayout) -> list[str]:
    """Return the shaped ends of all fibers, in the optical namespace."""
    return [veth.b for veth in layout.fibers]


def uplink_ends(layout: RackLayout) -> list[str]:
    """Return both shaped ends of all uplinks, in the fabric's namespace."""
    return [end for veth in layout.uplinks for end in (veth.a, veth.b)]


def setup_lines(layout: RackLayout, access_bps: int, inter_bps: int) -> dict[str, list[str]]:
    """Return the first-time lines per namespace."""
    return {
        OCS_NETNS: htb_setup(access_links(layout), access_bps) + patch_lines(layout.patches),
        FABRIC_NETNS: htb_setup(uplink_ends(layout), inter_bps),
    }


def change_lines(layout: RackLayout, access_bps: int, inter_bps: int) -> dict[str, list[str]]:
    """Return the lines per namespace that change the rates under traffic without packet loss."""
    return {
        OCS_NETNS: [htb_class(n, access_bps, verb="change") for n in access_links(layout)],
        FABRIC_NETNS: [htb_class(n, inter_bps, verb="change") for n in uplink_ends(layout)],
    }


def run_tc(netns: str, lines: Sequence[str]) -> None:
    """Execute ``lines`` in ``netns``. Raises RackError(failed) with tc's own message."""
    if not lines:
        return
    try:
        done = subprocess.run(
            ["tc", "-n", netns, "-batch", "-"],
            input="\n".join(lines) + "\n",
            text=True,
            capture_output=True,
            timeout=TC_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RackError(
            "timeout", f"tc did not respond in {TC_TIMEOUT_S:g} s", object=f"netns/{netns}"
        ) from None
    if done.returncode != 0:
        raise RackError(
            "failed",
            f"tc could not shape the links of {netns}: {done.stderr.strip()}",
            object=f"netns/{netns}",
            hint="the kernel needs sch_htb, cls_u32 and act_mirred",
        )
