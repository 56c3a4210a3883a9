"""The execution engine: the contract by which the controller runs the ranks of jobs.

Code above this interface must not assume Docker. The engine built in is
:class:`controller.devices.agents.engine.AgentEngine`.
"""

from __future__ import annotations

import sys
from collections.abc import (
    AsyncGenerator,
    AsyncIterator,
    Collection,
    Iterable,
    Mapping,
    Sequence,
)
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Final, Literal, Protocol, get_args

from agentlink.bounds import (
    Calls,
    Field,
    First,
    JobName,
    Most,
    OperationName,
    OwnerName,
    Size,
    SizeOrNone,
    Span,
    Text,
    TimeOrNone,
    Word,
    among,
    only,
)
from agentlink.values import NicReport, ProfilerWindow, Scope, ScopeState, Typed, WindowSize
from readings.reading import Values

if TYPE_CHECKING:  # start-up time of the command line, which needs the enumerations of this page
    from agentlink.ranks import RankSpec
    from agentlink.values import RegistryLogin

FAULT_CODES = frozenset(
    {"invalid", "not_found", "conflict", "unavailable", "timeout", "failed", "forbidden"}
)
_MAX_NAMES = 256
"""Of one image."""
_MAX_USERS = 64
"""Jobs that use one directory."""
_MAX_BINS = 128
ImageNames = Annotated[tuple[Text, ...], First(_MAX_NAMES)]

FREEZE_TIMEOUT_S = 10.0
"""Time limit for all processes of a job to freeze, or to thaw."""


LogStream = Literal["stdout", "stderr", "missing"]
MISSING: Final = "missing"
"""The stream of a line that says which output is missing, and why."""


class RankState(StrEnum):
    """State in the life of a rank."""

    ABSENT = "absent"
    CREATED = "created"
    RUNNING = "running"
    PAUSED = "paused"
    EXITED = "exited"


class Pull(StrEnum):
    """When an image is fetched from its registry."""

    NEVER = "never"
    MISSING = "missing"
    ALWAYS = "always"


@dataclass(slots=True, frozen=True)
class VolumeData:
    """A directory of a volume that belongs to a project or a job. Times are seconds since 1970."""

    scope: Scope
    owner: OwnerName
    uid: int | None = None
    bytes: SizeOrNone | None = None
    """None until it is measured, as are the files."""
    files: SizeOrNone | None = None
    quota_bytes: SizeOrNone | None = None
    created_at: float | None = None
    used_at: float | None = None
    """When a rank used it last."""
    measured_at: TimeOrNone | None = None
    jobs: Annotated[tuple[JobName, ...], First(_MAX_USERS)] = ()
    """Jobs whose containers use it now."""


@dataclass(slots=True, frozen=True)
class OfferedVolume:
    """A volume that a server offers."""

    name: str
    read_only: bool
    problem: Text = ""
    """Why no rank can use it now; empty when it is usable."""
    filesystem: Word = ""
    total_bytes: SizeOrNone | None = None
    free_bytes: SizeOrNone | None = None
    quota: Annotated[str, among("", "kernel", "watched")] = ""
    """How quotas hold: ``kernel`` or ``watched``; empty when the server does not say."""
    data: tuple[VolumeData, ...] = ()


@dataclass(slots=True, frozen=True)
class ServerImage:
    """What one server says about an image."""

    server: str
    present: bool
    id: str = ""
    """Of the present image: sha256:..."""
    names: ImageNames = ()
    """NAME:TAG and NAME@sha256:... of the present image."""
    size_bytes: int = 0
    refusal: Text = ""
    """Why the server would not fetch it; empty where it may, or need not."""


@dataclass(slots=True, frozen=True)
class HeldImage:
    """An image in the list of one server; ``names`` as those of :class:`ServerImage`."""

    server: str
    id: Annotated[Text, Field(name="image_id")]
    names: ImageNames
    size_bytes: int
    jobs: Annotated[tuple[Word, ...], First(_MAX_NAMES)] = ()
    """Jobs whose containers use it now."""
    used_at: TimeOrNone | None = None
    """When a job last used it, in seconds since 1970; None for one that its agent did not pull."""


@dataclass(slots=True, frozen=True)
class PullProgress:
    """How far a server's pull of an image is; the totals grow while more layers become known."""

    layers_done: int = 0
    layers: int = 0
    bytes_done: int = 0
    bytes_total: int = 0
    image: ServerImage | None = None
    """The pulled image; only in the last message."""


