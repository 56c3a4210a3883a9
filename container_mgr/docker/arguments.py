"""Converts a rank to the arguments of the engine's create call. Pure.

Only this module decides which engine options a container gets; nothing of a request is passed
through unchecked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentlink.ranks import LABEL, RankSpec
from agentlink.values import Record
from container_mgr.checkpoints import layout
from container_mgr.checkpoints.holder import Begun
from container_mgr.docker.entry import ENTRY_PATH, GIVEN_DIR, READY_DIR
from container_mgr.hardware.gpu_binding import GpuBinding
from container_mgr.hardware.rdma import RdmaBinding
from container_mgr.recordings.shown import (
    RECORD_DIR,
    RECORD_OPTIONS,
    Packages,
    profiler_port,
    refusal,
)
from container_mgr.users import DEFAULT, RankUser, RankUsers
from container_mgr.values import AgentError, BoundVolume, LogLimits
from container_mgr.volumes import rules

CPU_PERIOD_US = 50_000
"""The CFS period; short, so that a stand-in's share takes effect within a training step."""

HOME = "/tmp"  # noqa: S108 - of the container: the only directory that every image may write to

ACCOUNT_FILES = ("passwd", "group")
"""Files of a rank's directory that replace the image's in ``/etc``."""

CHECKPOINT_MOUNT, RESTORE_DIR = "/lightloom/checkpoint", "/lightloom/restore"
CHECKPOINT_DIR = f"{CHECKPOINT_MOUNT}/{layout.FILES}"
"""Not the mount itself: no program can remove that, and Keras removes its folder at the end."""

MAX_IMAGE_VOLUMES = 16
"""Paths that an image may declare as volumes; each becomes a file system in memory."""

_IMAGE_VOLUME = re.compile(r"(/[A-Za-z0-9._@+-]+)+/?")
_NO_VOLUME = ("/dev", "/lightloom", "/proc", "/run/lightloom", "/sys")
_IN_MEMORY = ("/tmp", "/var/tmp", "/run")  # noqa: S108 - of the container
LOG_FILES = 4
"""The engine deletes the oldest of so many when it begins a new one."""
_NOWHERE = "void"
"""Makes nvidia-container-runtime show no GPU, also when the image's environment requests one."""


@dataclass(slots=True, frozen=True)
class ContainerLimits:
    """The limits of every container of this agent, unless its job asks for less."""

    memory_bytes: int
    pids: int = 2048
    nic_wait_s: int = 60
    """How long a command waits for its NIC's carrier before the container exits."""


@dataclass(slots=True, frozen=True)
class Host:
    """What is the same for every rank: the server's name and the agent's paths on it."""

    server: str
    parent: str
    """The parent cgroup, as :func:`cgroup_parent` writes it."""
    entry: Path
    limits: ContainerLimits
    block_device: str = ""
    """The disk of the engine's data, for I/O limits; empty without one."""
    dev: Path = Path("/dev")
    """The directory of this server's device nodes."""
    remapped_users: bool = False
    """The engine runs containers in a user namespace (``userns-remap``)."""
    users: RankUsers = DEFAULT
    logs: LogLimits = field(default_factory=LogLimits)
    packages: Packages = field(default_factory=Packages)
    """What ranks are shown of the agent's own packages."""


@dataclass(slots=True, frozen=True)
class ImageProgram:
    """An image's id and command. The id ensures that the inspected image is the one that runs."""

    image_id: str
    entrypoint: Sequence[str] = ()
    command: Sequence[str] = ()
    volumes: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)


def cgroup_parent(name: str, driver: str) -> str:
    """Return the parent cgroup in the form that the engine's cgroup driver expects."""
    return f"{name}.slice" if driver == "systemd" else f"/{name}"


