"""Keeps the output of removed containers on disk, up to limits of time, size per rank and total.

A log is linked from the engine's directory where both are on one file system, which takes no time
and no space; elsewhere its end is copied. Without room, the oldest logs of the largest job of the
largest project are dropped. Nothing here raises an error while a job ends.
"""

from __future__ import annotations

import errno
import os
import shutil
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from agentlink.ranks import PREFIX, RankKey
from base import clock
from container_mgr.ranks.logs import RECORD_LIMIT, SUFFIX, files
from container_mgr.values import LogLimits

MAX_KEPT = 10_000
"""Logs of removed containers, whatever their size."""
_BLOCK_BYTES = 4096
"""Disk space of the smallest file and of the smallest directory."""
_COPY_BYTES = 2**20
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
_PART = "."
"""Begins the name of a directory that is not complete."""

_log = structlog.get_logger("container_mgr.ranks.archive")


@dataclass(slots=True, frozen=True)
class KeptLog:
    """One kept log: its bytes on disk, and since when, in seconds since 1970."""

    size: int
    since: float


def excess(kept: Mapping[str, KeptLog], limits: LogLimits, now: float) -> list[str]:
    """Return which logs to drop: those past their time, then others until the rest fits.

    ``kept`` is oldest first. Pure.
    """
    dropped = [name for name, one in kept.items() if one.since + limits.keep_s <= now]
    left = _Left({name: one for name, one in kept.items() if one.since + limits.keep_s > now})
    while left.size > limits.total_bytes or left.count > MAX_KEPT:
        dropped.append(left.drop())
    return dropped


class _Left:
    """Logs by project and job, oldest first. A project is what jobs' names have before a hyphen."""

    def __init__(self, kept: Mapping[str, KeptLog]) -> None:
        self.size = sum(one.size for one in kept.values())
        self.count = len(kept)
        self._sizes: Counter[str] = Counter()
        self._jobs: defaultdict[str, Counter[str]] = defaultdict(Counter)
        self._logs: defaultdict[str, deque[tuple[str, int]]] = defaultdict(deque)
        for name, one in kept.items():
            project, job = _whose(name)
            self._sizes[project] += one.size
            self._jobs[project][job] += one.size
            self._logs[job].append((name, one.size))

    def drop(self) -> str:
        """Drop the oldest log of the project and job with most; return its name."""
        project = max(self._sizes, key=self._sizes.__getitem__)
        job = max(self._jobs[project], key=self._jobs[project].__getitem__)
        name, size = self._logs[job].popleft()
        self._sizes[project] -= size
        self._jobs[project][job] -= size
        self.size, self.count = self.size - size, self.count - 1
        return name


def _whose(container: str) -> tuple[str, str]:
    """Return the project and the job of a container's name."""
    words = container.removeprefix(PREFIX).rsplit("-", 2)
    job = words[0] if len(words) == 3 else ""
    return job.partition("-")[0], job


