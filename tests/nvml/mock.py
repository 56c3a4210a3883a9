"""Builds the mock of libnvidia-ml.so, and tells its GPUs how to behave."""

from __future__ import annotations

import atexit
import ctypes
import functools
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path


@functools.cache
def library() -> str:
    """Compile the mock once a process; return its path."""
    directory = tempfile.mkdtemp(prefix="ll-nvml-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    out = Path(directory) / "libnvidia-ml.so.1"
    source = Path(__file__).with_name("mock_nvml.c")
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o", str(out), str(source)]
    subprocess.run(command, check=True, timeout=60)
    return str(out)


def look_at(path: Path) -> None:
    """Make the mock read this file from now on.

    No environment variable: a thread that looks one up while another sets one may crash.
    """
    ctypes.CDLL(library()).mock_nvml_look_at(str(path).encode())


def behave(
    path: Path, gpus: Mapping[str, str], xids: Mapping[str, int] | None = None, pid: int = 0
) -> None:
    """Write the file that the mock reads: UUID -> ok, plain, lost, hang or absent.

    ``pid`` computes on all of them.
    """
    lines = [f"{uuid} {state} {(xids or {}).get(uuid, 0)} {pid}\n" for uuid, state in gpus.items()]
    beside = path.with_suffix(".new")
    beside.write_text("".join(lines), encoding="utf-8")
    beside.replace(path)
