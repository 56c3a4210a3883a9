"""Runs the rack's own Open vSwitch: a database and a userspace switch, one bridge per aggregator.

The host's Open vSwitch, if present, has other sockets and is never used.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

from pki.authority import CA_FILE, CERT_FILE, KEY_FILE
from testbed.rack.errors import RackError
from testbed.rack.layout import FABRIC_NETNS, Bridge
from testbed.rack.process import ProgramSpec

SCHEMA = Path("/usr/share/openvswitch/vswitch.ovsschema")
CALL_TIMEOUT_S = 60
MAX_BACKOFF_MS = 1000
"""Longest pause between two connection attempts of a bridge to its controller."""
INACTIVITY_PROBE_MS = 5000
MAX_CACHED = 10_000
"""Entries of the switch's cache. Each change of a rule translates all of them again, 1.5 µs each: a
job that sends to ever new ports delays the end of other jobs' old entries by 15 ms, not by 150."""


def tools_missing() -> list[str]:
    """Return the Open vSwitch programs and files that this machine lacks."""
    missing = [
        tool
        for tool in ("ovs-vswitchd", "ovsdb-server", "ovsdb-tool", "ovs-vsctl", "ovs-ofctl")
        if shutil.which(tool) is None
    ]
    return missing if missing or SCHEMA.exists() else [str(SCHEMA)]


def database_socket(run_dir: Path) -> Path:
    """Return the socket of the rack's ovsdb-server."""
    return run_dir / "ovs" / "db.sock"


def environment(run_dir: Path) -> dict[str, str]:
    """Return the environment in which the ovs-* tools find this rack's Open vSwitch."""
    return {"OVS_RUNDIR": str(run_dir / "ovs")}


def database_program(run_dir: Path) -> ProgramSpec:
    """Return the database server as a program to start, after :func:`create_database`."""
    folder = run_dir / "ovs"
    return ProgramSpec(
        "ovsdb-server",
        (
            "ovsdb-server",
            str(folder / "conf.db"),
            f"--remote=punix:{database_socket(run_dir)}",
            f"--unixctl={folder / 'ovsdb-server.ctl'}",
            "-vconsole:info",
        ),
        env=environment(run_dir),
    )


def control_socket(run_dir: Path) -> Path:
    """Return the socket on which ovs-vswitchd accepts commands of ovs-appctl."""
    return run_dir / "ovs" / "ovs-vswitchd.ctl"


def switch_program(run_dir: Path) -> ProgramSpec:
    """Return the switch as a program to start, after :func:`prepare`.

    It has priority over everything else: a packet switch has its own processor, which no job keeps
    busy. Where that is not permitted, ``nice`` logs it and starts the switch all the same.
    """
    return ProgramSpec(
        "ovs-vswitchd",
        (
            *("nice", "-n", "-10"),
            "ovs-vswitchd",
            f"unix:{database_socket(run_dir)}",
            f"--unixctl={control_socket(run_dir)}",
            "-vconsole:info",
        ),
        netns=FABRIC_NETNS,
        env=environment(run_dir),
    )


def create_database(run_dir: Path) -> None:
    """Create an empty configuration database. Raises RackError(failed) when the tool fails."""
    folder = run_dir / "ovs"
    folder.mkdir(parents=True, exist_ok=True)
    _call(["ovsdb-tool", "create", str(folder / "conf.db"), str(SCHEMA)], run_dir)


def prepare(run_dir: Path) -> None:
    """Write the settings that the switch needs before it starts.

    Without userspace segmentation offload, a veth's checksum offload breaks TCP silently (ping
    still works), and with offload disabled a flow reaches a tenth of the rate.
    """
    _vsctl(run_dir, ["--no-wait", "init"])
    settings = ("userspace-tso-enable=true", f"flow-limit={MAX_CACHED}")
    _vsctl(
        run_dir,
        ["--no-wait", "set", "Open_vSwitch", ".", *(f"other_config:{one}" for one in settings)],
    )


