"""Connects a guest's tap in place of a container's NIC, and counts its RoCEv2 packets.

Every frame that enters one link leaves the other, before the container's own network stack
sees it. The first filters count RoCEv2 (UDP 4791), and RoCEv2 with the aggregators' code point,
separately; they also redirect.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass

from controller.devices.aggregators import ROCE_DSCP
from controller.devices.openflow.rules.pipeline import ROCE_UDP_PORT
from testbed.guests.errors import GuestError
from testbed.rack.shaping import run_tc

TAP = "ll-tap"
NIC = "e0"
_TIMEOUT_S = 30
_CLASSED, _ROCE, _REST = 1, 2, 3


@dataclass(slots=True, frozen=True)
class PacketCounts:
    """Packets in one direction. ``classed`` are RoCEv2 packets with the lossless class."""

    roce: int
    classed: int
    rest: int

    def since(self, earlier: PacketCounts) -> PacketCounts:
        """Return the packets after ``earlier``."""
        return PacketCounts(
            self.roce - earlier.roce, self.classed - earlier.classed, self.rest - earlier.rest
        )


def join(netns: str) -> None:
    """Join tap and NIC in both directions. Raises RackError when the kernel refuses."""
    lines = [f"link set {TAP} up"]
    _ip(netns, lines)
    rules = []
    for source, target in ((NIC, TAP), (TAP, NIC)):
        redirect = f"action mirred egress redirect dev {target}"
        roce = f"match ip protocol 17 0xff match ip dport {ROCE_UDP_PORT} 0xffff"
        tos = f"match ip tos {ROCE_DSCP << 2:#x} 0xfc"
        add = f"filter add dev {source} parent ffff:"
        rules += [
            f"qdisc add dev {source} ingress",
            f"{add} protocol ip prio {_CLASSED} u32 {roce} {tos} {redirect}",
            f"{add} protocol ip prio {_ROCE} u32 {roce} {redirect}",
            f"{add} protocol all prio {_REST} u32 match u32 0 0 {redirect}",
        ]
    run_tc(netns, rules)


def part(netns: str) -> None:
    """Return the NIC to the container; the tap ends with its guest."""
    run_tc(netns, [f"qdisc del dev {NIC} ingress"])


def to_guest(netns: str) -> PacketCounts:
    """Return the packets that arrived from the fabric."""
    return _counted(netns, NIC)


def from_guest(netns: str) -> PacketCounts:
    """Return the packets that the guest has sent."""
    return _counted(netns, TAP)


def _counted(netns: str, link: str) -> PacketCounts:
    text = _run(["tc", "-n", netns, "-s", "-j", "filter", "show", "dev", link, "ingress"])
    packets = dict.fromkeys((_CLASSED, _ROCE, _REST), 0)
    for entry in json.loads(text):
        for action in entry.get("options", {}).get("actions", ()):
            packets[entry["pref"]] += action["stats"]["packets"]
    return PacketCounts(packets[_CLASSED] + packets[_ROCE], packets[_CLASSED], packets[_REST])


def _ip(netns: str, lines: list[str]) -> None:
    _run(["ip", "-n", netns, "-batch", "-"], "\n".join(lines) + "\n")


def _run(command: list[str], text: str | None = None) -> str:
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, timeout=_TIMEOUT_S, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        detail = getattr(error, "stderr", "") or error
        raise GuestError(
            f"{' '.join(command)}: {detail}", "check that the rack is still up"
        ) from error
    return done.stdout
