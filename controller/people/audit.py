"""The audit trail: callers, requests and outcomes. Append-only, each record chained.

A record is one JSON line whose ``hash`` is SHA-256 over the record and the previous record's hash.
Waiting records are written together and made durable with one ``fdatasync``. An attacker who can
rewrite all files is detected with a head that is kept elsewhere (``expect`` of ``verify``).

If the disk refuses a record, it is kept in memory and written before the next one; until then
``ready`` refuses, so that no further change is made without a record.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import structlog

from base import clock
from controller.base.errors import ServiceError
from controller.base.one_thread import OneThread
from controller.people.audit_files import FILE, MAX_FILE_BYTES, MAX_FILES, Trail, TrailCheck
from controller.people.audit_record import START, AuditRecord, record_hash, unwritten
from controller.people.refusals import JoinedRefusals

log = structlog.get_logger(__name__)

WRITE_TIMEOUT_S = 10.0
JOIN_EVERY_S = 5.0
MAX_OWED = 1000
"""Records kept while the disk fails: of changes in progress, sign-ins and refusals."""
_EVIDENCE = "keep it as evidence: move all audit files away, then start again"


class AuditLog:
    """One trail in one directory. ``append`` returns when the record is durable."""

    def __init__(
        self,
        directory: Path,
        *,
        file_bytes: int = MAX_FILE_BYTES,
        files: int = MAX_FILES,
        clock: Callable[[], float] = clock.monotonic,
    ) -> None:
        self._path = directory / FILE
        self._trail = Trail(self._path, file_bytes=file_bytes, files=files)
        self._thread = OneThread("audit")
        self._reader = OneThread("audit check")
        self._stopping = threading.Event()
        self._clock = clock
        self._seq, self._hash = 0, START
        self._waiting: list[tuple[AuditRecord, asyncio.Future[None]]] = []
        self._owed: list[AuditRecord] = []
        self._refusals = JoinedRefusals()
        self._writing: asyncio.Task[None] | None = None
        self._tasks: list[asyncio.Task[None]] = []
        self.error = ""
        """Why the last write failed; empty if it succeeded."""
        self.damage = ""
        """What is wrong with older records; empty if no damage is known."""

    async def open(self) -> None:
        """Check the trail's end; a task then checks all of it. ServiceError if it is damaged.

        If the task finds damage further back, every change is refused from then on.
        """
        check = await asyncio.to_thread(self._trail.recover)
        if not check.ok:
            raise unwritten(self._path, _damaged(check), hint=_EVIDENCE)
        number, _, value = check.head.partition(":")
        self._seq, self._hash = int(number), value
        self._tasks = [
            asyncio.create_task(self._check(), name="audit check"),
            asyncio.create_task(self._join(), name="audit refusals"),
        ]

    async def append(self, record: AuditRecord) -> None:
        """Chain ``record`` (its seq, prev and hash are set here) and make it durable.

        ServiceError ``failed`` if the disk refuses, ``timeout`` if it does not answer.
        """
        await self._in_time(self._queue(record))

    def record_outcome(self, record: AuditRecord) -> None:
        """Record how something went that was recorded when it began; never waits."""
        self._queue(record)

    def note(self, record: AuditRecord) -> None:
        """Record a refusal or a sign-in, or count it with similar ones; never waits."""
        now = self._refusals.add(record, self._clock())
        if now is not None:
            self._queue(now)

    async def ready(self) -> None:
        """Return if a record can be written. ServiceError: no change may be made."""
        if self.damage:
            raise unwritten(self._path, self.damage, hint=_EVIDENCE)
        if not self.error:
            return
        self._begin()
        try:
            if self._writing is not None:
                await self._in_time(self._writing)
        except ServiceError:
            pass
        if self.error:
            raise ServiceError(
                "unavailable",
                f"nothing was changed, because it could not be recorded: {self.error}",
                object=f"file/{self._path}",
                hint="free disk space",
            )

    async def verify(self, expect: str = "") -> TrailCheck:
        """Check every record; ``expect`` is a head (``SEQ:HASH``) that must be in the trail."""
        await self._written()
        return await self._read(expect)

    async def records(self, after: int | None, limit: int) -> list[AuditRecord]:
        """Return at most ``limit`` records after number ``after``, or the newest; oldest first."""
        await self._written()
        first = max(0, self._seq - limit) if after is None else after
        try:
            return await asyncio.to_thread(self._trail.page, first, limit)
        except ValueError as error:
            hint = "see `lightloom audit verify`"
            raise unwritten(self._path, f"the audit trail is damaged: {error}", hint=hint) from None

    async def close(self) -> None:
        """Write the waiting records and stop; the wait for the disk is limited."""
        self._stopping.set()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for record in self._refusals.due(float("inf")):
            self._queue(record)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await self._written()
        lost = len(self._owed) + len(self._waiting)
        if lost:
            log.error("audit_records_lost", count=lost, error=self.error)
        self._thread.close()
        self._reader.close()

    def _queue(self, record: AuditRecord) -> asyncio.Future[None]:
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((record, done))
        self._begin()
        return done

    def _begin(self) -> None:
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all())

    async def _in_time(self, work: asyncio.Future[None]) -> None:
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await asyncio.shield(work)
        except TimeoutError:
            self.error = "the audit trail was not written in time"
            raise ServiceError("timeout", self.error, object=f"file/{self._path}") from None

    async def _written(self) -> None:
        if self._writing is not None:
            await asyncio.shield(self._writing)

    async def _write_all(self) -> None:
        try:
            while self._waiting or self._owed:
                batch, self._waiting = self._waiting, []
                chained = self._chained([*self._owed, *(record for record, _ in batch)])
                error: ServiceError | None = None
                try:
                    await self._thread.call(self._trail.write, chained)
                    self._seq, self._hash = chained[-1].seq, chained[-1].hash
                    self.error, self._owed = "", []
                except (OSError, ValueError) as refusal:
                    error = self._refused(refusal)
                    self._owe([record for record, _ in batch])
                for _, done in batch:
                    if done.done():
                        continue
                    if error is None:
                        done.set_result(None)
                    else:
                        done.set_exception(error)
                        done.exception()  # its request may be gone
                if error is not None and not self._waiting:
                    break
        finally:
            self._writing = None

    def _refused(self, refusal: OSError | ValueError) -> ServiceError:
        why = refusal.strerror if isinstance(refusal, OSError) else str(refusal)
        self.error = f"the audit trail cannot be written: {why}"
        return unwritten(
            self._path,
            self.error,
            hint="free disk space; the change was made, check the object",
        )

    def _owe(self, records: list[AuditRecord]) -> None:
        """Keep records for later, and log them: a crash would lose them."""
        for record in records:
            kept = len(self._owed) < MAX_OWED
            if kept:
                self._owed.append(record)
            log.error("audit_not_written", kept=kept, error=self.error, record=asdict(record))

    def _chained(self, records: list[AuditRecord]) -> list[AuditRecord]:
        seq, last = self._seq, self._hash
        chained = []
        for record in records:
            seq += 1
            following = replace(record, seq=seq, prev=last)
            following = replace(following, hash=record_hash(following))
            last = following.hash
            chained.append(following)
        return chained

    async def _read(self, expect: str = "") -> TrailCheck:
        """Check the whole trail, which may take minutes; one check at a time."""
        return await self._reader.call(self._trail.verify, expect, rest=self._rest)

    def _rest(self, seconds: float) -> None:
        """Pause a check; ServiceError if the controller stops, so that the check ends."""
        clock.sleep(seconds)
        if self._stopping.is_set():
            raise ServiceError(
                "unavailable", "the controller is stopping", object=f"file/{self._path}"
            )

    async def _check(self) -> None:
        check = await self._read()
        if not check.ok:
            self.damage = _damaged(check)
            log.error("audit_trail_damaged", problem=check.problem, file=str(self._path))

    async def _join(self) -> None:
        while True:
            await asyncio.sleep(JOIN_EVERY_S)
            for record in self._refusals.due(self._clock()):
                self._queue(record)


def _damaged(check: TrailCheck) -> str:
    return f"the audit trail is damaged: {check.problem}"