def create_arguments(
    spec: RankSpec,
    *,
    host: Host,
    program: ImageProgram,
    rank_dir: Path,
    term: int,
    user: RankUser,
    volumes: Sequence[BoundVolume] = (),
    checkpoint: Begun | None = None,
    gpu: GpuBinding | None = None,
    rdma: RdmaBinding | None = None,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of the SDK's ``create_container`` and ``create_host_config``.

    The command is the image's entry point plus the rank's command (the image's own when
    the rank has none), run through our entry script. Raises AgentError for an image whose
    volumes cannot be mounted.
    """
    limits = host.limits
    memory = spec.limits.memory_bytes or limits.memory_bytes
    record = spec.record is not Record.OFF
    # Checkpoints in memory count against the limit of the container that writes them.
    most = memory + (checkpoint.memory_bytes if checkpoint else 0)
    scratch = f"rw,nosuid,nodev,exec,mode=1777,size={memory // 2}"
    container = {
        "image": program.image_id,
        "name": spec.key.container,
        "user": f"{user.uid}:{user.gid}",
        "hostname": f"{spec.job}-{spec.key.rank}",
        "entrypoint": [
            *("/bin/sh", ENTRY_PATH),
            *(str(limits.nic_wait_s), "1" if spec.gpu_uuid else "0"),
        ],
        "command": [*program.entrypoint, *(spec.command or program.command)],
        "environment": {
            "HOME": HOME,
            "USER": user.name,
            "LOGNAME": user.name,
            **spec.env,
            **host.packages.variables(spec.env, program.environment, record=record),
            # These come last: neither an image nor a job may choose GPUs.
            "NVIDIA_VISIBLE_DEVICES": gpu.visible if gpu else _NOWHERE,
            "NVIDIA_DRIVER_CAPABILITIES": "compute,utility",
            **_checkpoint_variables(checkpoint),
        },
        "labels": {
            **spec.labels(host.server, term, rdma.device if rdma else ""),
            LABEL + "refused": refusal(spec.env, program.environment),
            LABEL + "profiler": str(profiler_port(spec.env) if spec.record is Record.FULL else 0),
        },
    }
    options: dict[str, Any] = {
        "network_mode": "none",
        "init": True,  # without it a program without a handler would never see SIGTERM as pid 1
        "cap_drop": ["ALL"],
        "security_opt": ["no-new-privileges"],
        "read_only": True,
        "tmpfs": {
            "/tmp": scratch,  # noqa: S108 - of the container
            "/var/tmp": scratch,  # noqa: S108
            "/run": "rw,nosuid,nodev,noexec,mode=1777,size=65536k",
            # Status files are empty.
            READY_DIR: "rw,nosuid,nodev,noexec,mode=1777,size=64k,nr_inodes=64",
        },
        "shm_size": memory // 2,
        "cgroup_parent": host.parent,
        "pids_limit": spec.limits.pids or limits.pids,
        "mem_limit": most,
        "memswap_limit": most,
        "binds": [
            f"{host.entry}:{ENTRY_PATH}:ro",
            f"{rank_dir}:{GIVEN_DIR}:ro",
            *(f"{rank_dir / name}:/etc/{name}:ro" for name in ACCOUNT_FILES),
            *host.packages.binds(probe=spec.probe, record=record),
        ],
        "log_config": {
            "Type": "json-file",
            "Config": {
                "max-size": str(host.logs.rank_bytes // LOG_FILES),
                "max-file": str(LOG_FILES),
            },
        },
        "restart_policy": {"Name": "no"},
    }
    if record:
        options["tmpfs"][RECORD_DIR] = RECORD_OPTIONS
    if spec.limits.cores is not None and spec.emulated_share is None:
        options["cpu_period"] = CPU_PERIOD_US
        options["cpu_quota"] = cpu_quota_us(spec.limits.cores)
    mounts = [
        *(_bind(v.source, v.mount.path, read_only=v.mount.read_only) for v in volumes),
        *_checkpoint_mounts(checkpoint),
        *_image_volumes(spec, program, volumes, memory // 2),
    ]
    if mounts:
        options["mounts"] = mounts
    for option, rates in (
        ("device_read_bps", disk_limits(spec, host.block_device, volumes, writes=False)),
        ("device_write_bps", disk_limits(spec, host.block_device, volumes, writes=True)),
    ):
        if rates:
            options[option] = [{"Path": disk, "Rate": bps} for disk, bps in rates.items()]
    nodes = [*(gpu.nodes if gpu else ()), *(rdma.nodes if rdma else ())]
    if nodes:
        options["devices"] = [f"{host.dev / node}:/dev/{node}:rw" for node in nodes]
    if gpu is not None and gpu.request is not None:
        options["device_requests"] = [dict(gpu.request)]
    if rdma is not None:
        options["cap_add"] = ["IPC_LOCK"]  # verbs pin the memory they register
        options["ulimits"] = [{"Name": "memlock", "Soft": -1, "Hard": -1}]
        if host.remapped_users:
            options["userns_mode"] = "host"  # pinning counts against the initial user namespace
    return container, options


def cpu_quota_us(share: float) -> int:
    """Return the CFS quota for ``share`` cores; the kernel's minimum is 1 ms."""
    return max(1000, round(share * CPU_PERIOD_US))


def disk_limits(
    spec: RankSpec, engine_disk: str, volumes: Sequence[BoundVolume], *, writes: bool
) -> dict[str, int]:
    """Return the limit of each disk that a rank uses, in bytes per second.

    The rank's own limit holds on the disk of the engine's data and on its volumes' disks. The
    lowest of several limits of one disk holds.
    """
    limits: dict[str, int] = {}
    own = spec.limits.write_bps if writes else spec.limits.read_bps
    if own is not None:
        limits = {disk: own for disk in (engine_disk, *(v.disk for v in volumes)) if disk}
    for volume in volumes:
        bps = volume.mount.write_bps if writes else volume.mount.read_bps
        if bps is not None:
            limits[volume.disk] = min(bps, limits.get(volume.disk, bps))
    return limits


def _checkpoint_variables(checkpoint: Begun | None) -> dict[str, str]:
    if checkpoint is None:
        return {}
    variables = {"LIGHTLOOM_CHECKPOINT_DIR": CHECKPOINT_DIR}
    if checkpoint.restore is not None:
        variables |= {
            "LIGHTLOOM_RESTORE_DIR": RESTORE_DIR,
            "LIGHTLOOM_RESTORE_STEP": str(checkpoint.step),
        }
    return variables


def _checkpoint_mounts(checkpoint: Begun | None) -> Iterator[dict[str, Any]]:
    if checkpoint is None:
        return
    yield _bind(str(checkpoint.live.parent), CHECKPOINT_MOUNT, read_only=False)
    if checkpoint.restore is not None:
        yield _bind(str(checkpoint.restore), RESTORE_DIR, read_only=True)


def _bind(source: str, target: str, *, read_only: bool) -> dict[str, Any]:
    return {
        "Type": "bind",
        "Source": source,
        "Target": target,
        "ReadOnly": read_only,
        # Neither mounts below it nor mounts that the server makes later appear in it.
        "BindOptions": {"Propagation": "rprivate", "NonRecursive": True},
    }


def _image_volumes(
    spec: RankSpec, program: ImageProgram, volumes: Sequence[BoundVolume], size: int
) -> Iterator[dict[str, Any]]:
    """Yield a mount of memory for each volume that the image declares.

    Without it the engine would make a writable directory without limits on its own disk.
    """
    name = spec.key.container
    if len(program.volumes) > MAX_IMAGE_VOLUMES:
        raise AgentError(
            "invalid", name, f"image {spec.image} declares more than {MAX_IMAGE_VOLUMES} volumes"
        )
    ours = [volume.mount.path for volume in volumes]
    for declared in program.volumes:
        path = declared.rstrip("/")
        if _IMAGE_VOLUME.fullmatch(declared) is None or {".", ".."} & set(path.split("/")):
            reason = "not a plain absolute path"
        elif any(rules.within(path, tree) or rules.within(tree, path) for tree in _NO_VOLUME):
            reason = "a path of the container itself"
        elif any(rules.within(path, other) and path != other for other in ours):
            reason = "inside a volume of the job"
        else:
            if path not in (*ours, *_IN_MEMORY):
                options = {"SizeBytes": size, "Mode": 0o1777}
                yield {"Type": "tmpfs", "Target": path, "TmpfsOptions": options}
            continue
        raise AgentError(
            "invalid", name, f"image {spec.image} declares the volume {declared[:80]!r}, {reason}",
            "build the image without this VOLUME",
        )  # fmt: skip
