"""A small rack for the OpenFlow tests: two OVS bridges and endpoints, all in ``ll-t-`` namespaces.

Open vSwitch runs in user space with a database of its own in namespace ``ll-t-fab``. Nothing of it
is in the root namespace but the namespaces' names; ``close`` removes everything.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import socket
import subprocess
import tempfile
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from pyroute2 import netns as namespaces

from controller.devices.aggregators import AttachPoint
from sitefile.model import CabledSite
from tests.integration.machine import LIMIT_S, run

FABRIC = "ll-t-of-fab"
SCHEMA = "/usr/share/openvswitch/vswitch.ovsschema"


def inside(netns: str, *command: str, check: bool = True) -> str:
    """Run a program inside a namespace."""
    return run("ip", "netns", "exec", netns, *command, check=check)


class OpenFlowRack:
    """Bridges ``ll-t-as<n>`` for the site's aggregators and a namespace for every endpoint."""

    def __init__(self, site: CabledSite, attachments: Mapping[str, AttachPoint]) -> None:
        self._dir = Path(tempfile.mkdtemp(prefix="ll-t-ovs-"))
        self._site = site
        self._attachments = attachments

    def open(self) -> None:
        """Bring everything up."""
        self._sweep()
        run("ip", "netns", "add", FABRIC)
        inside(FABRIC, "ip", "link", "set", "lo", "up")
        self._start_ovs()
        for cable in self._site.aggregators:
            self.vsctl(
                *("add-br", bridge(cable.name), "--"),
                *("set", "bridge", bridge(cable.name), "datapath_type=netdev"),
                *("protocols=OpenFlow13", "fail-mode=secure"),
                f"other-config:datapath-id={cable.dpid:016x}",
            )
        for uplink in self._site.uplinks:
            a, b = (f"{end.device}-u{end.port}" for end in (uplink.a, uplink.b))
            inside(FABRIC, "ip", "link", "add", a, "type", "veth", "peer", "name", b)
            self._plug(uplink.a.device, a, int(uplink.a.port))
            self._plug(uplink.b.device, b, int(uplink.b.port))
        self.appctl("upcall/disable-megaflows")
        for name, at in self._attachments.items():
            self._endpoint(name, at)

    def close(self) -> None:
        """Remove everything, in any state."""
        for name in ("ovs-vswitchd.pid", "ovsdb-server.pid"):
            _end(self._dir / name)
        self._sweep()
        shutil.rmtree(self._dir, ignore_errors=True)

    def point_at(self, port: int, tls: Path | None = None) -> None:
        """Tell the bridges where their controller listens, inside the fabric's namespace.

        Over TLS they prove themselves by what lies in ``tls``.
        """
        if tls is not None:
            self.vsctl("set-ssl", *(str(tls / name) for name in ("key.pem", "cert.pem", "ca.pem")))
        for cable in self._site.aggregators:
            name = bridge(cable.name)
            self.vsctl("set-controller", name, f"{'ssl' if tls else 'tcp'}:127.0.0.1:{port}")
            self.vsctl(
                *("set", "controller", name, "connection-mode=out-of-band"),
                *("max_backoff=1000", "inactivity_probe=5000"),
            )

    def vsctl(self, *command: str) -> str:
        """Run ovs-vsctl on our database."""
        return run("ovs-vsctl", f"--db=unix:{self._dir}/db.sock", "-t", "50", *command)

    def appctl(self, *command: str) -> str:
        """Run ovs-appctl on our switch."""
        return run("ovs-appctl", "-t", f"{self._dir}/vswitchd.ctl", *command)

    def cached(self, at: AttachPoint) -> list[str]:
        """Return the decisions that the switch has cached and that send a frame out of a port."""
        link = _link(at)
        entries = self.appctl("dpctl/dump-flows", "-m", "netdev@ovs-netdev").splitlines()
        return [entry for entry in entries if link in entry.partition("actions:")[2]]

    def ofctl(self, verb: str, aggregator: str, *rest: str) -> str:
        """Run ovs-ofctl on a bridge."""
        socket = f"unix:{self._dir}/{bridge(aggregator)}.mgmt"
        return run("ovs-ofctl", "-O", "OpenFlow13", verb, socket, *rest)

    def ping(self, source: str, target: str, *, within_s: int) -> bool:
        """Say whether ``source`` reaches ``target``: whether two are answered in time."""
        ip = self._site.endpoint(target).ip
        command = ("ping", "-c", "2", "-i", "0.2", "-w", str(within_s), ip)
        return " 2 received" in inside(netns_of(source), *command, check=False)

    def wire(self, endpoint: str) -> socket.socket:
        """Return a raw socket on an endpoint's NIC."""
        made: list[socket.socket] = []

        def inside_namespace() -> None:
            namespaces.setns(netns_of(endpoint), flags=os.O_RDONLY)
            sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0003))
            sock.bind(("e0", 0))
            made.append(sock)

        thread = threading.Thread(target=inside_namespace)
        thread.start()
        thread.join()
        return made[0]

    def _start_ovs(self) -> None:
        d = self._dir
        database, socket = f"{d}/conf.db", f"{d}/db.sock"
        run("ovsdb-tool", "create", database, SCHEMA)
        run(
            *("env", f"OVS_RUNDIR={d}", "ovsdb-server", database, f"--remote=punix:{socket}"),
            *(f"--pidfile={d}/ovsdb-server.pid", f"--log-file={d}/db.log"),
            *(f"--unixctl={d}/ovsdb.ctl", "--detach"),
        )
        self.vsctl("--no-wait", "init")
        self.vsctl(
            "--no-wait", "set", "Open_vSwitch", ".", "other_config:userspace-tso-enable=true"
        )
        inside(
            FABRIC,
            *("env", f"OVS_RUNDIR={d}", "ovs-vswitchd", f"unix:{socket}"),
            *(f"--pidfile={d}/ovs-vswitchd.pid", f"--log-file={d}/vs.log"),
            *(f"--unixctl={d}/vswitchd.ctl", "--detach"),
        )

    def _endpoint(self, name: str, at: AttachPoint) -> None:
        cable, netns, link = (
            self._site.endpoint(name),
            netns_of(name),
            _link(at),
        )
        run("ip", "netns", "add", netns)
        run(
            *("ip", "-n", FABRIC, "link", "add", link, "type", "veth"),
            *("peer", "name", "e0", "address", cable.mac, "netns", netns),
        )
        self._plug(at.aggregator, link, at.port)
        run("ip", "-n", netns, "address", "add", f"{cable.ip}/{cable.prefix_len}", "dev", "e0")
        run("ip", "-n", netns, "link", "set", "e0", "up")

    def _plug(self, aggregator: str, link: str, port: int) -> None:
        inside(FABRIC, "ip", "link", "set", link, "up")
        self.vsctl(
            *("add-port", bridge(aggregator), link, "--"),
            *("set", "interface", link, f"ofport_request={port}"),
        )

    def _sweep(self) -> None:
        for netns in [FABRIC, *map(netns_of, self._attachments)]:
            run("ip", "netns", "del", netns, check=False)


