"""Gives a container exactly one GPU: through CDI where the engine has it, else through nvidia.

CDI (Container Device Interface) passes exactly the device nodes and libraries that a file on
the server lists for a GPU's UUID. Engines without CDI get Docker's request to the ``nvidia``
driver, and also the device nodes by name: nodes that only a hook added to the device cgroup
are lost when systemd rewrites it (``systemctl daemon-reload``).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

CDI_KIND = "nvidia.com/gpu"
_SHARED_NODES = ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")


@dataclass(slots=True, frozen=True)
class GpuBinding:
    """The engine options for a GPU. ``visible`` is for the runtime, never for the job."""

    method: str
    """``cdi`` or ``nvidia``."""
    request: Mapping[str, Any] | None
    visible: str
    nodes: tuple[str, ...] = ()
    """Names below ``/dev``."""


def choose(
    uuid: str, *, cdi_devices: frozenset[str], minor: int | None, dev: Path = Path("/dev")
) -> GpuBinding:
    """Return the binding of the GPU ``uuid`` on a server whose engine has ``cdi_devices``.

    ``minor`` is the N of ``/dev/nvidiaN``, None when the driver does not report it.
    """
    if uuid in cdi_devices:
        request: dict[str, Any] = {"Driver": "cdi", "DeviceIDs": [f"{CDI_KIND}={uuid}"]}
        return GpuBinding("cdi", request, visible="void")
    request = {
        "Driver": "nvidia",
        "DeviceIDs": [uuid],
        "Capabilities": [["gpu", "compute", "utility"]],
    }
    wanted = () if minor is None else (f"nvidia{minor}", *_SHARED_NODES)
    nodes = tuple(name for name in wanted if (dev / name).exists())
    return GpuBinding("nvidia", request, visible=uuid, nodes=nodes)


def cdi_devices(directories: Sequence[str]) -> frozenset[str]:
    """Return the names of all GPUs that CDI files in ``directories`` describe."""
    return frozenset(name for text in directories for name in _names(Path(text)))


def _names(directory: Path) -> Iterator[str]:
    for path in sorted((*directory.glob("*.json"), *directory.glob("*.y*ml"))):
        with suppress(OSError, ValueError, yaml.YAMLError, AttributeError, TypeError):
            text = path.read_text(encoding="utf-8")
            spec = json.loads(text) if path.suffix == ".json" else yaml.safe_load(text)
            if spec.get("kind") == CDI_KIND:
                yield from (str(device["name"]) for device in spec.get("devices", ()))
