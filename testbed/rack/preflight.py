"""Checks the preconditions of a rack before anything is created."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from base.addresses import join_address, split_address
from sitefile import CabledSite
from testbed.engine import HOST_SOCKET
from testbed.rack import ovs, programs, record, remains
from testbed.rack.errors import RackError
from testbed.rack.layout import RackLayout

RACKS = Path("/run/lightloom")
"""Default parent folder of racks' folders."""
MAX_RUN_DIR = 60
"""Longest run directory: a socket path has at most 107 characters, of which the engine needs 45."""


def need_root() -> None:
    """Raise RackError(forbidden) unless the user is root."""
    if os.geteuid() != 0:
        raise RackError(
            "forbidden",
            "the emulated rack needs root: it creates network namespaces and links",
            object="rack",
            hint="run the command with sudo",
        )


def need_tools() -> None:
    """Raise RackError(unavailable) with the names of all missing programs."""
    missing = ovs.tools_missing()
    missing += [tool for tool in ("ip", "tc", "cc") if shutil.which(tool) is None]
    if not HOST_SOCKET.exists() and shutil.which("dockerd") is None:
        missing.append("dockerd (and no Docker Engine is running)")
    if missing:
        raise RackError(
            "unavailable",
            f"this machine lacks {', '.join(missing)}",
            object="rack",
            hint="run `make setup`",
        )


def need_absent(run_dir: Path, layout: RackLayout) -> None:
    """Raise RackError(conflict) when a rack is already up or remains of one exist."""
    written = record.load(run_dir)
    if written is not None and written.phase == "up" and any(p.alive() for p in written.processes):
        raise RackError(
            "conflict",
            f"the rack is already up (site {written.site}, {written.url})",
            object="rack",
            hint="see `lightloom testbed status`; end it with `lightloom testbed down`",
        )
    left = remains.find(run_dir)
    taken = sorted(set(left.namespaces) & set(layout.namespaces))
    occupied = run_dir.exists() and any(run_dir.iterdir())
    if written is not None or taken or left.processes or (occupied and is_ours(run_dir)):
        raise RackError(
            "conflict",
            "remains of an earlier rack: " + "; ".join(left.summary()),
            object="rack",
            hint="run `lightloom testbed down` first",
        )
    if len(str(run_dir)) > MAX_RUN_DIR:
        raise RackError(
            "invalid",
            f"the path {run_dir} is too long for sockets below it",
            object=str(run_dir),
            hint=f"choose a folder with at most {MAX_RUN_DIR} characters",
        )
    if occupied:
        raise RackError(
            "invalid",
            f"{run_dir} is not empty and is not a rack's folder",
            object=str(run_dir),
            hint="choose an empty folder",
        )


def is_ours(run_dir: Path) -> bool:
    """Whether this folder may be deleted: it belongs to a rack or is the default location."""
    names = (record.FILE, record.DRAFT)
    return run_dir.parent == RACKS or any((run_dir / name).exists() for name in names)


def addresses(site: CabledSite) -> dict[str, tuple[str, int]]:
    """Return the listening addresses of this machine: part -> (host, port)."""
    found = {"controller": split_address(site.api_listen)}
    for server in site.servers:
        found[f"agent {server.name}"] = split_address(server.agent)
    for switch in site.switches:
        for number, address in enumerate(programs.switch_addresses(switch), start=1):
            found[f"optical switch {switch.name} ({number})"] = address
    return found


def need_free(listeners: Iterable[tuple[str, tuple[str, int]]]) -> None:
    """Raise RackError when an address is in use, or reachable from other machines."""
    for part, (host, port) in listeners:
        if host not in ("127.0.0.1", "localhost", "::1"):
            raise RackError(
                "invalid",
                f"{part} would listen on {host}: an emulated rack uses loopback only",
                object=join_address(host, port),
                hint="use 127.0.0.1 in the site file",
            )
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        with closing(socket.socket(family, socket.SOCK_STREAM)) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError as error:
                raise RackError(
                    "conflict",
                    f"{part} cannot listen on {join_address(host, port)}: {error.strerror}",
                    object=join_address(host, port),
                    hint="stop the program that uses the port, or change the site file",
                ) from None
