"""Keeps the recorded communication of this server's ranks, also of ranks that have ended.

Recorders' files are read every ten seconds, and once more at a rank's end: the last steps count.
NICs are watched for some seconds in every thirty. Both happen in threads of their own. With
``ask``, a process of its own reads the profiler of a TensorFlow worker for two to ten seconds in
every sixty.
"""

from __future__ import annotations

import asyncio
import zlib
from collections import Counter, defaultdict, deque
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

import structlog

from agentlink.values import Record
from base import clock
from base.addresses import join_address
from container_mgr.recordings import bursts, profiled
from container_mgr.recordings.asking import AskError
from container_mgr.recordings.bursts import Bursts
from container_mgr.recordings.place import RecordingFolder
from container_mgr.recordings.profiled import EVERY_S as ASK_EVERY_S
from container_mgr.recordings.profiled import Profiled
from container_mgr.recordings.recording import RankRecording, RecordingState, read_of
from container_mgr.recordings.shown import NOTHING
from container_mgr.recordings.wire import EVERY_S, WINDOW_S, NicSampler
from container_mgr.recordings.xspace import WindowProfile
from container_mgr.values import Container

READ_EVERY_S = 10.0
KEPT_S = 900.0
"""A controller that was away for less gets the last figures of ranks that ended meanwhile."""
MOST_ENDED = 512
MOST_ENDED_ROWS = 6_000
"""Rows of all ended ranks: up to 4 KiB each. Beyond it the oldest of the job with most goes."""
LONGEST_WINDOW_S = 25.0
"""For jobs with long steps. The number of ticks stays the same."""
MOST_ASKED = 16
"""Profilers that are asked at once: each is a process, for some seconds."""
MARK = "profiles-itself"
"""The file that keeps a restarted agent from asking a rank again."""
_PAUSE_S = EVERY_S - WINDOW_S
"""Between windows."""
SOON_S = 5.0
"""After a window that held too few steps."""
_GROWN = 1.25
"""A window that becomes longer than this factor held too few steps."""
_PERIODS = 12
"""A window shall see so many steps: the step model uses facts of ten or more."""

Ask = Callable[[int, str, float], Awaitable[WindowProfile]]
"""As :func:`asking.ask`."""

_log = structlog.get_logger("container_mgr.recordings")


@dataclass(slots=True)
class _Watched:
    """One rank. ``place`` None: its directory could not be opened, or its last read is done."""

    container: Container
    place: RecordingFolder | None
    last: RecordingState
    printed: tuple[tuple[str, str, int], ...] | None = None
    """What distinguishes the files that were read last from others."""
    ended_at: float | None = None
    """On the monotonic clock."""
    wire: Bursts | None = None
    wire_time: float = 0.0
    window_s: float = WINDOW_S
    profiled: Profiled | None = None
    """None without TensorFlow, or if its profiler is not to be read."""
    closing: asyncio.Future[None] | None = field(default=None, repr=False)


