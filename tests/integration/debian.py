"""A fresh Debian in a container that systemd boots: what an operator's new machine is.

systemd-nspawn boots it from a root that mmdebstrap makes once; changes go to memory and end with
it. The libraries of this environment are lent to it, because it has no network.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from testbed.image.base import codename, distribution_sources
from testbed.image.build import CACHE, locked

LIGHTLOOM = "/opt/lightloom/bin/lightloom"
PYTHON = "/opt/lightloom/bin/python3"
LENT = "/opt/lent"
_SOFTWARE = "systemd,systemd-sysv,python3,python3-venv,iproute2"
_BOOTSTRAP_S = 1200
_BOOT_S = 120
_COMMAND_S = 120
_CGROUPS = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/systemd"), Path("/sys/fs/cgroup/unified"))


def libraries() -> Path:
    """Return the folder of this environment's libraries; lightloom itself is not in it."""
    return Path(sysconfig.get_path("purelib"))


def root_archive() -> Path:
    """Return the archive of a minimal Debian or Ubuntu; make it if there is none yet."""
    key = hashlib.sha256(f"{codename()} {_SOFTWARE}".encode()).hexdigest()[:12]
    archive = CACHE / "roots" / f"{codename()}-{key}.tar"
    with locked(CACHE / "roots.lock"):
        if not archive.exists():
            archive.parent.mkdir(parents=True, exist_ok=True)
            draft = archive.with_suffix(".draft.tar")
            listing = archive.with_suffix(".list")
            listing.write_text("\n".join(distribution_sources()) + "\n", encoding="utf-8")
            command = ["mmdebstrap", "--variant=minbase", f"--include={_SOFTWARE}"]
            command += ["--aptopt", 'Acquire::Retries "5"', codename(), str(draft), str(listing)]
            subprocess.run(command, check=True, timeout=_BOOTSTRAP_S, stdout=sys.stderr)
            draft.rename(archive)
    return archive


def unpack(folder: Path) -> Path:
    """Unpack a fresh root below ``folder``, with an empty environment of Python in it."""
    root = folder / "root"
    root.mkdir()
    command = ["tar", "-C", str(root), "--exclude=./dev/*", "-xf", str(root_archive())]
    subprocess.run(command, check=True, timeout=_COMMAND_S)
    return root


@dataclass(slots=True, frozen=True)
class Debian:
    """A booted machine; ``leader`` is the pid of its first process, as this machine counts."""

    leader: int

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a program in it as root."""
        done = subprocess.run(
            ["nsenter", "-t", str(self.leader), "-a", "--", *command],
            capture_output=True,
            text=True,
            timeout=_COMMAND_S,
            check=False,
            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"},
        )
        assert not check or done.returncode == 0, f"{command}: {done.stdout}{done.stderr}"
        return done

    def read(self, *command: str) -> str:
        """Run a program and return what it prints."""
        return self.run(*command).stdout.strip()

    def write(self, path: str, text: str) -> None:
        """Write a file as root, with the mode of new files."""
        with Path(f"/proc/{self.leader}/root{path}").open("w", encoding="utf-8") as file:
            file.write(text)

    def log(self, unit: str) -> str:
        """Return what a unit wrote."""
        return self.read("journalctl", "--no-pager", "-o", "cat", "-u", unit)


@contextlib.contextmanager
def booted(root: Path, binds: Sequence[tuple[Path, str]] = ()) -> Iterator[Debian]:
    """Boot ``root`` until it is up; it has no network, and its changes end with it.

    ``binds`` are paths of this machine and where it sees them.
    """
    with (
        tempfile.TemporaryDirectory(prefix="ll-debian-") as folder,
        _cgroup(Path(folder).name) as enter,
    ):
        told = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        told.bind(f"{folder}/notify")
        told.settimeout(_BOOT_S)
        command = ["systemd-nspawn", "-q", "-D", str(root), "-M", f"ll-debian-{os.getpid()}"]
        command += ["--register=no", "--keep-unit", "--private-network", "--volatile=overlay"]
        command += [f"--bind-ro={libraries()}:{LENT}", "--notify-ready=yes"]
        command += [f"--bind={here}:{there}" for here, there in binds]
        command += ["--boot", "systemd.unit=multi-user.target"]
        with (Path(folder) / "log").open("wb") as log, told:
            process = subprocess.Popen(
                ["/bin/sh", "-c", f'{enter} exec "$@"', "sh", *command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env={**os.environ, "NOTIFY_SOCKET": f"{folder}/notify"},
            )
            leader = 0
            try:
                leader = _leader(told)
                told.close()  # nspawn would wait for a reader of what it says later
                yield Debian(leader)
            finally:
                if leader:  # all its processes end with it, and then nspawn
                    os.kill(leader, signal.SIGKILL)
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_BOOT_S)
                process.kill()
                process.wait()


def _leader(told: socket.socket) -> int:
    """Wait until the machine is up; return its first process."""
    leader = 0
    while True:
        lines = told.recv(4096).decode().splitlines()
        for line in lines:
            if line.startswith("X_NSPAWN_LEADER_PID="):
                leader = int(line.partition("=")[2])
        if "READY=1" in lines:
            return leader


@contextlib.contextmanager
def _cgroup(name: str) -> Iterator[str]:
    """Make control groups for systemd-nspawn; yield the shell's words that enter them."""
    made = [tree / name for tree in _CGROUPS if (tree / "cgroup.procs").exists()]
    for group in made:
        group.mkdir()
    try:
        yield " ".join(f"echo $$ >{group}/cgroup.procs;" for group in made)
    finally:
        until = time.monotonic() + _COMMAND_S
        while not all(map(_removed, made)):
            assert time.monotonic() < until, f"{made} still have processes"
            time.sleep(0.05)


def _removed(group: Path) -> bool:
    """Remove a control group and those below it; False while an ending process is in one."""
    try:
        for folder, _, _ in os.walk(group, topdown=False):
            for pid in (Path(folder) / "cgroup.procs").read_text(encoding="ascii").split():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)
            Path(folder).rmdir()
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
    return not group.exists()
