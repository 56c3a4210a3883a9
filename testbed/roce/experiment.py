"""Measures soft-RoCE over circuits and both aggregators before, during and after a live regroup.

Two jobs of two ranks each run on the paper's rack: both red and blue are under both aggregators.
Guests stand in for both of red's ranks and one of blue's. ``ib_write_bw`` runs between red's two
ranks; blue's guest tries to reach red. All traffic uses the rack's own flow tables.

**Rates.** A guest without KVM reaches some 120 Mbit/s of soft-RoCE. The site's link rates are
divided by RATE_DIVISOR, with the same ratio, so that the links and not the guests are measured.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from controller.devices.openflow.rules.pipeline import ROCE_UDP_PORT
from controller.ranks.nccl import ib_timeout
from sitefile import load_site
from testbed import rack
from testbed.demo import PAPER_SITE
from testbed.demo.api import Controller, Document
from testbed.guests.errors import GuestError
from testbed.guests.parts import GuestFiles, ensure
from testbed.rack import ovs
from testbed.rack.layout import bridge_name
from testbed.roce import splice
from testbed.roce.guest import RECIPE, Guest, GuestAddress
from testbed.roce.perftest import PORT, Transfer, client, parse, server

RED, BLUE = ("gpu0", "gpu2"), ("gpu1", "gpu3")
RATE_DIVISOR = 5
DARK_TOLERANCE_S = 1.0
"""Dark tolerance of both jobs; lightloom derives the queue pairs' timeout from it."""
MEASURE_S = 6
THROUGH_S = 16
"""Duration of the transfer during the regroup: longer than planning, dark time and one retry."""
STRAY_DATAGRAMS = 100
COMMAND_S = 120.0
"""Longest time of one command in a guest, with three emulated guests on a busy machine."""
_STARTED_S = 60.0
_FLOW_STATS_S = 1.5
"""Wait for flow counters: Open vSwitch's user space updates them once a second."""

Progress = Callable[[str], None]


@dataclass(slots=True, frozen=True)
class Flight:
    """One transfer: perftest's figure and the packets that the aggregators forwarded."""

    bandwidth_bps: float
    span: int
    roce_packets: dict[str, int] | None
    """Packets that the aggregators' rules for UDP 4791 forwarded; None across a regroup, which
    replaces the rules and their counters."""
    delivered: int
    """Packets to UDP 4791 that arrived at the receiving guest."""
    delivered_with_class: int
    """The delivered packets with the aggregators' code point."""


def run(run_dir: Path, *, progress: Progress) -> Document:
    """Bring a rack up, run all measurements, take it down; return the figures.

    Raises GuestError, RackError or DemoError.
    """
    parts = ensure(RECIPE)
    with ExitStack() as stack:
        stack.callback(rack.down, run_dir, progress=lambda _: None)
        status = rack.up(PAPER_SITE, run_dir, progress=progress)
        controller = stack.enter_context(Controller(status.url))
        rates = (status.access_bps / RATE_DIVISOR, status.inter_aggregator_bps / RATE_DIVISOR)
        rack.set_rates(run_dir, *rates)
        _start_jobs(controller)
        experiment = RoceExperiment(run_dir, controller, progress)
        stack.callback(experiment.close)
        experiment.boot(parts)
        document = experiment.measure()
    document["rates"] = {
        "access_bps": rates[0],
        "inter_aggregator_bps": rates[1],
        "rule": f"the site's rates divided by {RATE_DIVISOR}: links slower than a guest",
    }
    return document


