"""A stand-in for libnvidia-ml.so whose GPUs can be made to fail, without a GPU behind it."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

SOURCE = Path(__file__).with_name("mock_nvml.c")
LIBRARY, BESIDE = "libnvidia-ml.so.1", ".gpus"
MOST_GPUS = 256
_LIMIT_S = 60
_FLAGS = ("-shared", "-fPIC", "-O1", "-Wall", "-Wextra", "-Werror")


class NvmlBuildError(Exception):
    """The library was not built; the text gives the reason."""


def build(folder: Path) -> Path:
    """Compile the library into ``folder`` and return it. Raises NvmlBuildError."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise NvmlBuildError("no C compiler: install gcc and libc6-dev")
    target = folder / LIBRARY
    command = [compiler, *_FLAGS, "-o", str(target), str(SOURCE), "-ldl"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NvmlBuildError(f"the compiler did not end: {error}") from error
    if done.returncode:
        raise NvmlBuildError(f"the compiler refuses the library: {done.stderr[-500:]}")
    return target


def behaviour(library: Path) -> Path:
    """Return the file that a library reads unless it was given another one."""
    return library.with_name(library.name + BESIDE)


def behave(
    path: Path, gpus: Mapping[str, str], xids: Mapping[str, int] | None = None, pid: int = 0
) -> None:
    """Write the file that a library reads: UUID -> ok, plain, lost, hang, absent
    or mismatch (of one: the driver is not the library's, for all).

    The order of the GPUs is NVML's; keep it. ``xids`` are their latest errors, ``pid`` computes on
    all of them.
    """
    lines = [f"{uuid} {state} {(xids or {}).get(uuid, 0)} {pid}\n" for uuid, state in gpus.items()]
    beside = path.with_name(path.name + ".new")
    beside.write_text("".join(lines), encoding="utf-8")
    beside.replace(path)
