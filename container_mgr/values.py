"""The agent's values: a rank to run, a container as observed, a fault, and their names."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum

from checkpoints.ledger import Key

PREFIX = "ll-"
"""The prefix of every name that the agent creates on a machine."""

NIC_IN_CONTAINER = "e0"
LABEL = "lightloom."
MAX_TERM = 2**62
"""The largest term of a controller; terms count from 1."""


class AgentError(Exception):
    """An operation on one object failed. Codes are those of ``Fault`` in protos/agent.proto."""

    def __init__(self, code: str, obj: str, message: str, hint: str = "") -> None:
        super().__init__(f"{obj}: {message}")
        self.code = code
        self.obj = obj
        self.message = message
        self.hint = hint


class Record(StrEnum):
    """How much of a rank's communication is recorded."""

    OFF = "off"
    COUNTS = "counts"
    FULL = "full"
    """Also windows of TensorFlow's profiler."""


class Where(StrEnum):
    """Where a rank's checkpoints are kept on its server."""

    MEMORY = "memory"
    """They outlive containers and the agent, not the server."""
    DISK = "disk"


class Attach(StrEnum):
    """How a container receives its data NIC."""

    MOVE = "move"
    """The interface itself (physical function, SR-IOV virtual function, veth) moves in."""
    MACVLAN = "macvlan"
    """A macvlan on top of it moves in; the interface stays and can carry other traffic."""


@dataclass(slots=True, frozen=True)
class ServedEndpoint:
    """An endpoint of this server: its NIC in the server's namespace, and its GPU or a stand-in."""

    name: str
    nic: str
    gpu_uuid: str = ""
    emulated: bool = False
    attach: Attach = Attach.MOVE
    stand_in: str = ""
    """NVML UUID whose health is that of an emulated endpoint; no rank is given it."""

    @property
    def watched(self) -> str:
        """NVML UUID whose health is the endpoint's; empty when nothing watches it."""
        return self.gpu_uuid or self.stand_in


@dataclass(slots=True, frozen=True)
class ServerFacts:
    """The resources of a server."""

    cores: int
    memory_bytes: int
    rank_memory_bytes: int = 0
    """Most memory of one rank, its checkpoints in memory included; 0 is no limit of its own."""

    @property
    def most_memory_bytes(self) -> int:
        """Most memory that one rank may ask for."""
        return self.rank_memory_bytes or self.memory_bytes


@dataclass(slots=True, frozen=True)
class LogLimits:
    """How long and how much output is kept; sizes are those of the engine's log files."""

    keep_s: float = 7 * 86400.0
    """After a container's removal."""
    rank_bytes: int = 64 * 2**20
    """Of one container, while it runs as well."""
    total_bytes: int = 10 * 2**30
    """Of all removed containers together."""


class GpuFault(StrEnum):
    """What is wrong with a GPU, as a code for the controller."""

    LOST = "lost"
    XID = "xid"
    HANG = "hang"
    LIBRARY = "library"
    """NVML or the driver does not work: that says nothing of one GPU, nor of what runs on it."""
    UNREAD = "unread"
    """It has not been read yet."""


@dataclass(slots=True, frozen=True)
class Unfit:
    """Why an endpoint must get no job."""

    fault: GpuFault
    reason: str

    @property
    def of_device(self) -> bool:
        """Whether the GPU itself is at fault, so that what runs on it is as well."""
        return self.fault not in (GpuFault.LIBRARY, GpuFault.UNREAD)


@dataclass(slots=True, frozen=True)
class Health:
    """Whether an endpoint can run a job; ``unfit`` says why it cannot."""

    endpoint: str
    unfit: Unfit | None = None
    carrier: bool | None = None
    """Of its rank's NIC; None when none runs, or when it cannot be read."""


@dataclass(slots=True, frozen=True, order=True)
class RankKey:
    """The idempotency key of a rank; the container's name contains all of it."""

    job: str
    rank: int
    epoch: int

    @property
    def container(self) -> str:
        """The name of the container."""
        return f"{PREFIX}{self.job}-{self.rank}-{self.epoch}"

    @property
    def namespace(self) -> str:
        """The name of the container's network namespace in /run/netns."""
        return f"{PREFIX}c-{self.job}-{self.rank}-{self.epoch}"


def container_in(namespace: str) -> str:
    """Return the name of the container whose network namespace is called ``namespace``."""
    return PREFIX + namespace.removeprefix(f"{PREFIX}c-")


@dataclass(slots=True, frozen=True)
class NicSpec:
    """The data NIC of a rank. ``mtu`` and ``dscp`` None keep the interface's own values."""

    name: str
    ip: str
    prefix_len: int
    mac: str
    mtu: int | None = None
    dscp: int | None = None
    """The class of RoCE traffic, 0 to 63 (RFC 2474); TCP keeps its own."""


@dataclass(slots=True, frozen=True)
class NicReport:
    """The data NIC as observed inside the container."""

    mtu: int
    rdma_device: str = ""
    gid_index: int | None = None
    """The index of the RoCEv2 GID that maps the rank's IPv4 address."""
    dscp: int | None = None