@dataclass(slots=True, frozen=True)
class RankStatus:
    """One rank as its server sees it. Times are seconds since 1970."""

    job: str
    rank: int
    epoch: int
    endpoint: str
    server: str
    state: Annotated[RankState, Field(otherwise=RankState.ABSENT)]
    exit_code: int | None = None
    oom: bool = False
    started_at: TimeOrNone | None = None
    finished_at: TimeOrNone | None = None
    container_id: Word = ""
    reason: Text = ""
    """How it ended, or its problem while it runs; empty without one."""
    nic: NicReport | None = None
    fault: Word = ""
    """What is wrong with its GPU while it runs: ``lost``, ``xid`` or ``hang``."""


@dataclass(slots=True, frozen=True)
class RankSample:
    """One second of one rank: its readings, and those of its GPU.

    ``source`` says what measures them: ``nvml`` or ``emulated``. ``time`` is seconds since 1970.
    """

    job: str
    rank: int
    endpoint: str
    time: float
    source: Word
    values: Values
    real: bool = False
    """NVML reads its GPU."""


@dataclass(slots=True, frozen=True)
class ServerSample:
    """The readings of a server."""

    server: str
    values: Values


RecorderState = Literal["recording", "absent", "damaged", "refused", "off"]
RecordedSource = Literal["nccl", "torch", "tf"]
Timing = Literal["device", "host", "issue"]
_SOURCES, _TIMINGS = frozenset(get_args(RecordedSource)), frozenset(get_args(Timing))


@dataclass(slots=True, frozen=True, kw_only=True)
class RecordedOperation:
    """Sums over all calls of one operation, size, type and tag since the rank started."""

    op: OperationName
    """As nccl-tests names it; ``other`` for what exceeds the recorder's table."""
    bytes: Size
    dtype: Annotated[Word, sys.intern]
    tag: Annotated[Word, sys.intern]
    calls: Calls
    total_s: Span
    min_s: Span
    max_s: Span
    histogram: Annotated[tuple[int, ...], Most(_MAX_BINS, "bins")]
    """Calls by duration: bin i counts those from 2^(i/4) to 2^((i+1)/4) microseconds."""
    source: Annotated[RecordedSource, only(_SOURCES.__contains__, "invalid source {}"), sys.intern]
    timing: Annotated[Timing, only(_TIMINGS.__contains__, "invalid timing {}"), sys.intern]
    exact: bool


@dataclass(slots=True, frozen=True)
class RecordedCall:
    """One call; times are seconds on its server's monotonic clock."""

    operation: int
    """Position in the recording's operations."""
    sequence: int
    """Counts the calls of its communicator on this rank, from 0."""
    issued_s: float
    ended_s: float | None = None
    """None while it runs, and where only the issue is known."""
    communicator: int = 0


@dataclass(slots=True, frozen=True, kw_only=True)
class WireBursts:
    """Bursts of traffic seen on a rank's NIC in a window: an estimate of its steps. Medians."""

    time: float
    window_s: Span
    bursts: int
    period_s: Span | None = None
    burst_s: Span | None = None
    sent_bytes: Span | None = None
    spread: Span | None = None
    """Half the 95 % interval of the period, relative."""


@dataclass(slots=True, frozen=True, kw_only=True)
class Recording:
    """What is known of a rank's communication. The rank wrote it: bounded, and maybe a lie."""

    job: str
    rank: int
    epoch: int
    server: str
    state: RecorderState
    reason: str = ""
    time: float = 0.0
    operations: tuple[RecordedOperation, ...] = ()
    calls: tuple[RecordedCall, ...] = ()
    damaged_rows: int = 0
    wire: WireBursts | None = None
    profiler: ProfilerWindow | None = None
    """The latest window."""
    coverage: float = 0.0
    """Share of the rank's time that such windows cover."""


@dataclass(slots=True, frozen=True)
class RecordingLimit:
    """How much of the recordings of one job is taken."""

    rows: int
    """Of one rank: those that took the longest."""
    calls: frozenset[int]
    """The ranks whose calls are taken."""


@dataclass(slots=True, frozen=True)
class RecordingLimits:
    """How much is taken of all recordings. Those of jobs without a limit are left out."""

    jobs: Mapping[str, RecordingLimit]
    servers: Mapping[str, int]
    """Bytes that a server is asked for at most."""


@dataclass(slots=True, frozen=True)
class LogLine:
    """One line a rank wrote. ``stream`` is ``stdout`` or ``stderr``.

    With :data:`MISSING` the text says, in its place, why output of this rank is not here.
    """

    rank: int
    time: float
    stream: LogStream
    text: str


@dataclass(slots=True, frozen=True)
class ExecStart:
    """A command for a running rank of one run, and its limits in seconds.

    A rank of another run than ``epoch`` refuses it. ``idle_s`` is the time without input and
    output, freezes excluded. With ``terminal`` all output is stdout.
    """

    job: str
    rank: int
    epoch: int
    server: str
    command: tuple[str, ...]
    idle_s: float
    total_s: float
    terminal: bool = False
    window: WindowSize | None = None


