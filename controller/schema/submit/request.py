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
from controller.schema.submit.marks import Absent, InFile, Named, Option, ValueCheck, ValueLimits
from scheduler.model import Locality, OnLoss, Policy, RankOrder, TimeLimitAction

Name = Annotated[str, Named("NAME")]
SiteName = Annotated[str, Named("NAME", "SITE_OBJECT")]
RESTART_PATTERN = r"^(never|on-failure(:[1-9][0-9]{0,2})?)$"
"""``never``, ``on-failure`` (three times) or ``on-failure:N``."""


@dataclass(slots=True, frozen=True)
class VolumeRequest:
    """A volume of the site, and the path at which it appears in every container of the job."""

    volume: Annotated[SiteName, InFile("its name in the site file")]
    path: Annotated[
        str,
        ValueLimits(max_length=4096),
        InFile(
            "where it appears in the container, such as /data",
            limits=ValueLimits(min_length=1, max_length=32768),
        ),
    ]
    """Absolute."""
    read_only: Annotated[bool | None, InFile("default: as the site file offers it")] = None


@dataclass(slots=True, frozen=True)
class SecretRef:
    """The name of a secret of the job's project, in place of a variable's value."""

    secret: Annotated[str, Named("SECRET_NAME")]


@dataclass(slots=True, frozen=True, kw_only=True)
class LocalCheckpoints:
    """Where a rank's checkpoints are on its server."""

    where: Annotated[Where, InFile("default: {default}", inline=True)] = Where.MEMORY
    size_bytes: Annotated[
        int,
        ValueLimits(gt=0, le=2**50),
        InFile("of one rank, such as 8GiB: `keep` steps and one that is being written", key="size"),
    ]
    """Of one rank's folder: ``keep`` finished steps and one that is being written, and with
    partners as much again for the copies of another rank."""
    keep: Annotated[
        int, ValueLimits(ge=1, le=8), InFile("complete steps that are kept; default: {default}")
    ] = 2


@dataclass(slots=True, frozen=True, kw_only=True)
class CheckpointCopies:
    """How a rank's part survives the loss of its server."""

    scheme: Annotated[
        Scheme | None, InFile("default: partner, and single for a job of one rank", inline=True)
    ] = None
    apart: Annotated[
        Apart, InFile("what a part and its copy must not share; default: {default}", inline=True)
    ] = Apart.SERVER
    set_size: Annotated[
        int,
        ValueLimits(ge=2, le=16),
        InFile("with xor: least number of ranks in a set; default: {default}", key="set"),
    ] = 4


@dataclass(slots=True, frozen=True, kw_only=True)
class SharedCheckpoints:
    """A store that gets every n-th complete step."""

    store: Annotated[SiteName, InFile("a volume of the site")]
    every: Annotated[int, ValueLimits(ge=1, le=100_000), InFile("default: {default}")] = 10


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
        ValueLimits(max_length=80),
        ValueCheck(parse_rule),
        InFile(
            "what is whole: rename, dcp, orbax, keras or 'marker: FILE'; default: {default}",
            limits=ValueLimits(pattern=r"^(rename|dcp|orbax|keras|marker: ?[^/\s]{1,64})$"),
        ),
    ] = "rename"
    local: LocalCheckpoints
    copies: CheckpointCopies = CheckpointCopies()
    shared: SharedCheckpoints | None = None
    replicas: Annotated[
        Replicas,
        InFile("identical: any rank's part is the whole state; default: {default}", inline=True),
    ] = Replicas.DISTINCT


