"""Makes one object of a running rack fail as real ones do, and repairs it.

* An endpoint: in NVML its GPU fell off the bus, and the processes that used it are killed.
* A server: power is off. Its agent and all its containers are killed, its NICs lose their light,
  and what it kept in memory (tmpfs below its agent's directory) is gone.
* An aggregator: it loses its flows, ends its session, and its ports lose their carrier.
* An optical switch: its process is killed and every port of it is dark.

The rack's record lists what is lost before anything is done, so that a killed command can be
repeated; every step is idempotent. Containers of a lost server stay with Docker as they do on a
real server that reboots; its agent finds them when it is repaired.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Any

import docker
import requests

from agentlink.ranks import LABEL
from container_mgr.hardware.nic import Nics
from container_mgr.values import NIC_IN_CONTAINER, AgentError
from sitefile import CabledSite, load_site
from testbed import processes as kernel_view
from testbed.rack import gpus, locks, ovs, preflight, procfs, programs, record, remains
from testbed.rack.errors import RackError
from testbed.rack.layout import FABRIC_NETNS, OCS_NETNS, lay_out, server_netns
from testbed.rack.process import Process, ProgramSpec, end_all, kill_all, marked, spawn, wait_ready
from testbed.rack.record import RackRecord

Progress = Callable[[str], None]

LOCK_WAIT_S = 60.0
READY_S = 120.0
DOCKER_S = 30
GONE_S = 10.0
IP_S = 30.0
LOOK_S = 0.01


class ObjectKind(StrEnum):
    """What an object of the site is."""

    ENDPOINT = "endpoint"
    SERVER = "server"
    AGGREGATOR = "aggregator"
    SWITCH = "switch"


@dataclass(slots=True, frozen=True)
class LossChange:
    """One object that was lost or repaired."""

    object: str
    kind: ObjectKind
    state: str
    """``lost`` or ``repaired``."""
    changed: bool
    """False when it was so before."""
    at: float
    """Wall-clock time just before the first effect, in seconds since 1970."""
    took_s: float
    killed: tuple[int, ...] = ()
    """Processes that were killed."""

    def to_dict(self) -> dict[str, Any]:
        """Return plain lists, strings and numbers."""
        return {**dataclasses.asdict(self), "kind": self.kind.value, "killed": list(self.killed)}


def lose(name: str, run_dir: Path, *, progress: Progress = lambda _: None) -> LossChange:
    """Make an endpoint, server, aggregator or optical switch fail at once.

    ``progress`` gets the command that it waits for. Raises RackError: ``conflict`` without a rack,
    or where another command keeps it; ``invalid`` for a name that is not in the site.
    """
    preflight.need_root()
    run_dir = run_dir.absolute()
    _Rack(run_dir).kind(name)  # what can never be is refused without a wait
    with locks.RACK.held(wait_s=LOCK_WAIT_S, progress=progress), marked(run_dir):
        rack = _Rack(run_dir)
        kind = rack.kind(name)
        changed = name not in rack.record.lost
        if changed:
            rack.save(lost=(*rack.record.lost, name))
        at, begin = time.time(), time.monotonic()
        killed = rack.lose(kind, name)
        took_s = round(time.monotonic() - begin, 4)
        return LossChange(name, kind, "lost", changed, at, took_s, tuple(killed))


def repair(name: str, run_dir: Path, *, progress: Progress = lambda _: None) -> LossChange:
    """Bring a lost object back, empty as a device is after its power returns.

    Returns when its programs serve again. Raises RackError as :func:`lose`.
    """
    preflight.need_root()
    run_dir = run_dir.absolute()
    _Rack(run_dir).kind(name)
    with locks.RACK.held(wait_s=LOCK_WAIT_S, progress=progress), marked(run_dir):
        rack = _Rack(run_dir)
        kind = rack.kind(name)
        changed = name in rack.record.lost
        at, begin = time.time(), time.monotonic()
        if changed:
            rack.repair(kind, name)
            rack.save(lost=tuple(other for other in rack.record.lost if other != name))
        return LossChange(name, kind, "repaired", changed, at, round(time.monotonic() - begin, 4))


class _Rack:
    """A rack that is up, its record and its site."""

    def __init__(self, run_dir: Path) -> None:
        written = record.load(run_dir)
        if written is None or written.phase != "up":
            raise RackError(
                "conflict", "no rack is up", object="rack", hint="run `lightloom testbed up`"
            )
        self._dir = run_dir
        self.record: RackRecord = written
        self._site: CabledSite = load_site(record.site_copy(run_dir))
        self._layout = lay_out(self._site)

    def kind(self, name: str) -> ObjectKind:
        """Return what an object is. Raises RackError(invalid)."""
        names = {
            ObjectKind.ENDPOINT: [end.name for end in self._site.endpoints if end.emulated],
            ObjectKind.SERVER: [server.name for server in self._site.servers],
            ObjectKind.AGGREGATOR: [aggregator.name for aggregator in self._site.aggregators],
            ObjectKind.SWITCH: [switch.name for switch in self._site.switches],
        }
        for kind, known in names.items():
            if name in known:
                return kind
        raise RackError(
            "invalid",
            f"site {self._site.name} has no {name}",
            object=name,
            hint="one of " + ", ".join(name for known in names.values() for name in known),
        )

    def save(self, **changes: Any) -> None:
        """Change the record."""
        self.record = dataclasses.replace(self.record, **changes)
        record.save(self._dir, self.record)

    def lose(self, kind: ObjectKind, name: str) -> list[int]:
        """Make an object fail; return the processes that were killed."""
        match kind:
            case ObjectKind.ENDPOINT:
                gpus.write_states(self._dir, self._site, lost=self.record.lost)
                return self._kill(self._users_of("endpoint", name))
            case ObjectKind.SERVER:
                return self._lose_server(name)
            case ObjectKind.AGGREGATOR:
                self._set_links(FABRIC_NETNS, self._ports(name), up=False)
                ovs.switch_off(self._dir, self._bridge(name))
                return []
            case ObjectKind.SWITCH:
                killed = self._kill(self._process(name))
                self._set_links(OCS_NETNS, self._layout.link_maps[name].values(), up=False)
                return killed

    def repair(self, kind: ObjectKind, name: str) -> None:
        """Bring an object back. Raises RackError when its program does not start."""
        match kind:
            case ObjectKind.ENDPOINT:
                lost = [other for other in self.record.lost if other != name]
                gpus.write_states(self._dir, self._site, lost=lost)
            case ObjectKind.SERVER:
                self._repair_server(name)
            case ObjectKind.AGGREGATOR:
                self._set_links(FABRIC_NETNS, self._ports(name), up=True)
                ovs.switch_on(self._dir, self._bridge(name), self._site.openflow_listen)
            case ObjectKind.SWITCH:
                self._repair_switch(name)

    # -- servers ---------------------------------------------------------------------

    def _lose_server(self, name: str) -> list[int]:
        agent = self._process(f"agent-{name}")
        killed = self._kill([*agent, *self._users_of("server", name)])
        netns = server_netns(name)
        nics = Nics(name, netns)
        self._set_links(netns, (end.nic for end in self._served(name)), up=False)
        for namespace in nics.namespaces():
            self._set_links(namespace, [NIC_IN_CONTAINER], up=False)
        # All its containers have ended, so nothing holds what was in memory.
        kernel_view.unmount_below(self._dir / f"agent-{name}")
        return killed

    def _repair_server(self, name: str) -> None:
        nics = Nics(name, server_netns(name))
        try:
            for namespace in nics.namespaces():
                nics.release(namespace)
        except AgentError as error:
            raise RackError("failed", error.message, object=name, hint=error.hint) from error
        self._set_links(server_netns(name), (end.nic for end in self._served(name)), up=True)
        env = programs.python_environment(os.environ)
        server = self._site.server(name)
        docker_host = self.record.docker_host
        self._start(programs.agent(self._dir, self._site, server, docker_host, env))

    def _served(self, server: str) -> list[Any]:
        return [end for end in self._site.endpoints if end.server == server]

    def _users_of(self, label: str, value: str) -> list[tuple[int, int]]:
        """Return the processes in the containers of an endpoint or a server."""
        try:
            with closing(docker.DockerClient(self.record.docker_host, timeout=DOCKER_S)) as client:
                found = client.api.containers(filters={"label": f"{LABEL}{label}={value}"})
        except (docker.errors.DockerException, requests.RequestException) as error:
            raise RackError(
                "unavailable",
                f"the engine does not report what runs there: {error}",
                object=value,
                hint="see the log of dockerd: lightloom testbed status",
            ) from error
        return _identities(kernel_view.in_cgroups([one["Id"] for one in found]))

    # -- switches --------------------------------------------------------------------

    def _repair_switch(self, name: str) -> None:
        emulation = self._site.emulation
        switch = next(one for one in self._site.switches if one.name == name)
        if emulation is None:
            raise RackError("invalid", "the site has no emulation section", object=name)
        env = programs.python_environment(os.environ)
        env |= programs.passwords(self._site, os.environ)
        self._start(programs.emulator(self._dir, switch, emulation, env))

    def _bridge(self, aggregator: str) -> Any:
        dpid = next(one.dpid for one in self._site.aggregators if one.name == aggregator)
        return next(bridge for bridge in self._layout.bridges if bridge.dpid == dpid)

    def _ports(self, aggregator: str) -> list[str]:
        ports: list[str] = list(self._bridge(aggregator).ports.values())
        return ports

    # -- processes and links -----------------------------------------------------------

    def _process(self, name: str) -> list[tuple[int, int]]:
        return [(p.pid, p.ticks) for p in self.record.processes if p.name == name]

    def _start(self, program: ProgramSpec) -> None:
        """Start a program in the place of the one that was killed."""
        end_all(self._process(program.name), grace_s=0)
        process = spawn(program, record.logs(self._dir), str(self._dir))
        self.save(processes=tuple(_replaced(self.record.processes, process)))
        ready = partial(programs.listening, Path(process.log))
        wait_ready(process, ready, timeout_s=READY_S)

    def _kill(self, targets: Sequence[tuple[int, int]]) -> list[int]:
        """Kill processes at once, also frozen ones, and wait until they are gone."""
        alive = [(pid, ticks) for pid, ticks in targets if procfs.start_ticks(pid) == ticks]
        kill_all(alive)
        for pid, _ in alive:
            kernel_view.thaw(pid)  # on cgroup v1 a frozen process does not even handle SIGKILL
        _until(lambda: all(procfs.start_ticks(pid) != ticks for pid, ticks in alive))
        return [pid for pid, _ in alive]

    def _set_links(self, netns: str, names: Iterable[str], *, up: bool) -> None:
        """Set links up or down; one that is elsewhere (in a container) is left out."""
        state = "up" if up else "down"
        lines = "".join(f"link set {name} {state}\n" for name in names)
        if not lines or not (remains.NETNS_DIR / netns).exists():
            return
        try:
            subprocess.run(
                ["ip", "-n", netns, "-force", "-batch", "-"],
                input=lines,
                text=True,
                capture_output=True,
                timeout=IP_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise RackError(
                "timeout", f"ip did not respond in {IP_S:g} s", object=f"netns/{netns}"
            ) from None


def _identities(pids: Iterable[int]) -> list[tuple[int, int]]:
    found = [(pid, procfs.start_ticks(pid)) for pid in pids]
    return [(pid, ticks) for pid, ticks in found if ticks is not None]


def _replaced(processes: Iterable[Process], by: Process) -> list[Process]:
    return [by if process.name == by.name else process for process in processes]


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + GONE_S
    while not condition() and time.monotonic() < deadline:
        time.sleep(LOOK_S)