@dataclass(slots=True, frozen=True)
class ExecOutput:
    """A piece of a command's output."""

    stream: Literal["stdout", "stderr"]
    data: bytes


@dataclass(slots=True, frozen=True)
class ExecEnd:
    """How a command ended: by itself with ``exit_code``, or by a limit, the ``reason``."""

    exit_code: int | None
    reason: Text = ""


@dataclass(slots=True, frozen=True)
class EngineFault:
    """A problem with one object (a rank, a server), and how to correct it."""

    code: Annotated[str, among("failed", *FAULT_CODES)]
    obj: Annotated[Text, Field(name="object")]
    message: Text
    hint: Text = ""


class EngineError(Exception):
    """A call that failed, at least in part; ``faults`` has one entry per object.

    Codes: ``invalid`` (the agent refuses the request), ``not_found`` (image, NIC or
    server), ``conflict`` (the endpoint or the name is taken), ``unavailable`` (the
    server does not answer), ``timeout`` (outcome unknown: observe before trying
    again), ``forbidden`` (another controller commands the server, or trust is missing),
    ``failed``.
    """

    def __init__(self, faults: Sequence[EngineFault]) -> None:
        super().__init__("; ".join(f"{f.obj}: {f.message}" for f in faults))
        self.faults = tuple(faults)

    @property
    def code(self) -> str:
        """The code of the first fault."""
        return self.faults[0].code

    @property
    def obj(self) -> str:
        """The object of the first fault."""
        return self.faults[0].obj

    @property
    def hint(self) -> str:
        """The hint of the first fault."""
        return self.faults[0].hint


class Fenced(EngineError):  # noqa: N818 - the word of the field
    """A server has seen a newer controller: this one must not change anything any more.

    The faults have the code ``forbidden`` and name the servers that refused.
    """


