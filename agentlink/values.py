"""Messages between controller and agents about ranks, apart from a rank itself. Pure.

protos/agent.proto explains the messages. The command line loads this page for its enumerations.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from agentlink.bounds import Field, Span


class Record(StrEnum):
    """How much of a rank's communication is recorded."""

    OFF = "off"
    COUNTS = "counts"
    """Calls, sizes and durations, without a change of the program."""
    FULL = "full"
    """Also windows of TensorFlow's profiler, which the program then cannot use itself."""


class Where(StrEnum):
    """Where a rank's checkpoints are kept on its server."""

    MEMORY = "memory"
    """They outlive containers and the agent, not the server."""
    DISK = "disk"


class Scope(StrEnum):
    """Who shares a directory of a volume."""

    SITE = "site"
    """The volume itself, shared by all who may use it."""
    PROJECT = "project"
    JOB = "job"


class ScopeState(StrEnum):
    """Whether the processes of a scope run on a server."""

    RUNNING = "running"
    FROZEN = "frozen"
    PARTLY = "partly"
    """Some of them are frozen."""


@dataclass(slots=True, frozen=True)
class ScopeEntry:
    """A scope with processes on a server."""

    scope: str
    state: ScopeState


KeptWhere = Annotated[Where, Field(unknown="checkpoints are kept in memory or on disk, not in {}")]


@dataclass(slots=True, frozen=True)
class VolumeMount:
    """A volume in a rank's container. Rates are bytes per second of this rank, on its disk."""

    volume: Annotated[str, Field(names=True)]
    path: str
    """Absolute path inside the container."""
    read_only: bool = False
    scope: Scope = Scope.SITE
    owner: str = ""
    """``PROJECT`` or ``PROJECT.JOB``, by the scope; empty for the volume itself."""
    quota_bytes: int | None = None
    """Limit of the owner's directory; None is unlimited."""
    read_bps: int | None = None
    write_bps: int | None = None


@dataclass(slots=True, frozen=True)
class Device:
    """A device that a rank has for itself alone; ``id`` of a GPU is its NVML UUID."""

    kind: str
    id: str


@dataclass(slots=True, frozen=True)
class RankLimits:
    """The most that a rank may use; None leaves one to the server. Rates are bytes per second."""

    cores: float | None = None
    memory_bytes: int | None = None
    pids: int | None = None
    read_bps: int | None = None
    write_bps: int | None = None


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
    """A rank's data NIC as it is inside the container."""

    mtu: int
    rdma_device: str = ""
    gid_index: int | None = None
    """The index of the RoCEv2 GID that maps the rank's IPv4 address."""
    dscp: int | None = None


@dataclass(slots=True, frozen=True)
class RegistryLogin:
    """A user of a registry. Kept in memory only, for one request."""

    username: str
    password: str = field(repr=False)


@dataclass(slots=True, frozen=True)
class DataKey:
    """A directory of one owner in one volume."""

    volume: Annotated[str, Field(names=True)]
    scope: Scope
    owner: str


@dataclass(slots=True, frozen=True, kw_only=True)
class ProfilerWindow:
    """One window of TensorFlow's profiler. Seconds; ``ended_at`` is since 1970."""

    ended_at: float
    length_s: Span
    comm_s: Span
    """Time in which a collective was under way."""
    exposed_s: Span | None = None
    """That in which no kernel computed; None where computation is not on the processor."""


@dataclass(slots=True, frozen=True)
class WindowSize:
    """The size of a terminal, in characters."""

    rows: int
    columns: int


@dataclass(slots=True, frozen=True)
class Typed:
    """Input for a command; ``data`` None is its end."""

    data: bytes | None
