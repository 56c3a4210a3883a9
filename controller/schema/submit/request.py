"""A job, declared once: its fields, their limits, and how people write them.

From here come the body of the REST request (``wire.py``), what the state keeps
(``controller.state.records.JobSpec``), the part of the view that repeats the request, the job file
(``file.py``) and the options of ``submit``; the console's form comes from the published schema.
A field that is added here is in all of them. The command line loads this module at its start.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from agentlink.values import Record, Where
from checkpoints.rules import parse_rule
from checkpoints.values import Apart, Scheme
from controller.devices.engine import Pull
from controller.schema.submit.marks import Absent, Check, InFile, Limits, Named, Option
from scheduler.model import Locality, OnLoss, Policy, RankOrder, TimeLimitAction

Name = Annotated[str, Named("NAME")]
SiteName = Annotated[str, Named("NAME", "SITE_OBJECT")]
RESTART_PATTERN = r"^(never|on-failure(:[1-9][0-9]{0,2})?)$"
"""``never``, ``on-failure`` (three times) or ``on-failure:N``."""


@dataclass(slots=True, frozen=True)
class VolumeRequest:
    """A volume of the site, and the path at which it appears in every container of the job."""

    volume: Annotated[SiteName, InFile(text="its name in the site file")]
    path: Annotated[
        str,
        Limits(max_length=4096),
        InFile(
            text="where it appears in the container, such as /data",
            limits=Limits(min_length=1, max_length=32768),
        ),
    ]
    """Absolute."""
    read_only: Annotated[bool | None, InFile(text="default: as the site file offers it")] = None


@dataclass(slots=True, frozen=True)
class SecretRef:
    """The name of a secret of the job's project, in place of a variable's value."""

    secret: Annotated[str, Named("SECRET_NAME")]


@dataclass(slots=True, frozen=True, kw_only=True)
class LocalCheckpoints:
    """Where a rank's checkpoints are on its server."""

    where: Annotated[Where, InFile(text="default: memory", inline=True)] = Where.MEMORY
    size_bytes: Annotated[
        int,
        Limits(gt=0, le=2**50),
        InFile(
            key="size",
            text="of one rank, such as 8GiB: `keep` steps and one that is being written",
        ),
    ]
    """Of one rank's folder: ``keep`` finished steps and one that is being written, and with
    partners as much again for the copies of another rank."""
    keep: Annotated[
        int, Limits(ge=1, le=8), InFile(text="complete steps that are kept; default: 2")
    ] = 2


@dataclass(slots=True, frozen=True, kw_only=True)
class CheckpointCopies:
    """How a rank's part survives the loss of its server."""

    scheme: Annotated[
        Scheme | None,
        InFile(text="default: partner, and single for a job of one rank", inline=True),
    ] = None
    apart: Annotated[
        Apart,
        InFile(text="what a part and its copy must not share; default: server", inline=True),
    ] = Apart.SERVER
    set_size: Annotated[
        int,
        Limits(ge=2, le=16),
        InFile(key="set", text="with xor: least number of ranks in a set; default: 4"),
    ] = 4


@dataclass(slots=True, frozen=True, kw_only=True)
class SharedCheckpoints:
    """A store that gets every n-th complete step."""

    store: Annotated[SiteName, InFile(text="a volume of the site")]
    every: Annotated[int, Limits(ge=1, le=100_000), InFile(text="default: 10")] = 10


class Replicas(StrEnum):
    """Whether ranks' parts differ."""

    DISTINCT = "distinct"
    IDENTICAL = "identical"
    """Any rank's part is the whole state."""


@dataclass(slots=True, frozen=True, kw_only=True)
class CheckpointRequest:
    """How the job's checkpoints are found whole, kept and copied."""

    complete: Annotated[
        str,
        Limits(max_length=80),
        Check(parse_rule),
        InFile(
            text="what is whole: rename, dcp, orbax, keras or 'marker: FILE'; default: rename",
            limits=Limits(pattern=r"^(rename|dcp|orbax|keras|marker: ?[^/\s]{1,64})$"),
        ),
    ] = "rename"
    local: LocalCheckpoints
    copies: CheckpointCopies = CheckpointCopies()
    shared: SharedCheckpoints | None = None
    replicas: Annotated[
        Replicas,
        InFile(
            text="identical: any rank's part is the whole state; default: distinct", inline=True
        ),
    ] = Replicas.DISTINCT