class ExecutionEngine(Protocol):
    """Starts, stops, freezes, thaws and observes ranks. Every call is idempotent."""

    async def start(self, ranks: Sequence[RankSpec], deadline_s: float) -> list[RankStatus]:
        """Start every rank or none: on a fault those that started are stopped again.

        Raises EngineError.
        """
        ...

    async def stop(
        self,
        job: str,
        grace_s: float,
        servers: Collection[str] | None = None,
        *,
        until: int | None = None,
    ) -> list[RankStatus]:
        """End the job's ranks on every server, with ``grace_s`` between request and kill.

        With ``servers`` on those only; with ``until`` only ranks of that epoch and earlier ones.

        Returns how the ranks that existed ended. Raises EngineError when a server that may hold
        a rank did not confirm.
        """
        ...

    async def freeze(self, job: str, settle_s: float = 0.0) -> bool | None:
        """Freeze all ranks of the job at once. Raises EngineError.

        Returns whether all that they had sent was acknowledged, ``settle_s`` later at the
        latest; None where that cannot be seen.
        """
        ...

    async def thaw(self, job: str) -> None:
        """Let all ranks of the job continue. Raises EngineError."""
        ...

    async def freeze_scope(
        self, scope: str, servers: Collection[str], settle_s: float = 0.0
    ) -> bool | None:
        """Freeze the processes of a scope, which another scheduler started, on all its servers.

        ``slurm:4711`` are those of a job of Slurm. Steps that begin while it is frozen are frozen
        as well. On a server without a process of the scope there is nothing to freeze. After a
        fault some may be frozen: the caller thaws. Returns as :meth:`freeze`. Raises EngineError;
        each fault names ``scope/slurm:4711`` and its server. ``not_found``: the scheduler keeps
        no cgroups there, so its jobs can never be frozen; ``forbidden``: the server's operator
        has not allowed it.
        """
        ...

    async def thaw_scope(self, scope: str, servers: Collection[str]) -> None:
        """Let the processes of a scope continue, whatever froze them. Raises EngineError."""
        ...

    async def scopes(self, timeout_s: float) -> Mapping[str, Mapping[str, ScopeState]]:
        """Return the scopes that have processes, by server, as the servers' kernels have them.

        Asks all servers. Those that do not answer within ``timeout_s`` are missing, and those
        whose operators do not allow to touch scopes.
        """
        ...

    async def observe(self) -> list[RankStatus]:
        """Return every rank on every reachable server; :meth:`reachable` says which are missing."""
        ...

    def logs(
        self,
        job: str,
        rank: int | None,
        tail: int | None,
        follow: bool,
        placed: Mapping[int, str] | None = None,
        *,
        since: float | None = None,
        search: str = "",
        epoch: int | None = None,
    ) -> AsyncIterator[LogLine]:
        """Lines of one rank, or of all when ``rank`` is None; ``tail`` None is from the start.

        Only those at or after ``since`` (seconds since 1970) that contain ``search``, of the run
        ``epoch`` (None is each rank's newest). ``placed`` names the server of each rank, so that
        ranks whose containers are removed are found as well. An engine may hold a tail to 100,000
        lines a rank. A line with the stream :data:`MISSING` stands for output that cannot be read.
        """
        ...

    def exec(
        self, start: ExecStart, given: AsyncIterator[Typed | WindowSize]
    ) -> AsyncGenerator[ExecOutput | ExecEnd]:
        """Run a command in a running rank; the last item is its end.

        It begins when the first item is asked for, and is ended with all its processes when the
        generator is closed. It waits while nothing takes its output. Raises EngineError:
        ``conflict`` for a rank that is frozen or has ended, and for too many commands.
        """
        ...

    def telemetry(self) -> AsyncIterator[RankSample | ServerSample]:
        """Samples of all ranks and servers at 1 Hz each, until closed.

        Continues when a server is away.
        """
        ...

    def reachable(self) -> Mapping[str, bool]:
        """Return for each server whether it answered the last call."""
        ...

    def unfit(self) -> Mapping[str, str]:
        """Return the endpoints that no job should get, and why: a lost GPU, a lying agent."""
        ...

    def unready(self) -> Mapping[str, str]:
        """Return the endpoints that no job should get for now, and why.

        Nothing is known against them, nor against what runs there: a driver that is being
        upgraded, for example.
        """
        ...

    def carriers(self) -> Mapping[str, bool]:
        """Return whether the NICs of running ranks have a carrier, by endpoint.

        Only what agents that answer now have said; an endpoint that is left out is not known.
        """
        ...

    def placed(self, job: str, servers: Collection[str]) -> None:
        """Learn from a job's allocation where its ranks may be; an observation may miss some."""
        ...

    def leave(self, job: str, servers: Collection[str]) -> None:
        """Count these servers no longer among those of a job: its later calls leave them out.

        A rank that may live there is the caller's to stop (``stop`` with ``servers``).
        """
        ...

    def command(self, term: int) -> None:
        """Act as the controller of this term from now on; servers refuse older ones."""
        ...

    async def find_image(
        self, image: str, servers: Collection[str], *, refresh: bool, timeout_s: float
    ) -> list[ServerImage]:
        """Ask servers for an image; return the answers of those that answer.

        With ``refresh`` the refusals are those of a pull of an image that is there already. Takes
        ``timeout_s`` at most. Raises EngineError ``invalid`` when no server accepts the name.
        """
        ...

    async def registry_digest(
        self, image: str, servers: Collection[str], login: RegistryLogin | None, timeout_s: float
    ) -> str:
        """Return the digest (sha256:...) that the image's registry has, asked by one server.

        Takes ``timeout_s`` at most for each of two servers. Raises EngineError.
        """
        ...

    async def images(self, timeout_s: float) -> list[HeldImage]:
        """Return the images of every server that answers, within ``timeout_s``."""
        ...

    def pull_image(
        self, server: str, image: str, login: RegistryLogin | None, *, refresh: bool = False
    ) -> AsyncGenerator[PullProgress]:
        """Fetch an image that a server lacks; joins a pull that runs. Raises EngineError.

        With ``refresh`` one that is there is fetched as well. Yields about once a second. Closing
        it leaves the pull to the server.
        """
        ...

    async def volumes(self, timeout_s: float) -> Mapping[str, tuple[OfferedVolume, ...]]:
        """Return what each reachable server offers, and what jobs left there.

        Servers that do not answer within ``timeout_s`` are missing.
        """
        ...

    async def remove_data(self, server: str, volume: str, scope: Scope, owner: str) -> bool:
        """Remove an owner's directory; return whether there was one. Raises EngineError.

        A directory that a container uses is not removed (``conflict``).
        """
        ...

    async def recordings(
        self, timeout_s: float, job: str = "", limits: RecordingLimits | None = None
    ) -> list[Recording]:
        """Return the recordings of all ranks, or of one job's, from the servers that answer.

        ``limits`` None takes all that the servers report.
        """
        ...

    async def confirm_command(self, servers: Iterable[str], timeout_s: float) -> None:
        """Confirm, right before a change of light, that no newer controller commands ``servers``.

        Returns when at least one of them confirms this controller's term and none refuses. When
        none of them answers, or none is given, the other servers are asked in their place, so a
        dead server does not hold up the light of others. Takes ``timeout_s`` at most; containers
        are not touched.

        Raises Fenced when any server that was asked has seen a newer term: the caller must not
        change light, neither now nor later. Raises EngineError (``unavailable``) when no server
        at all answers: the caller must not change light now and may ask again.
        """
        ...
