"""Slurm as an observed engine: its jobs, followed by their states; answers; the topology."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace

import structlog

from base import clock
from controller.devices.observed import (
    EngineJob,
    JobChanges,
    ObservedError,
    Published,
    Reach,
    ReadBack,
    SetupCheck,
    Turn,
    Verdict,
)
from controller.devices.slurm.check import examine
from controller.devices.slurm.cli import CliTransport
from controller.devices.slurm.documents import Body, clean, items_of
from controller.devices.slurm.gres import Node, node_of
from controller.devices.slurm.jobs import KIND, NodeMap, SlurmJob, job_in, record_of, vanished
from controller.devices.slurm.publisher import TopologyWriter, lives
from controller.devices.slurm.rest import RestTransport
from controller.devices.slurm.token import TokenFile
from controller.devices.slurm.transport import OBJ, Setup, Transport
from sitefile import CabledSite, EnginePolicy

log = structlog.get_logger(__name__)

POLL_EVERY_S = 1.0
LONGEST_PAUSE_S = 10.0
"""Between questions while Slurm does not answer."""
MAX_JOBS = 100_000
MAX_CHANGED = 500
"""When more jobs have changed they are read together."""
REFRESHED_AT_ONCE = 8
"""Jobs that are read again in one poll although their state is the same: reasons change."""
REFRESH_WAITING_S = 3.0
"""Of the first in the queue; the farther back a job is, the rarer."""
REFRESH_RUNNING_S = 60.0
LAST_POSITION = 1000
"""Jobs that wait farther back have this position: one start does not change them all."""
MAX_COMMENT = 500


@dataclass(slots=True)
class _Known:
    """A job as it was read last."""

    record: SlurmJob
    state: str
    """Of the poll before the reading."""
    read_at: float
    """On the steady clock."""
    seen: EngineJob
    """With its position in the queue."""


@dataclass(slots=True)
class _Follower:
    """What one reader of the changes has been told, by number."""

    known: dict[int, _Known] = field(default_factory=dict)
    told: dict[int, EngineJob] = field(default_factory=dict)
    passed: dict[int, str] = field(default_factory=dict)
    """Jobs that could not be read, and the state in which it was tried."""


class SlurmEngine:
    """Watches Slurm's jobs; see :class:`controller.devices.observed.ObservedEngine`."""

    def __init__(
        self,
        policy: EnginePolicy,
        transport: Transport,
        setup: Setup,
        publisher: TopologyWriter | None,
        token: TokenFile | None = None,
        *,
        poll_every_s: float = POLL_EVERY_S,
        clock: Callable[[], float] = clock.time,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        """``clock`` is seconds since 1970; a token is only examined here."""
        self._policy = policy
        self._transport = transport
        self._setup = setup
        self._publisher = publisher
        self._token = token
        self._poll_every_s = poll_every_s
        self._clock = clock
        self._monotonic = monotonic
        self._nodes = NodeMap(policy.nodes)
        self._latest: dict[int, EngineJob] = {}
        """Jobs as they were seen last: Slurm forgets the devices of those that end."""
        self._answered: dict[int, str] = {}
        self._unreadable: dict[int, str] = {}
        self._lacks: dict[str, str] = {}
        """What was tried -> why it is not allowed."""
        self._reach = Reach(False, clock(), "not asked yet")

    @property
    def kind(self) -> str:
        """The first part of its jobs' keys."""
        return KIND

    @property
    def endpoints(self) -> frozenset[str]:
        """The endpoints of its nodes."""
        return self._policy.endpoints()

    @property
    def restarts_to_publish(self) -> bool:
        """Whether this release, or one that is not known yet, needs ``scontrol reconfigure``."""
        return not lives(self._reach.version)

    async def ends_jobs(self) -> bool:
        """Whether jobs end on a node that is up. ObservedError."""
        with self._heard():
            nodes = await self._read_nodes()
        return any("COMPLETING" in n.states and "DOWN" not in n.states for n in nodes)

    async def changes(self) -> AsyncIterator[JobChanges]:
        """Yield everything first, then what changed; a gap is followed by everything again."""
        follower = _Follower()
        failures = 0
        whole = True
        while True:
            try:
                batch = await (self._everything(follower) if whole else self._changed(follower))
            except ObservedError:
                whole = True
                pause_s = self._poll_every_s * 2.0 ** min(failures, 10)
                await asyncio.sleep(min(LONGEST_PAUSE_S, pause_s))
                failures += 1
                continue
            failures = 0
            whole = False
            if batch.complete or batch.seen:
                yield batch
            await asyncio.sleep(self._poll_every_s)

    async def read_job(self, key: str) -> EngineJob | None:
        """Return one job as it is now; None for one that Slurm does not know. ObservedError."""
        number = job_in(key)
        if number is None:
            return None
        with self._heard():
            records = await self._read(number)
        record = records.get(number)
        return record.seen if record is not None else None

    async def still(self, key: str, revision: str) -> bool:
        """Whether a job is as it was. ObservedError."""
        seen = await self.read_job(key)
        return seen is not None and seen.revision == revision

    async def answer(self, key: str, verdict: Verdict, text: str) -> None:
        """Write the verdict into the job's AdminComment, where its owner reads it. ObservedError.

        The words that it has already are not written again.
        """
        number = job_in(key)
        if number is None:
            return
        said = f"lightloom {verdict}: {text}" if text else f"lightloom {verdict}"
        words = clean(" ".join(said.split()), MAX_COMMENT)
        if self._answered.get(number) == words:
            return
        with self._allowed("answers to owners"):
            if await self._transport.comment(number, words):
                self._answered[number] = words
                while len(self._answered) > MAX_JOBS:
                    del self._answered[next(iter(self._answered))]

    async def publish(self, topology: Published) -> ReadBack:
        """Give Slurm the topology and read it back. ObservedError."""
        if self._publisher is None or not self._policy.publish:
            hint = "add engine.topology to the site file"
            raise ObservedError("invalid", OBJ, "the site publishes no topology", hint)
        with self._allowed("topology"):
            return await self._publisher.publish(topology)

    def reach(self) -> Reach:
        """Return whether Slurm answers, from the latest calls."""
        missing = [f"{what}: {why}" for what, why in sorted(self._lacks.items())]
        if self._unreadable:
            number, why = next(iter(self._unreadable.items()))
            missing.append(f"{len(self._unreadable)} jobs cannot be read, as {number}: {why}")
        return replace(self._reach, transport=self._transport.name, missing=tuple(missing))

    async def check(self) -> tuple[SetupCheck, ...]:
        """Examine Slurm's set-up; never raises."""
        return await examine(
            self._policy,
            self._transport,
            self._setup,
            publisher=self._publisher,
            token=self._token,
            now=self._clock(),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._transport.close()

    async def _everything(self, follower: _Follower) -> JobChanges:
        """Read all jobs and what their parsing depends on."""
        with self._heard():
            release = await self._transport.release()
            await self._learn_nodes()
            states = await self._states()
            body = await self._transport.jobs()
            records = await self._parse(body)
        self._reach = replace(self._reach, version=release)
        follower.known = {}
        self._keep(follower, records, states, states)
        for number in self._latest.keys() - states.keys():
            self._forget(number)
        await self._place(follower)
        return JobChanges(tuple(follower.told.values()), complete=True)

    async def _changed(self, follower: _Follower) -> JobChanges:
        """Read the jobs whose state has changed, and a few whose state has not."""
        known = follower.known
        with self._heard():
            states = await self._states()
            changed = [
                number
                for number, state in states.items()
                if (number not in known or known[number].state != state)
                and follower.passed.get(number) != state
            ]
            if len(changed) > MAX_CHANGED:
                records = await self._parse(await self._transport.jobs())
            else:
                due = await asyncio.to_thread(self._due, known, changed)
                records = await self._read_all([*changed, *due])
        self._keep(follower, records, states, changed)
        lost = []
        for number in known.keys() - states.keys():
            seen = known.pop(number).seen
            if seen.turn is not Turn.ENDED:
                lost.append(vanished(seen, self._clock()))
        for number in self._latest.keys() - states.keys():
            self._forget(number)
        return JobChanges((*await self._place(follower), *lost), complete=False)

    async def _place(self, follower: _Follower) -> list[EngineJob]:
        """Give the jobs their positions; return those that are not as they were told last."""
        told, news = await asyncio.to_thread(_placed, follower.known, follower.told)
        follower.told = told
        self._latest.update(told)
        return news

    def _keep(
        self,
        follower: _Follower,
        records: Mapping[int, SlurmJob],
        states: Mapping[int, str],
        asked: Iterable[int],
    ) -> None:
        """Keep what was read, and which of those asked for could not be."""
        now = self._monotonic()
        for number, record in records.items():
            if number in states:
                follower.known[number] = _Known(record, states[number], now, record.seen)
        passed = follower.passed | {n: states[n] for n in asked if n not in records}
        follower.passed = {
            n: state for n, state in passed.items() if n in states and n not in records
        }

    async def _states(self) -> Mapping[int, str]:
        states = await self._transport.states()
        if len(states) > MAX_JOBS:
            raise ObservedError("invalid", OBJ, f"{len(states)} jobs are more than {MAX_JOBS}")
        return states

    def _due(self, known: Mapping[int, _Known], changed: Iterable[int]) -> list[int]:
        """Return the jobs whose reading is the most overdue, each by its own pace."""
        now = self._monotonic()
        busy = set(changed)
        overdue: list[tuple[float, int]] = []
        for number, one in known.items():
            seen = one.seen
            if number in busy or seen.turn is Turn.ENDED:
                continue
            pace = REFRESH_RUNNING_S
            if seen.turn is Turn.WAITS:
                pace = REFRESH_WAITING_S * (1 + seen.ahead / REFRESHED_AT_ONCE)
            late = (now - one.read_at) / pace
            if late >= 1:
                overdue.append((late, number))
        overdue.sort(reverse=True)
        return [number for _, number in overdue[:REFRESHED_AT_ONCE]]

    async def _read_all(self, numbers: Iterable[int]) -> dict[int, SlurmJob]:
        """Read jobs, as many at once as the transport allows. ObservedError."""
        found: dict[int, SlurmJob] = {}
        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(self._read(number)) for number in numbers]
        except ExceptionGroup as failed:
            raise failed.exceptions[0] from None
        for task in tasks:
            found |= task.result()
        return found

    async def _read(self, number: int) -> dict[int, SlurmJob]:
        """Return the job and those that came with it. ObservedError."""
        return await self._parse(await self._transport.job(number))

    async def _parse(self, body: Body) -> dict[int, SlurmJob]:
        """Parse beside the loop, job by job; one that cannot be read is left out and named."""
        try:
            found, unreadable = await asyncio.to_thread(
                _records, body, self._nodes, self._latest.get
            )
        except ValueError as error:
            raise ObservedError("invalid", OBJ, f"jobs: {error}") from error
        for number, record in found.items():
            self._latest[number] = record.seen
            self._unreadable.pop(number, None)
        for number, why in unreadable.items():
            if number not in self._unreadable:
                log.warning("unreadable_job", job=number, error=why)
            if len(self._unreadable) < MAX_JOBS:
                self._unreadable[number] = why
        return found

    async def _learn_nodes(self) -> None:
        """Learn on which nodes Slurm counts GPUs."""
        nodes = await self._read_nodes()
        uncounted = frozenset(n.name for n in nodes if not n.gpus and n.name in self._policy.nodes)
        self._nodes = NodeMap(self._policy.nodes, uncounted)

    async def _read_nodes(self) -> list[Node]:
        body = await self._transport.nodes()
        try:
            return await asyncio.to_thread(lambda: [node_of(n) for n in items_of(body, "nodes")])
        except ValueError as error:
            raise ObservedError("invalid", OBJ, f"nodes: {error}") from error

    def _forget(self, number: int) -> None:
        self._latest.pop(number, None)
        self._answered.pop(number, None)
        self._unreadable.pop(number, None)

    @contextlib.contextmanager
    def _heard(self) -> Iterator[None]:
        """Note whether Slurm answered."""
        try:
            yield
        except ObservedError as error:
            self._away(error)
            raise
        if not self._reach.up:
            self._reach = replace(self._reach, up=True, since=self._clock(), detail="")

    def _away(self, error: ObservedError) -> None:
        if self._reach.up:
            log.warning("slurm_away", error=error.message)
        since = self._clock() if self._reach.up else self._reach.since
        detail = f"{error.message}; {error.hint}" if error.hint else error.message
        self._reach = replace(self._reach, up=False, since=since, detail=detail)

    @contextlib.contextmanager
    def _allowed(self, what: str) -> Iterator[None]:
        """Note whether lightloom had the right to do something."""
        try:
            yield
        except ObservedError as error:
            if error.code == "forbidden":
                self._lacks[what] = error.message
            raise
        self._lacks.pop(what, None)


def _placed(
    known: Mapping[int, _Known], before: Mapping[int, EngineJob]
) -> tuple[dict[int, EngineJob], list[EngineJob]]:
    """Give the jobs that wait their positions; return all by number, and those that changed."""
    waiting = [one for one in known.values() if one.seen.turn is Turn.WAITS]
    for position, one in enumerate(sorted(waiting, key=lambda one: one.record.order)):
        ahead = min(position, LAST_POSITION)
        if one.seen.ahead != ahead:
            one.seen = replace(one.seen, ahead=ahead)
    told = {number: one.seen for number, one in known.items()}
    news = [
        seen
        for number, seen in told.items()
        if (old := before.get(number)) is not seen and old != seen
    ]
    return told, news


def _records(
    body: Body, nodes: NodeMap, before: Callable[[int], EngineJob | None]
) -> tuple[dict[int, SlurmJob], dict[int, str]]:
    """Return the jobs of a document, and why others cannot be read. ValueError for no document."""
    found: dict[int, SlurmJob] = {}
    unreadable: dict[int, str] = {}
    for item in items_of(body, "jobs"):
        number = item.get("job_id") if isinstance(item, dict) else None
        number = number if isinstance(number, int) and 0 < number < 2**32 else 0
        try:
            record = record_of(item, nodes, before(number))
        except ValueError as error:
            unreadable[number] = clean(str(error), 200)
        else:
            found[record.number] = record
    return found, unreadable


def slurm_engine(site: CabledSite, policy: EnginePolicy) -> SlurmEngine:
    """Return the engine of a site file. Reads certificates for https: not for the event loop."""
    token = TokenFile(policy.token) if policy.token is not None else None
    programs = CliTransport(policy.programs, policy.prefix, token)
    transport: Transport = programs
    if policy.transport == "rest" and token is not None:
        transport = RestTransport(policy.api, token, policy.user)
    publisher = None
    if policy.topology is not None:
        publisher = TopologyWriter(transport, programs, policy.topology, site.name, policy.nodes)
    return SlurmEngine(policy, transport, programs, publisher, token)