class Stream:
    """A hundred echo requests a second, and which of them were answered."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self.process = process
        self.answered: list[int] = []
        self._reading = asyncio.create_task(self._read())

    @classmethod
    async def begin(cls, netns: str, ip: str) -> Stream:
        """Begin to ask ``ip`` from a namespace."""
        ping = ("ip", "netns", "exec", netns, "ping", "-i", "0.01", ip)
        return cls(await asyncio.create_subprocess_exec(*ping, stdout=subprocess.PIPE))

    async def _read(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.answered += [int(number) for number in re.findall(rb"icmp_seq=(\d+)", line)]

    async def more(self, count: int) -> None:
        """Wait for so many more answers."""
        wanted = len(self.answered) + count
        async with asyncio.timeout(LIMIT_S):
            while len(self.answered) < wanted:
                assert not self._reading.done()
                await asyncio.sleep(0.01)

    def lost(self) -> set[int]:
        """Those without an answer up to the last answer; later ones may be under way."""
        return set(range(1, max(self.answered) + 1)) - set(self.answered)

    async def end(self) -> None:
        """Ask no more."""
        if self.process.returncode is None:
            self.process.kill()
        await self.process.wait()
        await self._reading


def bridge(aggregator: str) -> str:
    """The bridge's name."""
    return f"ll-t-{aggregator}"


def _link(at: AttachPoint) -> str:
    return f"{at.aggregator}-p{at.port}"


def netns_of(endpoint: str) -> str:
    """The namespace of an endpoint."""
    return f"ll-t-of-{endpoint}"


def _end(pidfile: Path) -> None:
    """End the process named by ``pidfile`` and wait until it is gone."""
    if not pidfile.exists():
        return
    pid = int(pidfile.read_text())
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.kill(pid, number)
            for _ in range(100):
                time.sleep(0.05)
                os.kill(pid, 0)
