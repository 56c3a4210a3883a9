"""The checks of ``doctor`` on a GPU server: what its agent needs, each with the fix.

Only reads sysfs, procfs and files, below ``root``, and needs no privileges. A part that is absent
is ``emulated``: the rack has a stand-in for it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from console.cli.doctor.access import run
from console.cli.doctor.engine import CDI_DIRECTORIES
from console.cli.doctor.finding import CheckResult
from console.cli.doctor.rdma import ROCE_MTU
from container_mgr.hardware import gpu_binding
from container_mgr.hardware import sysfs as hardware
from container_mgr.kernel import cgroup

MODULES = ("ib_uverbs", "rdma_cm", "macvlan", "nvidia", "nvidia_uvm")
"""For RDMA, macvlan attachment and GPUs; each is needed only where its part is used."""

Run = Callable[[Sequence[str]], str | None]
"""Returns a program's output; None or empty when it is absent or fails."""


def examine_server(root: Path = Path("/"), ask: Run = run) -> list[CheckResult]:
    """Run every check of a GPU server."""
    return [
        _driver(root),
        _cdi(root, ask),
        *_rdma(root),
        _memlock(root),
        *_nics(root, ask),
        _modules(root),
        _user_namespace(ask),
        _freezer(root),
    ]


def _driver(root: Path) -> CheckResult:
    version = _text(root / "proc/driver/nvidia/version").partition("\n")[0]
    if not version:
        return CheckResult(
            "NVIDIA driver",
            "emulated",
            "not loaded; a CPU share stands in for a GPU",
            "apt-get install nvidia-driver, then modprobe nvidia",
        )
    gpus = len(list((root / "proc/driver/nvidia/gpus").glob("*")))
    return CheckResult(
        "NVIDIA driver", "ok", f"{gpus} GPUs; {version.removeprefix('NVRM version:')}"
    )


def _cdi(root: Path, ask: Run) -> CheckResult:
    name = "GPU in containers"
    if not (root / "proc/driver/nvidia/version").exists():
        return CheckResult(name, "emulated", "no GPU")
    places = [str(root / place.lstrip("/")) for place in CDI_DIRECTORIES]
    devices = {d for d in gpu_binding.cdi_devices(places) if d.startswith("GPU-")}
    info = _docker_info(ask)
    if devices and info.get("CDISpecDirs"):
        return CheckResult(name, "ok", f"CDI, {len(devices)} GPUs by UUID")
    if "nvidia" in (info.get("Runtimes") or {}):
        return CheckResult(
            name,
            "warning",
            "by Docker's nvidia runtime",
            "for CDI: nvidia-ctk cdi generate --device-name-strategy=uuid "
            "--output=/etc/cdi/nvidia.yaml, Docker 25 or newer with features.cdi",
        )
    return CheckResult(
        name,
        "warning",
        "neither CDI by UUID nor the nvidia runtime",
        "apt-get install nvidia-container-toolkit; nvidia-ctk runtime configure "
        "--runtime=docker; nvidia-ctk cdi generate --device-name-strategy=uuid "
        "--output=/etc/cdi/nvidia.yaml",
    )


def _rdma(root: Path) -> list[CheckResult]:
    sysfs = root / "sys"
    devices = hardware.rdma_devices(sysfs)
    if not devices:
        return [
            CheckResult(
                "RDMA",
                "emulated",
                "no RDMA device; jobs use TCP",
                "for RoCE: install an RDMA NIC and its driver (rdma-core, mlx5_ib)",
            )
        ]
    names = ", ".join(f"{d.name} ({' '.join(d.nics) or 'no interface'})" for d in devices)
    found = [CheckResult("RDMA", "ok", names)]
    if hardware.exclusive_rdma(sysfs):
        found.append(CheckResult("RDMA namespaces", "ok", "exclusive"))
    else:
        found.append(
            CheckResult(
                "RDMA namespaces",
                "warning",
                "shared: containers get no RDMA device",
                "rdma system set netns exclusive; permanently: "
                "options ib_core netns_mode=0 in /etc/modprobe.d/lightloom.conf",
            )
        )
    for device in devices:
        table = hardware.gids(device.name, sysfs)
        good = [g for g in table if g.kind == "RoCE v2" and g.ipv4]
        what = f"GIDs of {device.name}"
        if good:
            shown = ", ".join(f"{g.index}: {g.ipv4}" for g in good)
            found.append(CheckResult(what, "ok", f"RoCEv2 over IPv4: {shown}"))
        else:
            found.append(
                CheckResult(
                    what,
                    "warning",
                    f"{len(table)} entries, none RoCEv2 with an IPv4 address",
                    "the agent sets the address when a job starts; to test now: "
                    "ip addr add ADDRESS dev NIC",
                )
            )
    return found


