"""The emulated GPUs of a rack: what NVML reports about them, which agents read as for real ones."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from sitefile import CabledSite
from testbed import nvml
from testbed.rack.errors import RackError

FELL_OFF_THE_BUS = 79
"""NVIDIA's Xid of a GPU that does not answer any more."""


def uuid(endpoint: str) -> str:
    """Return the NVML UUID of an emulated endpoint."""
    return f"GPU-emulated-{endpoint}"


def library(run_dir: Path) -> Path:
    """Return the rack's libnvidia-ml."""
    return run_dir / "nvml" / nvml.LIBRARY


def prepare(run_dir: Path, site: CabledSite) -> None:
    """Build the library; every GPU works. Raises RackError(unavailable)."""
    folder = library(run_dir).parent
    folder.mkdir(exist_ok=True)
    try:
        nvml.build(folder)
    except nvml.NvmlBuildError as error:
        raise RackError(
            "unavailable", str(error), object="nvml", hint="run `make setup`"
        ) from error
    write_states(run_dir, site, lost=())


def write_states(run_dir: Path, site: CabledSite, *, lost: Collection[str]) -> None:
    """Make the GPUs of the endpoints in ``lost`` fall off the bus and all others work."""
    states = {
        uuid(end.name): "lost" if end.name in lost else "plain"
        for end in site.endpoints
        if end.emulated
    }
    xids = {uuid(name): FELL_OFF_THE_BUS for name in lost}
    nvml.behave(nvml.behaviour(library(run_dir)), states, xids)
