"""A rank to run, as the controller orders it, and what an agent writes on its container. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated

from agentlink.bounds import Field, Most
from agentlink.values import Device, KeptWhere, NicSpec, RankLimits, Record, VolumeMount
from checkpoints.ledger import Key

PREFIX = "ll-"
"""The prefix of every name that the agent creates on a machine."""
LABEL = "lightloom."
GPU = "gpu"
"""The kind of a device."""
MAX_DEVICES = 16
"""Most devices of one rank."""
MAX_FURTHER_NICS = 7
"""Most NICs of one rank besides its own."""


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


@dataclass(slots=True, frozen=True)
class RankCheckpoint:
    """What a rank needs for its checkpoints.

    Its folder appears read-write in ``/lightloom/checkpoint`` and outlives the container; the step
    that it resumes from appears read-only at ``/lightloom/restore``.
    """

    folder: str
    """Names the job's folders on every server; never used again by another job."""
    ranks: int
    rule: str
    where: KeptWhere
    size_bytes: int
    key: bytes = field(repr=False)
    """Authorises transfers of this job's parts between servers."""
    resumed: Key | None = None
    """The step that it resumes from, fetched before; a rank without its part is refused."""


@dataclass(slots=True, frozen=True)
class RankSpec:
    """Everything needed to start one rank; ``key`` is the idempotency key.

    ``emulated_share`` is the CPU share, in cores, that stands in for a GPU; with it no device is
    a GPU.
    """

    key: Annotated[RankKey, Field(flat=True)]
    endpoint: str
    image: str
    command: tuple[str, ...]
    nic: NicSpec
    env: Mapping[str, str] = field(default_factory=dict)
    devices: Annotated[tuple[Device, ...], Most(MAX_DEVICES, "devices")] = ()
    emulated_share: float | None = None
    limits: RankLimits = field(default_factory=RankLimits)
    volumes: tuple[VolumeMount, ...] = ()
    uid: int | None = None
    """User of its processes, never 0; None leaves it to the server, as for ``gid``."""
    gid: int | None = None
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Variables with secret values: in no log, and in nothing that an engine shows."""
    record: Record = Record.OFF
    probe: bool = False
    """Show the files of the package ``probe`` at ``/lightloom/probe``."""
    checkpoint: RankCheckpoint | None = None
    server: str = ""
    """Where it is to run; a server itself leaves it empty."""
    further_nics: Annotated[tuple[NicSpec, ...], Most(MAX_FURTHER_NICS, "further NICs")] = ()
    """Those of its endpoint's further fibers."""

    @property
    def job(self) -> str:
        """The name of its job."""
        return self.key.job

    @property
    def gpu_uuid(self) -> str:
        """NVML UUID of its GPU; empty without one."""
        return next((device.id for device in self.devices if device.kind == GPU), "")

    def digest(self) -> str:
        """Return a digest that differs from other specifications with the same key.

        Values of secrets are left out: a label is public, and a short value could be found from
        its digest.
        """
        fields = asdict(self) | {"secrets": sorted(self.secrets)}
        del fields["server"]
        fields["gpu_uuid"] = self.gpu_uuid  # agents without other devices made the same digest
        fields["devices"] = [one for one in fields["devices"] if one["kind"] != GPU]
        if not fields["devices"]:
            del fields["devices"]
        if not self.further_nics:
            del fields["further_nics"]  # agents without them made the same digest
        if self.checkpoint is None:
            del fields["checkpoint"]  # agents without it made the same digest
        else:
            del fields["checkpoint"]["key"]
        if not self.probe and self.record is Record.OFF:
            del fields["record"], fields["probe"]  # agents without them made the same digest
        text = json.dumps(fields, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def labels(self, server: str, term: int, rdma_device: str = "") -> dict[str, str]:
        """Return all that a restarted agent needs to adopt the container."""
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