class Recordings:
    """Belongs to one event loop."""

    def __init__(
        self,
        *,
        lacking: str = NOTHING,
        paused: Callable[[str], bool] = lambda name: False,
        sampler: NicSampler | None = None,
        ask: Ask | None = None,
        proc: Path = Path("/proc"),
        clock: Callable[[], float] = clock.time,
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        """``lacking`` is why a rank may have no file; ``paused`` returns whether one is frozen.

        Without ``ask`` no profiler is read.
        """
        self._lacking = lacking
        self._paused = paused
        self._proc = proc
        self._sampler = sampler or NicSampler(proc)
        self._ask = ask
        self._clock = clock
        self._monotonic = monotonic
        self._watched: dict[str, _Watched] = {}
        self._turn: deque[str] = deque()
        """Names in the order in which NICs are watched."""
        self._disturbed: Counter[str] = Counter()
        """How often each job was frozen or thawed."""
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="recordings")
        self._sampling = ThreadPoolExecutor(1, thread_name_prefix="wire")
        self._stopping = False

    def begin(self, container: Container) -> None:
        """Watch a rank that has just started, or that was found running."""
        name = container.key.container
        if container.record is Record.OFF or name in self._watched:
            return
        place, why = None, "its files have not been read yet"
        try:
            place = RecordingFolder.open(container, self._proc)
        except OSError as error:
            why = f"its directory for recordings cannot be opened: {error.strerror or error}"
        self._watched[name] = _Watched(container, place, RecordingState(state="absent", reason=why))
        if place is None:
            self._watched[name].ended_at = self._monotonic()
        elif container.profiler_port and self._ask is not None:
            known = Profiled(since_s=self._monotonic())
            marked = place.marked(MARK)
            self._watched[name].profiled = profiled.refused(known) if marked else known
        self._turn.append(name)

    def end(self, name: str) -> None:
        """Read a rank's files for the last time; their figures stay for some time."""
        watched = self._watched.get(name)
        if watched is None or watched.place is None or watched.closing is not None:
            return
        watched.closing = asyncio.ensure_future(self._finish(watched, watched.place))

    def disturb(self, job: str) -> None:
        """Note that a job is being frozen or thawed: its traffic does not count now."""
        if any(w.container.key.job == job for w in self._watched.values()):
            self._disturbed[job] += 1

    def of(self, job: str = "") -> list[RankRecording]:
        """Return what is known of a job's ranks, or of all."""
        return [self._of(w) for w in self._watched.values() if job in ("", w.container.key.job)]

    async def read(self) -> None:
        """Read the files of all running ranks once."""
        for watched in list(self._watched.values()):
            if watched.place is not None and watched.closing is None:
                await self._read(watched, watched.place)
        self._prune()

    async def run_reads(self) -> None:
        """Read until cancelled."""
        while True:
            await asyncio.sleep(READ_EVERY_S)
            try:
                await self.read()
            except Exception:
                _log.exception("recordings not read")

    async def watch_nics(self) -> float:
        """Watch the NICs of some ranks for one window; all get their turn.

        Returns the seconds to wait before the next one: a window that held too few steps is
        followed soon by a longer one, where the watched ranks are few enough for the limit of cost.
        """
        chosen = self._next_ranks()
        if not chosen:
            return _PAUSE_S
        before = {w.container.key.job: self._disturbed[w.container.key.job] for w in chosen}
        window_s = max(w.window_s for w in chosen)
        pids = [w.container.pid for w in chosen]
        loop = asyncio.get_running_loop()
        seen = await loop.run_in_executor(
            self._sampling, self._sampler.sample, pids, window_s, lambda: self._stopping
        )
        grown = False
        for watched, ticks in zip(chosen, seen, strict=True):
            key = watched.container.key
            still = watched.place is not None and not watched.place.ended
            calm = self._disturbed[key.job] == before[key.job] and not self._paused(key.container)
            found = bursts.find(ticks) if still and calm else None
            if found is None:
                continue
            watched.wire, watched.wire_time = found, self._clock()
            watched.window_s = next_window(found)
            grown = grown or watched.window_s > _GROWN * window_s
        few = len(chosen) * EVERY_S <= self._sampler.most * (SOON_S + window_s)
        return SOON_S if grown and few else _PAUSE_S

    async def run_looks(self) -> None:
        """Watch NICs until cancelled."""
        pause_s = _PAUSE_S
        while True:
            await asyncio.sleep(pause_s)
            pause_s = _PAUSE_S
            try:
                pause_s = await self.watch_nics()
            except Exception:
                _log.exception("wire not watched")

    async def ask(self) -> None:
        """Ask the profilers of TensorFlow's workers for one window, all at once.

        A job waits for its slowest rank, so it pays for one window instead of one a rank.
        """
        due: list[tuple[float, _Watched, Profiled]] = []
        for watched in self._watched.values():
            if watched.profiled is None or not self._can_ask(watched):
                continue
            if not _steps(watched):
                # TensorFlow 2.21 damages its heap most often when it is profiled while it starts.
                watched.profiled = profiled.starting(watched.profiled)
                continue
            now, watched.profiled = profiled.asked_now(watched.profiled)
            if now:
                due.append((watched.profiled.length_s, watched, watched.profiled))
        due.sort(key=lambda one: one[0])  # those that were asked least
        await asyncio.gather(*(self._ask_one(w, known) for _, w, known in due[:MOST_ASKED]))

    async def run_asks(self) -> None:
        """Ask until cancelled; by the wall clock, so that all servers do it at the same time."""
        while True:
            await asyncio.sleep(ASK_EVERY_S - self._clock() % ASK_EVERY_S)
            try:
                await self.ask()
            except Exception:
                _log.exception("profilers not asked")

    async def close(self) -> None:
        """Stop reading; ranks keep running."""
        self._stopping = True
        last = [w.closing for w in self._watched.values() if w.closing is not None]
        await asyncio.gather(*last, return_exceptions=True)
        for pool in (self._reading, self._sampling):
            await asyncio.to_thread(pool.shutdown)
        for watched in self._watched.values():
            if watched.place is not None:
                watched.place.close()
        self._watched.clear()

    def _next_ranks(self) -> list[_Watched]:
        """Return whose turn it is."""
        chosen: list[_Watched] = []
        for _ in range(len(self._turn)):
            if len(chosen) >= self._sampler.most:
                break
            name = self._turn.popleft()
            watched = self._watched.get(name)
            if watched is None or watched.place is None:
                continue
            self._turn.append(name)
            if not self._paused(name):
                chosen.append(watched)
        return chosen

    def _of(self, watched: _Watched) -> RankRecording:
        known = watched.profiled
        until_s = self._monotonic() if watched.ended_at is None else watched.ended_at
        return RankRecording(
            key=watched.container.key,
            read=profiled.shown(watched.last, known),
            wire=watched.wire,
            wire_time=watched.wire_time,
            profiler=None if known is None else known.latest,
            coverage=0.0 if known is None else known.coverage(until_s),
            ended=watched.ended_at is not None,
        )

    def _can_ask(self, watched: _Watched) -> bool:
        place = watched.place
        return (
            place is not None
            and not place.ended
            and not self._paused(watched.container.key.container)
        )

    async def _ask_one(self, watched: _Watched, known: Profiled) -> None:
        """Read the profiler of one worker; a window that a freeze touched does not count."""
        container, place = watched.container, watched.place
        if place is None or self._ask is None:
            return
        name, job = container.key.container, container.key.job
        before = self._disturbed[job]
        address = join_address(container.nic.ip, container.profiler_port)
        try:
            seconds = profiled.window_s(known, watched.wire.period_s if watched.wire else None)
            profile = await self._ask(place.pidfd, address, seconds)
        except OSError as error:
            _log.warning("profiler not asked", container=name, reason=str(error))
            return
        except AskError as error:
            if not self._can_ask(watched) or self._disturbed[job] != before:
                watched.profiled = replace(known, doubtful=True)
                return
            watched.profiled = profiled.failed(known, error.failure)
            if watched.profiled.failure == "busy":
                self._mark(watched)
            return
        if self._disturbed[job] != before or self._paused(name):
            return
        watched.profiled = await asyncio.to_thread(
            profiled.added,
            known,
            profile,
            name=name,
            now=self._clock(),
            now_s=self._monotonic(),
            on_gpu=bool(container.gpu_uuid),
        )

    def _mark(self, watched: _Watched) -> None:
        if watched.place is not None:
            with suppress(OSError):  # the rank has filled its directory: it is asked once more
                watched.place.mark(MARK)

    async def _read(self, watched: _Watched, place: RecordingFolder) -> None:
        loop = asyncio.get_running_loop()
        try:
            read, printed = await loop.run_in_executor(
                self._reading, self._read_now, watched, place
            )
        except OSError as error:
            _log.warning(
                "recordings not read",
                container=watched.container.key.container,
                reason=str(error),
            )
            return
        watched.last, watched.printed = read, printed

    def _read_now(
        self, watched: _Watched, place: RecordingFolder
    ) -> tuple[RecordingState, tuple[tuple[str, str, int], ...]]:
        files = place.files()
        printed = tuple((f.name, f.problem, zlib.crc32(f.data)) for f in files)
        last = watched.last
        if not files and last.operations:
            return last, printed  # the rank has removed them
        if printed == watched.printed and last.state == "recording":
            return last, printed
        refused = watched.container.refused
        return read_of(files, self._clock(), refused=refused, lacking=self._lacking), printed

    async def _finish(self, watched: _Watched, place: RecordingFolder) -> None:
        try:
            await self._read(watched, place)
        finally:
            watched.place, watched.ended_at = None, self._monotonic()
            place.close()

    def _prune(self) -> None:
        """Drop ended ranks: those past their time, then the oldest of the job with most rows."""
        now = self._monotonic()
        ended = sorted(
            ((w.ended_at, name) for name, w in self._watched.items() if w.ended_at is not None),
            reverse=True,
        )
        rows: Counter[str] = Counter()
        kept: defaultdict[str, list[str]] = defaultdict(list)
        """By job, the newest first."""
        for position, (ended_at, name) in enumerate(ended):
            if position >= MOST_ENDED or ended_at + KEPT_S < now:
                del self._watched[name]
                continue
            job = self._watched[name].container.key.job
            kept[job].append(name)
            rows[job] += len(self._of(self._watched[name]).read.operations)
        while rows.total() > MOST_ENDED_ROWS:
            (job, _), *_ = rows.most_common(1)
            gone = self._watched.pop(kept[job].pop())
            rows[job] -= len(self._of(gone).read.operations)
        jobs = {w.container.key.job for w in self._watched.values()}
        for job in self._disturbed.keys() - jobs:
            del self._disturbed[job]


def _steps(watched: _Watched) -> bool:
    """Whether a rank is past its start: its NIC has shown steps, or it was asked before."""
    known, wire = watched.profiled, watched.wire
    asked = known is not None and known.latest is not None
    return asked or (wire is not None and wire.period_s is not None)


def next_window(found: Bursts) -> float:
    """Return how long the next window of this rank should be."""
    if found.period_s is None:
        longer = 2 * found.window_s if found.bursts else WINDOW_S
        return min(LONGEST_WINDOW_S, longer)
    return min(LONGEST_WINDOW_S, max(WINDOW_S, _PERIODS * found.period_s))
