"""The stand-in for libnvidia-ml.so of this process, and how its GPUs behave."""

from __future__ import annotations

import atexit
import ctypes
import functools
import shutil
import tempfile
from pathlib import Path

from testbed import nvml
from testbed.nvml import behave

__all__ = ["behave", "library", "look_at"]


@functools.cache
def library() -> str:
    """Compile the library once a process; return its path."""
    directory = tempfile.mkdtemp(prefix="ll-nvml-")
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    return str(nvml.build(Path(directory)))


def look_at(path: Path) -> None:
    """Make the library read this file from now on.

    No environment variable: a thread that looks one up while another sets one may crash.
    """
    ctypes.CDLL(library()).mock_nvml_look_at(str(path).encode())