class RoceExperiment:
    """Guests with RDMA on the rack's endpoints, and what is measured between them."""

    def __init__(self, run_dir: Path, controller: Controller, progress: Progress) -> None:
        self._dir = run_dir
        self._controller = controller
        self._progress = progress
        self._site = load_site(PAPER_SITE)
        self.guests: dict[str, Guest] = {}
        self._boot_s = 0.0

    def boot(self, parts: GuestFiles) -> None:
        """Boot the three guests in parallel."""
        self._progress("three guests boot (software emulation)")
        begin = time.monotonic()
        for name, endpoint in (("red-0", RED[0]), ("red-1", RED[1]), ("blue-0", BLUE[0])):
            cable = self._site.endpoint(endpoint)
            address = GuestAddress(cable.ip, cable.prefix_len, cable.mac)
            room = _room(name)
            self.guests[name] = Guest.start(f"ll-{name}", room, address, parts, self._dir)
        for guest in self.guests.values():
            guest.await_boot()
        self._boot_s = time.monotonic() - begin

    def close(self) -> None:
        """End all guests."""
        for guest in self.guests.values():
            guest.close()

    def measure(self) -> Document:
        """Perform all measurements in order."""
        before = self._transfer("before the regroup", MEASURE_S)
        isolation = [{"phase": "before", **self._measure_isolation()}]
        through, transaction = self._transfer_through_regroup()
        after = self._transfer("after the regroup", MEASURE_S)
        isolation.append({"phase": "after", **self._measure_isolation()})
        kernel = self._ask("red-0", "uname -r").strip()
        return {
            "source": "emulated",
            "site": self._site.name,
            "guests": {"count": len(self.guests), "kernel": kernel, "boot_s": self._boot_s},
            "qp_timeout": ib_timeout(DARK_TOLERANCE_S),
            "before": asdict(before),
            "through": asdict(through),
            "after": asdict(after),
            "regroup": {
                "state": transaction["state"],
                "dark_time_s": transaction["dark_time_s"],
                "moves": transaction["moves"],
            },
            "isolation": isolation,
        }

    def _transfer(
        self, when: str, seconds: int, meanwhile: Callable[[], None] | None = None
    ) -> Flight:
        """Write from red's first rank to the memory of its second rank for ``seconds``."""
        self._progress(f"ib_write_bw {when}")
        transfer = Transfer(seconds, ib_timeout(DARK_TOLERANCE_S))
        rules, arrived = self._rule_packets(), splice.to_guest(self.guests["red-1"].netns)
        self._ask("red-1", server(transfer))
        with ThreadPoolExecutor(max_workers=1) as beside:
            command = client(transfer, self._site.endpoint(RED[1]).ip)
            writing = beside.submit(self._ask, "red-0", command, seconds + 60.0)
            if meanwhile is not None:
                meanwhile()
            bandwidth_bps = parse(writing.result(), transfer)
        delivered = splice.to_guest(self.guests["red-1"].netns).since(arrived)
        passed = None
        if meanwhile is None:
            time.sleep(_FLOW_STATS_S)
            passed = {name: count - rules[name] for name, count in self._rule_packets().items()}
        span = self._controller.get("/jobs/red")["span"]
        return Flight(bandwidth_bps, span, passed, delivered.roce, delivered.classed)

    def _transfer_through_regroup(self) -> tuple[Flight, Document]:
        done: list[Document] = []

        def regroup() -> None:
            time.sleep(2.0)  # the transfer is in progress
            plan = self._controller.post("/plans", {})
            done.append(self._controller.post("/transactions", {"plan": plan}, wait_s=60))

        flight = self._transfer("during a live regroup", THROUGH_S, regroup)
        return flight, done[0]

    def _measure_isolation(self) -> dict[str, int]:
        """Send RoCEv2 from blue's guest to red's, and count the packets that arrive there.

        Blue's guest gets red's MAC address, which it could not find by itself, so that its frames
        are dropped as RoCEv2 and not because of a missing ARP reply.
        """
        self._progress("RoCEv2 from job blue to job red")
        blue = self.guests["blue-0"].netns
        sent, received = splice.from_guest(blue), {}
        for rank, endpoint in enumerate(RED):
            netns = self.guests[f"red-{rank}"].netns
            received[netns] = splice.to_guest(netns)
            target = self._site.endpoint(endpoint)
            self._ask("blue-0", f"arp -i eth0 -s {target.ip} {target.mac}")
            # A connection request of the RDMA connection manager, and also plain datagrams.
            self._try("blue-0", f"timeout 3 ib_write_bw -d rxe0 -x 1 -F -R -p {PORT} {target.ip}")
            self._try("blue-0", _datagram_command(target.ip))
        return {
            "sent": splice.from_guest(blue).since(sent).roce,
            "received": sum(
                splice.to_guest(netns).since(then).roce for netns, then in received.items()
            ),
        }

    def _rule_packets(self) -> dict[str, int]:
        """Return the packets that each aggregator's rules for UDP 4791 have forwarded."""
        found = {}
        for cable in self._site.aggregators:
            listed = subprocess.run(
                ["ovs-ofctl", "-O", "OpenFlow13", "dump-flows", bridge_name(cable.name)],
                env={**os.environ, **ovs.environment(self._dir)},
                capture_output=True,
                text=True,
                timeout=15,
                check=True,
            ).stdout
            rules = [line for line in listed.splitlines() if f"tp_dst={ROCE_UDP_PORT}" in line]
            found[cable.name] = sum(
                int(n) for r in rules for n in re.findall(r"n_packets=(\d+)", r)
            )
        return found

    def _ask(self, guest: str, command: str, timeout_s: float = COMMAND_S) -> str:
        status, output = self.guests[guest].run(command, timeout_s=timeout_s)
        if status:
            raise GuestError(
                f"{guest}: `{command}` returned {status}: {output[-800:]}", "see the output"
            )
        return output

    def _try(self, guest: str, command: str) -> None:
        """Run a command that is expected to fail."""
        self.guests[guest].run(command, timeout_s=COMMAND_S)


def _datagram_command(address: str) -> str:
    """Return a command that sends plain datagrams to the RoCEv2 port, with a log daemon."""
    return (
        f"syslogd -R {address}:{ROCE_UDP_PORT} -O /tmp/log; sleep 1; "
        f"for i in $(seq {STRAY_DATAGRAMS}); do logger stray; done; sleep 1; kill $(pidof syslogd)"
    )


def _start_jobs(controller: Controller) -> None:
    for name, endpoints in (("red", RED), ("blue", BLUE)):
        request: dict[str, Any] = {
            "name": name,
            "count": len(endpoints),
            "endpoints": list(endpoints),
            "policy": "live",
            "dark_tolerance_s": DARK_TOLERANCE_S,
            "command": ["sleep", "3600"],
        }
        controller.post("/jobs", request)
    deadline = time.monotonic() + _STARTED_S
    while any(job["state"] != "running" for job in controller.items("/jobs")):
        if time.monotonic() > deadline:
            raise GuestError("the jobs do not start", "see `lightloom get jobs`")
        time.sleep(0.1)


def _room(rank: str) -> str:
    """Return the network namespace of a rank's container."""
    for path in Path("/run/netns").glob(f"ll-c-{rank}-*"):
        return path.name
    raise GuestError(f"rank {rank} has no network namespace", "check that its container runs")