def _memlock(root: Path) -> CheckResult:
    name, fix = "memlock", "LimitMEMLOCK=infinity in `systemctl edit docker`, then restart it"
    for path in (root / "proc").glob("[0-9]*"):
        if _text(path / "comm") != "dockerd":
            continue
        line = next(
            (li for li in _text(path / "limits").splitlines() if li.startswith("Max locked")), ""
        )
        hard = line.split()[4] if len(line.split()) > 4 else "?"
        if hard == "unlimited":
            return CheckResult(name, "ok", "Docker may pin memory without limit")
        return CheckResult(name, "warning", f"Docker may pin {hard} bytes; RDMA needs more", fix)
    return CheckResult(name, "emulated", "Docker Engine is not running", fix)


def _nics(root: Path, ask: Run) -> list[CheckResult]:
    """Check MTU and priority flow control of every interface that has RDMA."""
    found = []
    for device in hardware.rdma_devices(root / "sys"):
        for name in device.nics:
            nic = hardware.nic(name, root / "sys")
            if nic is None:
                continue
            if nic.mtu >= ROCE_MTU:
                found.append(CheckResult(f"MTU of {name}", "ok", str(nic.mtu)))
            else:
                fix = "network: {mtu: 9000} in the site file, and the same on every switch"
                found.append(CheckResult(f"MTU of {name}", "warning", f"{nic.mtu}", fix))
            found.append(_flow_control(name, ask))
    return found


def _flow_control(nic: str, ask: Run) -> CheckResult:
    what = f"PFC and DSCP of {nic}"
    fix = (
        f"dcb pfc set dev {nic} prio-pfc all:off 3:on; dcb app add dev {nic} dscp-prio 26:3; "
        "network: {dscp: 26} in the site file"
    )
    with suppress(ValueError, AttributeError):
        lossless = json.loads(ask(["dcb", "-j", "pfc", "show", "dev", nic]) or "{}")
        on = [p for p, is_on in lossless.get("prio_pfc", {}).items() if is_on]
        classes = json.loads(ask(["dcb", "-j", "app", "show", "dev", nic]) or "{}")
        mapped = {str(prio): dscp for dscp, prio in classes.get("dscp_prio", [])}
        good = [p for p in on if p in mapped]
        if good:
            return CheckResult(
                what, "ok", ", ".join(f"DSCP {mapped[p]} to queue {p}" for p in good)
            )
        if on:
            return CheckResult(
                what, "warning", f"lossless queue {on[0]}, but no DSCP is mapped to it", fix
            )
    return CheckResult(what, "warning", "no lossless queue: RoCE will lose packets", fix)


def _modules(root: Path) -> CheckResult:
    loaded = {line.split(" ")[0] for line in _text(root / "proc/modules").splitlines()}
    built_in = {path.name for path in (root / "sys/module").glob("*")}
    here = [name for name in MODULES if name in loaded | built_in]
    missing = [name for name in MODULES if name not in here]
    if not missing:
        return CheckResult("kernel modules", "ok", ", ".join(here))
    return CheckResult(
        "kernel modules",
        "emulated",
        f"not loaded: {', '.join(missing)}",
        f"where their hardware is used: modprobe {' '.join(missing)}",
    )


def _user_namespace(ask: Run) -> CheckResult:
    options = _docker_info(ask).get("SecurityOptions") or []
    if any("userns" in option for option in options):
        return CheckResult(
            "user namespace", "ok", "root in a container is an unprivileged user outside"
        )
    return CheckResult(
        "user namespace",
        "warning",
        "root in a container is the machine's root, without capabilities",
        '"userns-remap": "default" in /etc/docker/daemon.json, then restart Docker; '
        "ranks with RDMA do not use it",
    )


def _freezer(root: Path) -> CheckResult:
    """Check that an agent can freeze without the engine, which takes 50 ms a container."""
    name = "freezer"
    try:
        place = cgroup.freezer_mount(root / "proc")
    except (OSError, LookupError) as error:
        return CheckResult(
            name,
            "warning",
            f"{error}; Docker pauses instead, 50 ms slower each way",
            "mount cgroup v2 at /sys/fs/cgroup, or the freezer of v1, writable for the agent",
        )
    return CheckResult(name, "ok", str(place))


def _docker_info(ask: Run) -> dict[str, Any]:
    with suppress(ValueError):
        found = json.loads(ask(["docker", "info", "--format", "{{json .}}"]) or "{}")
        return found if isinstance(found, dict) else {}
    return {}


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace").strip()
    except OSError:
        return ""
