"""Builds NCCL's plug-in with the machine's C compiler: ``python -m recorder.build``."""

from __future__ import annotations

import platform
import shutil
import subprocess
import sys
from pathlib import Path

SOURCES = Path(__file__).with_name("nccl")
LIBRARY = Path(__file__).with_name("lib") / platform.machine() / "libll.so"
_LIMIT_S = 60
_FLAGS = ("-std=gnu11", "-O2", "-Wall", "-Wextra", "-fPIC", "-shared", "-fvisibility=hidden")


class RecorderBuildError(Exception):
    """The plug-in was not built; the text gives the reason."""


def build(target: Path = LIBRARY) -> Path:
    """Compile the plug-in to ``target``; needs libc only. Raises RecorderBuildError."""
    compiler = shutil.which("cc")
    if compiler is None:
        raise RecorderBuildError("no C compiler: install gcc and libc6-dev")
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_suffix(".part")
    command = [compiler, *_FLAGS, "-pthread", "-o", str(part), *map(str, SOURCES.glob("*.c"))]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_LIMIT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise RecorderBuildError(f"the compiler did not end: {error}") from error
    if done.returncode:
        raise RecorderBuildError(f"the compiler refuses the plug-in: {done.stderr[-500:]}")
    part.chmod(0o755)
    part.replace(target)
    return target


def main() -> int:
    """Build, and print the path of the plug-in; without a compiler NCCL is not recorded."""
    try:
        sys.stderr.write(f"NCCL's recorder: {build()}\n")
    except RecorderBuildError as error:
        sys.stderr.write(f"NCCL will not be recorded: {error}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