def bridge_arguments(bridges: Sequence[Bridge], controller: str) -> list[str]:
    """Return the single ovs-vsctl transaction that creates all bridges and their ports.

    ``controller`` is ``host:port``. With TLS all bridges use the certificate of
    :func:`use_certificate`, because Open vSwitch has only one. A bridge without a controller
    keeps its flows and adds none (fail_mode=secure).
    """
    arguments: list[str] = []
    for bridge in bridges:
        arguments += [
            *("--", "add-br", bridge.name),
            *("--", "set", "bridge", bridge.name, "datapath_type=netdev", "fail_mode=secure"),
            *("protocols=OpenFlow13", f"other_config:datapath-id={bridge.dpid:016x}"),
            "other_config:disable-in-band=true",
            *controller_arguments(bridge, controller),
        ]
        for number, link in sorted(bridge.ports.items()):
            arguments += [
                *("--", "add-port", bridge.name, link),
                *("--", "set", "interface", link, f"ofport_request={number}"),
            ]
    return arguments


def controller_arguments(bridge: Bridge, controller: str) -> list[str]:
    """Return the part of an ovs-vsctl transaction that connects a bridge to its controller."""
    return [
        *("--", "set-controller", bridge.name, _target(bridge, controller)),
        *("--", "set", "controller", bridge.name, "connection_mode=out-of-band"),
        *(f"max_backoff={MAX_BACKOFF_MS}", f"inactivity_probe={INACTIVITY_PROBE_MS}"),
    ]


def switch_off(run_dir: Path, bridge: Bridge) -> None:
    """End a bridge's session and drop its flows: in fail mode secure it forwards nothing."""
    _vsctl(run_dir, ["del-controller", bridge.name])
    _call(["ovs-ofctl", "-O", "OpenFlow13", "del-flows", bridge.name], run_dir)


def switch_on(run_dir: Path, bridge: Bridge, controller: str) -> None:
    """Connect a bridge to its controller again, without any flow."""
    _vsctl(run_dir, controller_arguments(bridge, controller))


def _target(bridge: Bridge, controller: str) -> str:
    return f"{'ssl' if bridge.tls else 'tcp'}:{controller}"


def use_certificate(run_dir: Path, tls: Path) -> None:
    """Set the switch's credentials from ``tls`` (see ``lightloom pki issue aggregator``)."""
    _vsctl(run_dir, ["set-ssl", *(str(tls / name) for name in (KEY_FILE, CERT_FILE, CA_FILE))])


def make_bridges(run_dir: Path, bridges: Sequence[Bridge], controller: str) -> None:
    """Create all bridges, wait until the switch has them, and check every port's number.

    The switch caches decisions for exact headers only. With wildcards, the userspace datapath
    changes an entry that overlaps the one it means, and a frame follows a rule that is gone
    (ADR 0067).
    """
    _vsctl(run_dir, bridge_arguments(bridges, controller))
    _call(["ovs-appctl", "-t", str(control_socket(run_dir)), "upcall/disable-megaflows"], run_dir)
    for bridge in bridges:
        for number, link in bridge.ports.items():
            got = _vsctl(run_dir, ["get", "interface", link, "ofport"]).strip()
            if got != str(number):
                raise RackError(
                    "failed",
                    f"Open vSwitch gave {link} port number {got} instead of {number}",
                    object=f"bridge/{bridge.name}",
                    hint="see the log of ovs-vswitchd",
                )


def _vsctl(run_dir: Path, arguments: Sequence[str]) -> str:
    database = f"--db=unix:{database_socket(run_dir)}"
    return _call(["ovs-vsctl", database, f"--timeout={CALL_TIMEOUT_S}", *arguments], run_dir)


def _call(argv: Sequence[str], run_dir: Path) -> str:
    try:
        done = subprocess.run(
            argv,
            capture_output=True,
            text=True,
            env={**os.environ, **environment(run_dir)},
            timeout=CALL_TIMEOUT_S + 5,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RackError(
            "timeout", f"{argv[0]} did not respond in {CALL_TIMEOUT_S} s", object="openvswitch"
        ) from None
    if done.returncode != 0:
        raise RackError(
            "failed",
            f"{argv[0]} failed: {done.stderr.strip() or done.stdout.strip()}",
            object="openvswitch",
            hint=f"see {run_dir / 'logs' / 'ovs-vswitchd.log'}",
        )
    return done.stdout