@dataclass(slots=True, frozen=True, kw_only=True)
class JobRequest:
    """A job on ``count`` endpoints; ``command`` runs in one container per endpoint."""

    name: Annotated[
        Annotated[str, Named("NAME", "JOB")] | None,
        Option(help="Chosen by the controller if absent."),
    ] = None
    count: Annotated[
        int,
        Limits(ge=1, le=1_000_000),
        Option(names=("-n", "--count"), ge=1, help="Number of GPUs."),
        InFile(
            key="resources.gpus",
            text="number of GPUs; -n on the command line overrides it",
            limits=Limits(ge=1),
        ),
    ]
    project: Annotated[
        Name,
        Option(help="Project that owns the job; your only one, or `default`, if absent."),
    ] = "default"
    priority: Annotated[
        int,
        Limits(ge=-100, le=100),
        Option(help="One level is worth an hour of waiting. [default: 0]"),
    ] = 0
    """One level equals an hour of waiting, unless the site file says otherwise."""
    time_limit_s: Annotated[
        float | None,
        Limits(gt=0, le=3.2e8),
        Option(
            names=("--time-limit",),
            metavar="TIME",
            kind=str,
            help="Longest expected run time (90, 15m, 1h30m); lets it start early where it "
            "delays no other job.",
        ),
        InFile(text="maximum expected run time", limits=Limits(gt=0)),
    ] = None
    """Upper bound of the expected run time: lets the job start early if it delays no other job."""
    time_limit_action: Annotated[
        TimeLimitAction | None,
        Option(help="At the time limit: end the job, or ignore it. [default: the site's]"),
        InFile(text="at its time limit: end it, or ignore the limit; default: the site's"),
    ] = None
    """At the limit: ``end`` the job, or ``ignore`` the limit; the site's choice when absent."""
    pinned: Annotated[
        bool,
        Option(help="Never move its light while it runs."),
        InFile(text="its circuits never move"),
    ] = False
    preemptible: Annotated[
        bool,
        Option(help="It may be stopped for a higher priority, if the site allows that."),
        Absent(InFile, "a file is for every run of its job; the next is chosen at submit"),
    ] = False
    """It may be stopped and queued again for a job of higher priority, if the site file turns
    preemption on."""
    locality: Annotated[
        Locality, Option(help="How close the GPUs must be. [default: preferred]")
    ] = Locality.PREFERRED
    policy: Annotated[
        Policy,
        Option(help="What a regroup does to the job. [default: pause]"),
        InFile(text="how a regroup treats the job"),
    ] = Policy.PAUSE
    rank_order: Annotated[RankOrder, Option(help="Order of the ring. [default: aggregator]")] = (
        RankOrder.AGGREGATOR
    )
    image: Annotated[
        str | None,
        Option(help="Container image; the controller's default if absent."),
        InFile(text="default: the controller's default image"),
    ] = None
    """By tag, digest or id."""
    command: Sequence[str] = ()
    """Runs as ``-- CMD...`` on the command line, and from ``setup`` and ``run`` of a file."""
    env: Annotated[
        Mapping[str, str | SecretRef],
        Option(metavar="K=V", kind=list[str], help="May be repeated."),
        Option(
            key="secrets",
            names=("--secret",),
            metavar="K=NAME",
            kind=list[str],
            help="Variable K gets the value of the project's secret NAME. May be repeated.",
        ),
    ] = field(default_factory=dict)
    """A variable's text, or the name of the secret whose value is read when the job starts."""
    endpoints: Annotated[
        Sequence[str],
        Option(kind=str, help="Exactly these: gpu0,gpu3 or gpu[0-2]."),
        InFile(key="resources.endpoints", text="exactly these endpoints"),
    ] = ()
    """Exactly these endpoints, if not empty."""
    model: Annotated[
        str | None,
        Option(help="Only GPUs of this model."),
        InFile(key="resources.model", text="only GPUs of this model"),
    ] = None
    min_memory_bytes: Annotated[
        int,
        Limits(ge=0, le=2**50),
        Option(
            key="memory",
            metavar="GIB",
            kind=float,
            ge=0,
            help="Least memory of each GPU.",
        ),
        InFile(key="resources.memory", text="minimum memory of each GPU, such as 12GiB"),
    ] = 0
    dark_tolerance_s: Annotated[
        float | None,
        Limits(gt=0, le=86400),
        Option(
            names=("--dark-tolerance",),
            metavar="S",
            help="Seconds its network may be dark; from its framework's time-outs if absent.",
        ),
        InFile(text="longest dark time of its network while it runs"),
    ] = None
    """How long its network may be dark; from its framework's time-outs when absent."""
    checkpoint_grace_s: Annotated[
        float | None,
        Limits(gt=0, le=300),
        Absent(Option, "it belongs to a program, and so into its file"),
        InFile(text="with policy restart: all ranks exit 0 within this time after SIGTERM"),
    ] = None
    """With policy ``restart``: after SIGTERM every rank writes its checkpoint within this time and
    ends with 0, else the regroup is rolled back. Without it a rank has 10 s and any exit code."""
    restart: Annotated[
        str,
        Limits(pattern=RESTART_PATTERN),
        Option(
            metavar="never|on-failure[:N]",
            help="What to do when a rank fails: end the job, or start it again.",
        ),
        InFile(text="restart policy when a rank dies: never, on-failure, on-failure:N"),
    ] = "never"
    """When a rank dies: ``never``, ``on-failure`` (three times) or ``on-failure:N``."""
    pull: Annotated[
        Pull,
        Option(help="When servers fetch the image. [default: never]"),
        InFile(text="when servers pull the image from its registry", inline=True),
    ] = Pull.NEVER
    cpu: Annotated[
        float | None,
        Limits(gt=0, le=4096),
        Option(names=("--cpu-limit",), metavar="CORES", help="Cores of one container."),
        InFile(key="limits.cpu", text="cores", limits=Limits(gt=0)),
    ] = None
    """Cores that one container may use."""
    memory_bytes: Annotated[
        int | None,
        Limits(gt=0, le=2**50),
        Option(
            names=("--memory-limit",),
            metavar="SIZE",
            kind=str,
            help="Memory of one container, without its GPU's: 32GiB.",
        ),
        InFile(key="limits.memory", text="memory limit, such as 32GiB"),
    ] = None
    """Memory that one container may use, besides that of its GPU."""
    io_bps: Annotated[
        int | None,
        Limits(gt=0, le=2**50),
        Option(
            names=("--io-limit",),
            metavar="RATE",
            kind=str,
            help="Bytes a second that it may read, and write, per disk: 500MB.",
        ),
        InFile(key="limits.io", text="I/O rate of each block device, such as 500MB/s"),
    ] = None
    """Bytes a second that one container may read from, and write to, each block device."""
    volumes: Annotated[
        Sequence[VolumeRequest],
        Option(
            names=("--volume",),
            metavar="NAME:PATH[:ro]",
            kind=list[str],
            help="A volume of the site, and its path in every container. May be repeated.",
        ),
        InFile(text="what survives the job", limits=Limits(max_length=16)),
    ] = ()
    """What the job reads, and what survives it: directories of the servers, by name."""
    record: Annotated[
        Record | None,
        Option(help="How much of its communication is recorded. [default: the site file's]"),
        InFile(text="how much of its communication is recorded; default: the site's"),
    ] = None
    checkpoint: Annotated[
        CheckpointRequest | None,
        Option(
            key="checkpoint_size",
            metavar="SIZE",
            kind=str,
            help="Keep checkpoints in the servers' memory: a rank's folder, for 6 of its parts"
            " (3 without copies): 2GiB.",
        ),
        Option(
            key="checkpoint_rule",
            names=("--checkpoint",),
            metavar="RULE",
            kind=str,
            help="What is whole: rename, dcp, orbax, keras or 'marker: FILE'. [default: rename]",
        ),
        Option(
            key="checkpoint_store",
            metavar="VOLUME[:N]",
            kind=str,
            help="A volume that gets every N-th complete step. [default: every 10th]",
        ),
        InFile(text="keep its checkpoints, so that it goes on when a rank dies"),
    ] = None
    """Without it nothing is kept of the job when a rank dies."""
    spares: Annotated[
        int,
        Limits(ge=0, le=64),
        Option(
            metavar="N[?]",
            kind=str,
            help="Idle GPUs reserved for the job; 1? takes one only if there is one.",
        ),
        InFile(text="idle GPUs reserved for it; '1?' takes one only if there is one"),
    ] = 0
    """Idle endpoints reserved for the job: one takes a dead one's place by moving light."""
    spares_needed: Annotated[
        bool,
        Absent(Option, "the question mark of --spares"),
        Absent(InFile, "the question mark of spares"),
    ] = True
    """The job waits for its spares; false takes those that there are."""
    on_loss: Annotated[
        OnLoss,
        Option(help="Without a spare: wait for as many GPUs, or shrink. [default: wait]"),
        InFile(
            text="without a spare: wait for as many GPUs as before, or go on with fewer",
            inline=True,
        ),
    ] = OnLoss.WAIT
    at_least: Annotated[
        int,
        Limits(ge=1, le=1_000_000),
        Absent(Option, "it goes with a program that can shrink, and so into its file"),
        InFile(text="ranks below which it does not shrink; default: 1"),
    ] = 1

    @property
    def plain_env(self) -> Mapping[str, str]:
        """The variables whose value is stated, by name."""
        return {name: value for name, value in self.env.items() if isinstance(value, str)}

    @property
    def secrets(self) -> Mapping[str, str]:
        """By variable: the name of the secret that is its value."""
        found = self.env.items()
        return {name: value.secret for name, value in found if isinstance(value, SecretRef)}
