"""Brings a rack's Slurm up: namespaces, daemons, and the hook's way to the controller."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import httpx
import yaml
from pyroute2.netlink.exceptions import NetlinkError

import console.deploy
from base.addresses import split_address
from sitefile import CabledSite, load_site
from testbed.rack import record
from testbed.rack.errors import RackError
from testbed.rack.process import Process, ProgramSpec, accepts, quote
from testbed.rack.slurm import config, network, programs
from testbed.rack.slurm.root import ensure_root
from testbed.token import rack_token

READY_S = 60.0
CALL_S = 30.0
POLL_S = 0.1
HOOK = Path(console.deploy.__file__).parent / "slurm" / "lightloom-allocation"
TOKEN_NAME = "slurm-hook"  # noqa: S105 - the name of a token


def under_slurm(site: CabledSite, run_dir: Path, wanted: config.UnderSlurm) -> CabledSite:
    """Add the section ``engine`` to the rack's copy of its site file; return the site.

    RackError(invalid) when the file has one, or when it has no such endpoint;
    RackError(unavailable) without Slurm's packages.
    """
    path = record.site_copy(run_dir)
    if site.engine is not None:
        raise RackError(
            "invalid",
            f"{site.name} has an engine of its own",
            object="engine",
            hint="remove the section engine: the rack writes its own",
        )
    unknown = sorted(set(wanted.endpoints) - {endpoint.name for endpoint in site.endpoints})
    if unknown:
        raise RackError(
            "invalid",
            f"{site.name} has no endpoint {unknown[0]}",
            object=f"endpoint/{unknown[0]}",
            hint="name endpoints of the site file, or none for all",
        )
    folder, root = programs.folder_of(run_dir), ensure_root()
    programs.use_root(folder, root)
    prefix = programs.client(folder, root, ())
    section = config.engine_section(site, folder, prefix, wanted)
    text = path.read_text(encoding="utf-8")
    path.write_text(text + "\n" + yaml.safe_dump({"engine": section}), encoding="utf-8")
    return load_site(path)


def start(
    site: CabledSite,
    run_dir: Path,
    image: Path,
    spawn: Callable[[ProgramSpec], Process],
    env: Mapping[str, str],
) -> None:
    """Start Slurm and wait until all nodes are idle. Raises RackError.

    ``image`` is the root file system in which ranks run.
    """
    cluster, folder = config.cluster_of(site), programs.folder_of(run_dir)
    root = programs.root_of(folder)
    try:
        network.build(cluster)
    except (NetlinkError, OSError) as error:
        raise RackError(
            "failed", f"the kernel refused the nodes' network: {error}", object="slurm"
        ) from error
    files = config.files(cluster, site.homes, programs.HOOK)
    programs.use_image(folder, image)
    programs.prepare(folder, root, files, config.hosts_file(cluster), HOOK)
    control = spawn(programs.slurmctld(folder, root))
    nodes = {node.name: spawn(programs.slurmd(folder, root, node)) for node in cluster.nodes}
    spawn(programs.slurmrestd(folder, root))
    spawn(programs.relay(_port_of(site), env))
    _wait(
        control,
        lambda: programs.nodes_up(_states(folder, root), cluster),
        lambda: _away(_states(folder, root), nodes),
    )
    _write_token(folder, root)
    socket = folder / "run" / "restd" / "s.sock"
    _wait(control, lambda: accepts(socket))


def let_in(site: CabledSite, run_dir: Path, url: str) -> None:
    """Give the hook a token of the controller. Raises RackError."""
    headers = {"Authorization": f"Bearer {rack_token(run_dir)}"}
    asked = {"name": TOKEN_NAME, "role": "engine", "projects": []}
    try:
        reply = httpx.post(
            f"{url}/api/v1/tokens", json=asked, headers=headers, timeout=CALL_S, trust_env=False
        )
        reply.raise_for_status()
        secret = str(reply.json()["token"])
    except (httpx.HTTPError, KeyError, ValueError) as error:
        raise RackError(
            "failed", f"the hook of Slurm got no token: {error}", object="slurm"
        ) from error
    folder = programs.folder_of(run_dir)
    programs.write_header(folder, programs.root_of(folder), secret)


def run(
    run_dir: Path, argv: Sequence[str], *, timeout_s: float = CALL_S
) -> subprocess.CompletedProcess[str]:
    """Run a program of Slurm on the rack's head node, as root. Raises RackError."""
    command = _command(run_dir, argv)
    try:
        return subprocess.run(
            command, capture_output=True, text=True, timeout=timeout_s, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RackError(
            "timeout", f"{argv[0]} does not end within {timeout_s:g} s", object="slurm"
        ) from error


def run_here(run_dir: Path, argv: Sequence[str]) -> int:
    """Run a program of Slurm with this terminal; return its exit code. Raises RackError."""
    return subprocess.run(_command(run_dir, argv), check=False).returncode


def _command(run_dir: Path, argv: Sequence[str]) -> tuple[str, ...]:
    folder = programs.folder_of(run_dir)
    if not (folder / "token").exists():
        raise RackError(
            "invalid",
            "this rack has no Slurm",
            object="slurm",
            hint="bring it up with `lightloom testbed up --engine slurm`",
        )
    return programs.client(folder, programs.root_of(folder), argv)


def _states(folder: Path, root: Path) -> str:
    command = programs.client(folder, root, ("sinfo", "-h", "-N", "-o", "%N %T"))
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_S, check=False)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout


def _write_token(folder: Path, root: Path) -> None:
    command = programs.client(
        folder, root, ("scontrol", "token", f"username={config.SLURM_USER}", "lifespan=infinite")
    )
    done = subprocess.run(command, capture_output=True, text=True, timeout=CALL_S, check=False)
    _, _, token = done.stdout.strip().partition("=")
    if not token:
        raise RackError(
            "failed", f"slurmctld makes no token: {done.stderr.strip()}", object="slurm"
        )
    path = folder / "token"
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(token)


def _away(states: str, nodes: Mapping[str, Process]) -> str:
    """Return the last reports of the nodes that are not up."""
    up = programs.idle_nodes(states)
    return "".join(
        f"\n{name} is not up{quote(Path(process.log))}"
        for name, process in nodes.items()
        if name not in up
    )


def _wait(
    process: Process, ready: Callable[[], bool], details: Callable[[], str] = lambda: ""
) -> None:
    deadline = time.monotonic() + READY_S
    while not ready():
        if not process.alive() or time.monotonic() > deadline:
            log = quote(Path(process.log))
            raise RackError(
                "timeout",
                f"Slurm is not ready after {READY_S:g} s{log}{details()}",
                object="slurm",
                hint=f"see {process.log} and its neighbours",
            )
        time.sleep(POLL_S)


def _port_of(site: CabledSite) -> int:
    return split_address(site.api_listen)[1]
