"""The agent's own values: a container as observed, a fault, what a server has."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum

from agentlink.bounds import Refused
from agentlink.ranks import PREFIX, RankKey
from agentlink.values import NicSpec, Record, VolumeMount

NIC_IN_CONTAINER = "e0"
MAX_TERM = 2**62
"""The largest term of a controller; terms count from 1."""


class AgentError(Exception):
    """An operation on one object failed, with a code of ``Fault`` in protos/agent.proto."""

    def __init__(self, code: str, obj: str, message: str, hint: str = "") -> None:
        super().__init__(f"{obj}: {message}")
        self.code = code
        self.obj = obj
        self.message = message
        self.hint = hint


@contextmanager
def refusing(obj: str) -> Iterator[None]:
    """Raise AgentError(invalid) about ``obj`` for what is refused or written wrong inside."""
    try:
        yield
    except Refused as error:
        named = obj if error.obj is None else error.obj
        raise AgentError("invalid", named, str(error), error.hint) from None
    except ValueError as error:
        raise AgentError("invalid", obj, str(error)) from None


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
    """Most memory of one rank, its checkpoints in memory included; 0 sets none of its own."""

    @property
    def most_memory_bytes(self) -> int:
        """Most memory that one rank may ask for."""
        return self.rank_memory_bytes or self.memory_bytes


@dataclass(slots=True, frozen=True)
class LogLimits:
    """How long and how much output is kept; sizes count the engine's log files."""

    keep_s: float = 7 * 86400.0
    """After a container's removal."""
    rank_bytes: int = 64 * 2**20
    """Bytes of one container, while it runs as well."""
    total_bytes: int = 10 * 2**30
    """Bytes of all removed containers together."""


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


def container_in(namespace: str) -> str:
    """Return the name of the container whose network namespace is called ``namespace``."""
    return PREFIX + namespace.removeprefix(f"{PREFIX}c-")


@dataclass(slots=True, frozen=True)
class BoundVolume:
    """A checked mount, and the directory of the server that it shows."""

    mount: VolumeMount
    source: str
    disk: str = ""
    """The volume's disk, for I/O limits; empty when it is on none."""


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
