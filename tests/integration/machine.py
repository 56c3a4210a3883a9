"""What a test runs on this machine, and what it sees there without the rack's own code."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping
from pathlib import Path

from testbed.engine import DATA_ROOT

LIMIT_S = 60
"""For one program; the machine may stand still for a while."""


def run(*argv: str, env: Mapping[str, str] | None = None, check: bool = True) -> str:
    """Run a program and return its output."""
    done = subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, **(env or {})},
    )
    if check and done.returncode:
        raise AssertionError(f"{' '.join(argv)}: {done.stderr or done.stdout}")
    return done.stdout


def traces(run_dir: Path) -> list[str]:
    """Everything of a rack that the machine still shows, found without the rack's own code."""
    found = [line for line in run("ip", "netns", "list").splitlines() if line.startswith("ll-")]
    found += [str(link) for link in Path("/sys/class/net").glob("ll-*")]
    found += [
        target
        for line in Path("/proc/self/mountinfo").read_text().splitlines()
        for target in [line.split()[4]]  # a lane shows the machine's data root elsewhere
        if any(part in target for part in (str(run_dir), "/run/netns/ll-", str(DATA_ROOT)))
    ]
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            try:
                command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode()
            except OSError:
                continue
            if str(run_dir) in command:
                found.append(f"process {entry.name}: {command}")
    for folder, names, _ in os.walk("/sys/fs/cgroup"):
        found += [f"{folder}/{name}" for name in names if name.startswith("ll-")]
    if run_dir.exists():
        found.append(str(run_dir))
    return found


def command_lines() -> str:
    """Return the command lines of all processes of this machine."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            found.append((process / "cmdline").read_bytes().decode(errors="replace"))
        except OSError:
            continue  # it has ended
    return "\n".join(found)


def files_with(place: Path, text: str) -> list[Path]:
    """Return the files below a directory that hold a text."""
    files = [path for path in place.rglob("*") if path.is_file()]
    return [path for path in files if text.encode() in path.read_bytes()]
