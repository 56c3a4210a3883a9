"""Command lines of Slurm's programs on a rack, and the files that they need."""

from __future__ import annotations

import os
import secrets
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from testbed.rack.process import ProgramSpec
from testbed.rack.slurm.config import (
    CGROUP,
    CONTROL_NETNS,
    HOST,
    SLURM_USER,
    SlurmCluster,
    SlurmdNode,
)

ENTER = Path(__file__).with_name("enter.sh")
IN_IMAGE = Path(__file__).with_name("in-image.sh")
RANK = "/etc/slurm/in-image"
"""Runs a program in the trainer's image as one rank of a step: ``srun … /etc/slurm/in-image …``."""
FREEZER = Path("/sys/fs/cgroup/freezer")
HOOK = "/etc/slurm/hook"
HEADER = "/etc/slurm/hook.header"
HOOK_PORT = 8470
"""Port in slurmctld's namespace from which its hook reaches the controller."""


def use_root(folder: Path, root: Path) -> None:
    """Note the root file system of a rack's Slurm; to find it again costs apt half a second."""
    folder.mkdir()
    (folder / _ROOT).write_text(str(root), encoding="utf-8")


def root_of(folder: Path) -> Path:
    """Return the root file system of a rack's Slurm. OSError when the rack has none."""
    return Path((folder / _ROOT).read_text(encoding="utf-8"))


_ROOT = "root.path"
_HOOK = """\
#!/bin/sh
export LIGHTLOOM_API=http://127.0.0.1:{port} LIGHTLOOM_HEADER={header}
exec /etc/slurm/{name}
"""


def folder_of(run_dir: Path) -> Path:
    """Return Slurm's folder of a rack."""
    return run_dir / "slurm"


def use_image(folder: Path, image: Path) -> None:
    """Note the root file system in which ranks run."""
    (folder / "image").symlink_to(image)


def prepare(folder: Path, root: Path, files: Mapping[str, str], hosts: str, hook: Path) -> None:
    """Write configuration, keys and hook, and make the folders that the programs write."""
    user = _user_of(root)
    for name in ("etc", "run/restd", "spool/ctld", "tmp", "root"):
        (folder / name).mkdir(parents=True)
    (folder / "tmp").chmod(0o1777)
    for name, text in files.items():
        (folder / "etc" / name).write_text(text, encoding="utf-8")
    (folder / "hosts").write_text(hosts, encoding="utf-8")
    shutil.copy(hook, folder / "etc" / hook.name)
    shutil.copy(IN_IMAGE, folder / "etc" / Path(RANK).name)
    wrapper = folder / "etc" / Path(HOOK).name
    wrapper.write_text(_HOOK.format(port=HOOK_PORT, header=HEADER, name=hook.name))
    wrapper.chmod(0o755)
    for key in ("slurm.key", "jwt.key"):
        path = folder / "etc" / key
        path.write_bytes(secrets.token_bytes(64))
        path.chmod(0o600)
    for path in (folder / "etc", folder / "spool" / "ctld", *(folder / "etc").iterdir()):
        os.chown(path, *user)
    os.chown(folder / "run" / "restd", 65534, 65534)
    (FREEZER / CGROUP).mkdir(exist_ok=True)


def write_header(folder: Path, root: Path, secret: str) -> None:
    """Write what the hook sends along: a token of the controller. Only SlurmUser reads it."""
    path = folder / "etc" / Path(HEADER).name
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "w") as file:
        file.write(f"Authorization: Bearer {secret}\n")
    os.chown(path, *_user_of(root))


def entered(
    folder: Path, root: Path, host: str, argv: Sequence[str], cgroup: str = ""
) -> tuple[str, ...]:
    """Return the command that runs ``argv`` in Slurm's root, in namespaces of its own."""
    return (
        *("unshare", "--mount", "--uts", str(ENTER), str(root), str(folder), host),
        *((cgroup,) if cgroup else ()),
        "--",
        *argv,
    )


def slurmctld(folder: Path, root: Path) -> ProgramSpec:
    """Return slurmctld in its namespace."""
    argv = entered(folder, root, HOST, ("/usr/sbin/slurmctld", "-D"))
    return ProgramSpec("slurmctld", argv, netns=CONTROL_NETNS)


def slurmd(folder: Path, root: Path, node: SlurmdNode) -> ProgramSpec:
    """Return a node's slurmd, whose cgroups lie below the rack's."""
    command = ("/usr/sbin/slurmd", "-D", "-N", node.name)
    argv = entered(folder, root, node.name, command, CGROUP)
    return ProgramSpec(f"slurmd-{node.name}", argv, netns=node.netns)


def slurmrestd(folder: Path, root: Path) -> ProgramSpec:
    """Return slurmrestd, as user ``nobody``: it refuses root and SlurmUser."""
    command = (
        *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
        *("env", "SLURM_JWT=daemon", "/usr/sbin/slurmrestd", "-a", "rest_auth/jwt"),
        *("-s", "slurmctld", "unix:/run/restd/s.sock"),
    )
    return ProgramSpec("slurmrestd", entered(folder, root, HOST, command), netns=CONTROL_NETNS)


def relay(api_port: int, env: Mapping[str, str]) -> ProgramSpec:
    """Return the way of the hook to the controller."""
    command = (
        *(sys.executable, "-m", "testbed.rack.slurm.relay"),
        *(CONTROL_NETNS, str(HOOK_PORT), str(api_port)),
    )
    return ProgramSpec("slurm-relay", command, env=env)


def client(folder: Path, root: Path, argv: Sequence[str]) -> tuple[str, ...]:
    """Return the command that runs one of Slurm's programs on the head node, such as ``squeue``."""
    return (
        shutil.which("ip") or "/sbin/ip",
        "netns",
        "exec",
        CONTROL_NETNS,
        *entered(folder, root, HOST, argv),
    )


def _user_of(root: Path) -> tuple[int, int]:
    for line in (root / "etc" / "passwd").read_text(encoding="utf-8").splitlines():
        name, _, uid, gid, *_ = line.split(":")
        if name == SLURM_USER:
            return int(uid), int(gid)
    raise LookupError(f"{root} has no user {SLURM_USER}")


def nodes_up(states: str, cluster: SlurmCluster) -> bool:
    """Whether every node is idle by ``sinfo -h -N -o '%N %T'``."""
    return idle_nodes(states) == {node.name for node in cluster.nodes}


def idle_nodes(states: str) -> set[str]:
    """Return the nodes that ``sinfo -h -N -o '%N %T'`` calls idle."""
    return {line.split()[0] for line in states.splitlines() if line.split()[1:] == ["idle"]}