@dataclass(slots=True, frozen=True)
class RankLimits:
    """The most that a rank may use; None means the agent's own limit."""

    cores: float | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    read_bps: int | None = None
    write_bps: int | None = None


class Scope(StrEnum):
    """Who shares a directory of a volume."""

    SITE = "site"
    """The volume itself, shared by all who may use it."""
    PROJECT = "project"
    JOB = "job"


@dataclass(slots=True, frozen=True)
class VolumeMount:
    """A volume in a rank's container, at ``path``. Limits of None do not hold."""

    volume: str
    path: str
    read_only: bool = False
    scope: Scope = Scope.SITE
    owner: str = ""
    """The project or job whose directory it is; empty for the volume itself."""
    quota_bytes: int | None = None
    """The most that the owner's directory may hold."""
    read_bps: int | None = None
    write_bps: int | None = None
    """Of this rank, on the volume's disk, in bytes per second."""


@dataclass(slots=True, frozen=True)
class BoundVolume:
    """A checked mount, and the directory of the server that it shows."""

    mount: VolumeMount
    source: str
    disk: str = ""
    """The volume's disk, for I/O limits; empty when it is on none."""


@dataclass(slots=True, frozen=True)
class RankCheckpoint:
    """What a rank needs for its checkpoints; see ``RankCheckpoint`` in protos/agent.proto."""

    folder: str
    """Names the job's folders on every server."""
    ranks: int
    rule: str
    where: Where
    size_bytes: int
    key: bytes = field(repr=False)
    """Authorises transfers of this job's parts."""
    resumed: Key | None = None


@dataclass(slots=True, frozen=True)
class RegistryLogin:
    """A user of a registry. Kept in memory only, for one request."""

    username: str
    password: str = field(repr=False)


@dataclass(slots=True, frozen=True)
class RankSpec:
    """One rank to run. ``gpu_uuid`` and ``emulated_share`` (cores) exclude each other."""

    key: RankKey
    endpoint: str
    image: str
    command: tuple[str, ...]
    nic: NicSpec
    env: Mapping[str, str] = field(default_factory=dict)
    gpu_uuid: str = ""
    emulated_share: float | None = None
    limits: RankLimits = RankLimits()
    volumes: tuple[VolumeMount, ...] = ()
    uid: int | None = None
    gid: int | None = None
    """Numeric user and group of its processes; None means the agent's default."""
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables with secret values."""
    record: Record = Record.OFF
    probe: bool = False
    """It sees the files of the package ``probe``."""
    checkpoint: RankCheckpoint | None = None

    def digest(self) -> str:
        """Return a digest that differs from other specifications with the same key.

        Values of secrets have no part in it: a label is no secret, and a short value could be
        found from its digest.
        """
        fields = asdict(self) | {"secrets": sorted(self.secrets)}
        if self.checkpoint is None:
            del fields["checkpoint"]  # agents without it made the same digest
        else:
            del fields["checkpoint"]["key"]
        if not self.probe and self.record is Record.OFF:
            del fields["record"], fields["probe"]  # agents without them made the same digest
        text = json.dumps(fields, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def labels(self, server: str, term: int, rdma_device: str = "") -> dict[str, str]:
        """Return all that a restarted agent needs to take the container over."""
        return {
            LABEL + "job": self.key.job,
            LABEL + "rank": str(self.key.rank),
            LABEL + "epoch": str(self.key.epoch),
            LABEL + "endpoint": self.endpoint,
            LABEL + "server": server,
            LABEL + "term": str(term),
            LABEL + "gpu": self.gpu_uuid,
            LABEL + "rdma": rdma_device,
            LABEL + "digest": self.digest(),
            LABEL + "nic": json.dumps(asdict(self.nic), sort_keys=True),
            LABEL + "volumes": json.dumps([asdict(mount) for mount in self.volumes]),
            LABEL + "record": self.record,
            LABEL + "folder": self.checkpoint.folder if self.checkpoint else "",
            LABEL + "share": "" if self.emulated_share is None else f"{self.emulated_share:g}",
        }


@dataclass(slots=True, frozen=True)
class Container:
    """One of the agent's containers as the engine reports it. Times are seconds since 1970."""

    id: str
    key: RankKey
    endpoint: str
    digest: str
    nic: NicSpec
    share: float | None
    state: str
    """``created``, ``running``, ``paused`` or ``exited``."""
    engine_paused: bool = False
    """The engine paused it, so the engine must unpause it."""
    pid: int = 0
    exit_code: int | None = None
    oom: bool = False
    started_at: float | None = None
    finished_at: float | None = None
    share_applied: bool = False
    log_path: str = ""
    gpu_uuid: str = ""
    rdma_device: str = ""
    term: int = 0
    """The term of the controller that started it."""
    volumes: tuple[VolumeMount, ...] = ()
    record: Record = Record.OFF
    refused: str = ""
    """Why its communication cannot be recorded."""
    profiler_port: int = 0
    """Where its TensorFlow is asked for windows of its profiler; 0 for nowhere."""
    folder: str = ""
    """The folder of its job's checkpoints; empty without them."""
    memory_bytes: int = 0
    """Its limit; 0 for none."""

    @property
    def alive(self) -> bool:
        """True while its processes exist."""
        return self.state in ("running", "paused")