class Archive:
    """The output of removed containers. Methods but :meth:`find` block: call them in a thread."""

    def __init__(
        self, directory: Path, limits: LogLimits, clock: Callable[[], float] = clock.time
    ) -> None:
        self._dir = directory
        self._limits = limits
        self._clock = clock
        self._lock = threading.Lock()  # the ranks of a job end together, each in a thread
        self._kept: dict[str, KeptLog] = {}
        """By container, oldest first."""

    def load(self) -> None:
        """Find what earlier runs of the agent kept; remove what a crash left. Raises OSError."""
        self._dir.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._dir.chmod(0o700)  # other accounts of this server must not read here
        now, dated = self._clock(), []
        for path in self._dir.iterdir():
            if path.name.startswith(_PART + PREFIX):
                shutil.rmtree(path, ignore_errors=True)
            elif path.name.startswith(PREFIX):
                with suppress(OSError):
                    dated.append((path.stat().st_mtime, path.name, _size(path)))
        with self._lock:
            self._kept = {  # the clock may have been set back since
                name: KeptLog(size, min(date, now)) for date, name, size in sorted(dated)
            }
        self.prune()

    def store(self, key: RankKey, log: Path) -> None:
        """Keep the end of a container's log; files that cannot be read are left out."""
        name = key.container
        if name in self._kept and not log.exists():
            return  # stored before its removal, whose outcome was unknown
        part, target = self._dir / f"{_PART}{name}", self._dir / name
        while True:
            try:
                self._gather(log, part)
                shutil.rmtree(target, ignore_errors=True)
                part.rename(target)
                since = self._date(target)
                break
            except OSError as error:
                shutil.rmtree(part, ignore_errors=True)
                if error.errno not in _FULL or not self._drop_oldest():
                    _log.error("output not kept", container=name, reason=str(error))
                    return
        with self._lock:
            self._kept.pop(name, None)
            self._kept[name] = KeptLog(_size(target), since)
        self.prune()

    def prune(self) -> None:
        """Drop what is past its time, and the oldest while there is too much."""
        with self._lock:
            gone = excess(self._kept, self._limits, self._clock())
            for name in gone:
                del self._kept[name]
        for name in gone:
            shutil.rmtree(self._dir / name, ignore_errors=True)
        if gone:
            _log.info("output dropped", containers=len(gone), first=gone[0], last=gone[-1])

    def find(self, job: str, rank: int, epoch: int | None = None) -> Path | None:
        """Return the log of a removed rank: of one epoch, or of its newest."""
        if epoch is None:
            epoch = max(self._epochs(job, rank), default=None)
        if epoch is None or (name := RankKey(job, rank, epoch).container) not in self._kept:
            return None
        return self._dir / name / f"rank{SUFFIX}"

    def _epochs(self, job: str, rank: int) -> list[int]:
        prefix = RankKey(job, rank, 0).container.removesuffix("0")
        with self._lock:
            names = [n.removeprefix(prefix) for n in self._kept if n.startswith(prefix)]
        return [int(epoch) for epoch in names if epoch.isdecimal()]

    def _gather(self, log: Path, part: Path) -> None:
        """Link or copy the newest of a log's files to ``part``. Raises OSError on a full disk."""
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o700)
        left = self._limits.rank_bytes
        for path in reversed(files(log)):
            try:
                kept = part / path.name.replace(log.name, f"rank{SUFFIX}")
                left -= _keep_end(path, kept, left)
            except OSError as error:
                if error.errno in _FULL:
                    raise
                _log.warning("part of an output not kept", file=str(path), reason=str(error))

    def _date(self, target: Path) -> float:
        """Date ``target`` after all others, also when the system clock was set back meanwhile."""
        with self._lock:
            newest = max((one.since for one in self._kept.values()), default=0.0)
        since = max(self._clock(), newest)
        os.utime(target, (since, since))
        return since

    def _drop_oldest(self) -> bool:
        """Drop a log, because the disk is full; return False without one."""
        with self._lock:
            if not self._kept:
                return False
            name = _Left(self._kept).drop()
            del self._kept[name]
        shutil.rmtree(self._dir / name, ignore_errors=True)
        _log.warning("oldest output dropped: the disk is full", container=name)
        return True


def _keep_end(source: Path, target: Path, limit: int) -> int:
    """Link a file that fits, else copy whole records from its end; return the bytes kept."""
    if limit <= 0:
        return 0
    if (size := source.stat().st_size) <= limit:
        with suppress(OSError):
            os.link(source, target)
            return size
    with source.open("rb") as given:
        if size > limit:
            given.seek(size - limit - 1)
            while (part := given.readline(RECORD_LIMIT)) and not part.endswith(b"\n"):
                pass
        start = given.tell()
        if start == size:
            return limit  # no whole record fits: nothing older may follow
        with target.open("xb") as out:
            left = size - start
            while left > 0 and (part := given.read(min(left, _COPY_BYTES))):
                out.write(part)
                left -= len(part)
    return size - start


def _size(directory: Path) -> int:
    """Return the disk space that a kept log uses at least."""
    sizes = [path.stat().st_size for path in directory.iterdir()]
    return _BLOCK_BYTES + sum(-(-size // _BLOCK_BYTES) * _BLOCK_BYTES for size in sizes)