@dataclass(slots=True, frozen=True, kw_only=True)
class JobRequest:
    """A job on ``count`` endpoints; ``command`` runs in one container per endpoint."""

    name: Annotated[
        Annotated[str, Named("NAME", "JOB")] | None, Option("Chosen by the controller if absent.")
    ] = None
    count: Annotated[
        int,
        ValueLimits(ge=1, le=1_000_000),
        Option("Number of GPUs.", "-n --count", ge=1),
        InFile(
            "number of GPUs; -n on the command line overrides it",
            key="resources.gpus",
            limits=ValueLimits(ge=1),
        ),
    ]
    project: Annotated[
        Name, Option("Project that owns the job; your only one, or `default`, if absent.")
    ] = "default"
    priority: Annotated[
        int,
        ValueLimits(ge=-100, le=100),
        Option("One level is worth an hour of waiting. [default: {default}]"),
    ] = 0
    """One level equals an hour of waiting, unless the site file says otherwise."""
    time_limit_s: Annotated[
        float | None,
        ValueLimits(gt=0, le=3.2e8),
        Option(
            "Longest expected run time (90, 15m, 1h30m); lets it start early where it "
            "delays no other job.",
            "--time-limit TIME",
            kind=str,
        ),
        InFile("maximum expected run time", limits=ValueLimits(gt=0)),
    ] = None
    time_limit_action: Annotated[
        TimeLimitAction | None,
        Option("At the time limit: end the job, or ignore it. [default: the site's]"),
        InFile("at its time limit: end it, or ignore the limit; default: the site's"),
    ] = None
    pinned: Annotated[
        bool, Option("Never move its light while it runs."), InFile("its circuits never move")
    ] = False
    preemptible: Annotated[
        bool,
        Option("It may be stopped for a higher priority, if the site allows that."),
        Absent(InFile, "a file is for every run of its job; the next is chosen at submit"),
    ] = False
    locality: Annotated[Locality, Option("How close the GPUs must be. [default: {default}]")] = (
        Locality.PREFERRED
    )
    policy: Annotated[
        Policy,
        Option("What a regroup does to the job. [default: {default}]"),
        InFile("how a regroup treats the job"),
    ] = Policy.PAUSE
    rank_order: Annotated[RankOrder, Option("Order of the ring. [default: {default}]")] = (
        RankOrder.AGGREGATOR
    )
    image: Annotated[
        str | None,
        Option("Container image; the controller's default if absent."),
        InFile("default: the controller's default image"),
    ] = None
    """By tag, digest or id."""
    command: Sequence[str] = ()
    """Runs as ``-- CMD...`` on the command line, and from ``setup`` and ``run`` of a file."""
    env: Annotated[
        Mapping[str, str | SecretRef],
        Option("May be repeated.", "--env K=V", kind=list[str]),
        Option(
            "Variable K gets the value of the project's secret NAME. May be repeated.",
            "--secret K=NAME",
            key="secrets",
            kind=list[str],
        ),
    ] = field(default_factory=dict)
    """A variable's text, or the name of the secret whose value is read when the job starts."""
    endpoints: Annotated[
        Sequence[str],
        Option("Exactly these: gpu0,gpu3 or gpu[0-2].", kind=str),
        InFile("exactly these endpoints", key="resources.endpoints"),
    ] = ()
    model: Annotated[
        str | None,
        Option("Only GPUs of this model."),
        InFile("only GPUs of this model", key="resources.model"),
    ] = None
    min_memory_bytes: Annotated[
        int,
        ValueLimits(ge=0, le=2**50),
        Option("Least memory of each GPU.", "--memory GIB", key="memory", kind=float, ge=0),
        InFile("minimum memory of each GPU, such as 12GiB", key="resources.memory"),
    ] = 0
    dark_tolerance_s: Annotated[
        float | None,
        ValueLimits(gt=0, le=86400),
        Option(
            "Seconds its network may be dark; from its framework's time-outs if absent.",
            "--dark-tolerance S",
        ),
        InFile("longest dark time of its network while it runs"),
    ] = None
    checkpoint_grace_s: Annotated[
        float | None,
        ValueLimits(gt=0, le=300),
        Absent(Option, "it belongs to a program, and so into its file"),
        InFile("with policy restart: all ranks exit 0 within this time after SIGTERM"),
    ] = None
    """With policy ``restart``: after SIGTERM every rank writes its checkpoint within this time and
    ends with 0, else the regroup is rolled back. Without it a rank has 10 s and any exit code."""
    restart: Annotated[
        str,
        ValueLimits(pattern=RESTART_PATTERN),
        Option(
            "What to do when a rank fails: end the job, or start it again.",
            "--restart never|on-failure[:N]",
        ),
        InFile("restart policy when a rank dies: never, on-failure, on-failure:N"),
    ] = "never"
    pull: Annotated[
        Pull,
        Option("When servers fetch the image. [default: {default}]"),
        InFile("when servers pull the image from its registry", inline=True),
    ] = Pull.NEVER
    cpu: Annotated[
        float | None,
        ValueLimits(gt=0, le=4096),
        Option("Cores of one container.", "--cpu-limit CORES"),
        InFile("cores", key="limits.cpu", limits=ValueLimits(gt=0)),
    ] = None
    memory_bytes: Annotated[
        int | None,
        ValueLimits(gt=0, le=2**50),
        Option(
            "Memory of one container, without its GPU's: 32GiB.", "--memory-limit SIZE", kind=str
        ),
        InFile("memory limit, such as 32GiB", key="limits.memory"),
    ] = None
    io_bps: Annotated[
        int | None,
        ValueLimits(gt=0, le=2**50),
        Option(
            "Bytes a second that it may read, and write, per disk: 500MB.",
            "--io-limit RATE",
            kind=str,
        ),
        InFile("I/O rate of each block device, such as 500MB/s", key="limits.io"),
    ] = None
    volumes: Annotated[
        Sequence[VolumeRequest],
        Option(
            "A volume of the site, and its path in every container. May be repeated.",
            "--volume NAME:PATH[:ro]",
            kind=list[str],
        ),
        InFile("what survives the job", limits=ValueLimits(max_length=16)),
    ] = ()
    """What the job reads, and what survives it: directories of the servers, by name."""
    record: Annotated[
        Record | None,
        Option("How much of its communication is recorded. [default: the site file's]"),
        InFile("how much of its communication is recorded; default: the site's"),
    ] = None
    checkpoint: Annotated[
        CheckpointRequest | None,
        Option(
            "Keep checkpoints in the servers' memory: a rank's folder, for 6 of its parts"
            " (3 without copies): 2GiB.",
            "--checkpoint-size SIZE",
            key="checkpoint_size",
            kind=str,
        ),
        Option(
            "What is whole: rename, dcp, orbax, keras or 'marker: FILE'. [default: rename]",
            "--checkpoint RULE",
            key="checkpoint_rule",
            kind=str,
        ),
        Option(
            "A volume that gets every N-th complete step. [default: every 10th]",
            "--checkpoint-store VOLUME[:N]",
            key="checkpoint_store",
            kind=str,
        ),
        InFile("keep its checkpoints, so that it goes on when a rank dies"),
    ] = None
    """Without it nothing is kept of the job when a rank dies."""
    spares: Annotated[
        int,
        ValueLimits(ge=0, le=64),
        Option(
            "Idle GPUs reserved for the job; 1? takes one only if there is one.",
            "--spares N[?]",
            kind=str,
        ),
        InFile("idle GPUs reserved for it; '1?' takes one only if there is one"),
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
        Option("Without a spare: wait for as many GPUs, or shrink. [default: {default}]"),
        InFile(
            "without a spare: wait for as many GPUs as before, or go on with fewer", inline=True
        ),
    ] = OnLoss.WAIT
    at_least: Annotated[
        int,
        ValueLimits(ge=1, le=1_000_000),
        Absent(Option, "it goes with a program that can shrink, and so into its file"),
        InFile("ranks below which it does not shrink; default: {default}"),
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
