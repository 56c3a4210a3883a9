"""The journal: writes the state's changes to the store, one commit at a time.

Changes that come while a commit is under way share the next one, so that many callers wait for
few writes of the disk. When the store refuses a shared commit, each change is tried alone: the
rows of one caller cannot make the change of another fail.

An outcome of the store is known or looked up, never guessed:

- ``commit`` makes an intention durable before anything acts on it. When the store refuses, the
  intention does not exist and the caller rolls it back. When the store does not answer in time
  the outcome is unknown: the caller rolls the intention back too, and the next commit rewrites
  its rows as memory has them then, whether or not the late write succeeded.
- ``record`` is for what has happened already (a transaction ended, containers stopped). It cannot
  be rolled back: what is not written now stays owed and goes with the next commit.
- At most one commit is under way. While one is late nothing else is handed to the store, so a
  write that timed out waiting for its turn is known not to have been written.

Rows are idempotent: writing one twice, or after a newer one was written, is harmless, because an
owed row is read from memory at the moment when it is written.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

from controller.base.errors import OutcomeUnknownError, ServiceError
from controller.base.tasks import seen
from controller.state.events import EventLog
from controller.state.writes import (
    DropAnswer,
    DropJobs,
    DropMeasurements,
    DropRecords,
    KeptAnswer,
    Loaded,
    PutAnswer,
    PutAttachments,
    PutEvents,
    PutFacts,
    PutJob,
    PutMeasurement,
    PutRecords,
    PutTransaction,
    PutUsage,
    Write,
    key_of,
)
from controller.usage.interval import Interval
from controller.usage.ledger import Ledger
from controller.usage.window import Kept, Window

TURN_TIMEOUT_S = 10.0
"""How long a caller waits until the commits before its own are over."""
COMMIT_TIMEOUT_S = 10.0
"""How long a caller waits for its own commit."""
MOST_TOGETHER = 1000
"""Writes in one commit; a single caller may have more."""

Key = tuple[str, str]
"""A row: its kind and its name."""
FACTS: Key = ("facts", "")
ATTACHMENTS: Key = ("attachments", "")


@dataclass(slots=True, frozen=True, eq=False)
class _Row:
    """A row that is owed; compared by identity, so that one owed again is distinct."""

    write: Write | None
    """None: taken from the state when it is written."""


class Durable(Protocol):
    """A database that keeps the state; ``controller.store`` implements it."""

    async def load(self) -> Loaded:
        """Return everything kept, checked. ServiceError when it is damaged or unreadable."""

    async def commit(self, *writes: Write) -> None:
        """Make all ``writes`` durable together, or none. ServiceError, OutcomeUnknownError."""

    async def look_up(self) -> None:
        """Find out how a commit of unknown outcome ended. ServiceError while that fails."""

    async def answer(self, ident: str) -> KeptAnswer | None:
        """Return what became of a change with an ``Idempotency-Key``. ServiceError."""

    async def measurement_result(self, ident: str) -> str | None:
        """Return a measurement's result as JSON; None without one. ServiceError."""

    async def usage(self, window: Window, live: Sequence[Interval]) -> Kept:
        """Return the usage in ``window``, of jobs that ended and without ``live``. ServiceError."""


@dataclass(slots=True, eq=False)
class _Change:
    """The writes of one caller, and the future that tells it how they went."""

    writes: Sequence[Write]
    done: asyncio.Future[None]
    turn: asyncio.TimerHandle | None = None
    """Ends the wait for its turn."""
    alone: bool = False
    """Shares no commit, because the store refused the one that it was part of."""

    def begin(self) -> None:
        """End the wait for its turn."""
        if self.turn is not None:
            self.turn.cancel()

    def fail(self, error: Exception) -> None:
        """Tell the caller, unless it is gone."""
        if not self.done.done():
            self.done.set_exception(error)
            self.done.exception()  # the caller may go at this moment

    def succeed(self) -> None:
        """Tell the caller, unless it is gone."""
        if not self.done.done():
            self.done.set_result(None)


class Journal:
    """Orders the writes of one controller and remembers those that are owed."""

    def __init__(
        self,
        store: Durable,
        events: EventLog,
        row: Callable[[Key], Write | None],
        usage: Ledger,
    ) -> None:
        """``row`` returns a row as memory has it now; None while it is not decided yet."""
        self._store = store
        self._events = events
        self._usage = usage
        self._row = row
        self._waiting: deque[_Change] = deque()
        self._writer: asyncio.Task[None] | None = None
        """Writes what waits; None while nothing does."""
        self._late: asyncio.Task[None] | None = None
        """A commit whose outcome is not known."""
        self._owed: dict[Key, _Row] = {}
        """Rows to be written with the next commit."""
        self.error = ""
        """Why the last commit failed; empty when it did not."""

    async def commit(self, *writes: Write) -> None:
        """Make ``writes`` durable with everything owed and all events so far.

        ServiceError when they are not and never will be; OutcomeUnknownError when that is
        unknown, in which case the next commit writes their rows as memory has them then.
        """
        change = _Change(writes, asyncio.get_running_loop().create_future())
        self._waiting.append(change)
        self._limit(change)
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all(), name="journal")
        try:
            await change.done
        except ServiceError as error:
            self.error = error.message
            raise
        except asyncio.CancelledError:
            change.begin()
            if change in self._waiting:
                self._waiting.remove(change)
            else:  # it may be durable, or will be
                self._owe_again(writes, unknown=True)
            raise

    async def record(self, *writes: Write) -> None:
        """Make durable what has happened. On ServiceError it is not durable yet and stays owed."""
        self.owe(*writes)
        await self.commit()

    async def flush(self) -> None:
        """Write everything owed; after a failure, also check whether the store works again."""
        await (self.record(PutFacts({})) if self.error else self.commit())

    async def answer(self, ident: str) -> KeptAnswer | None:
        """Return what became of a change with an ``Idempotency-Key``. ServiceError."""
        return await self._store.answer(ident)

    def owe(self, *writes: Write) -> None:
        """Add ``writes`` to the next commit."""
        for write in writes:
            for key in keys(write):
                self._owed.pop(key, None)  # the latest comes last
                self._owed[key] = _Row(write if key[0] in ("transaction", "answer") else None)

    def _limit(self, change: _Change) -> None:
        """Limit the time that a change waits for its turn."""

        def give_up() -> None:
            self._waiting.remove(change)
            change.fail(_busy())

        change.turn = asyncio.get_running_loop().call_later(TURN_TIMEOUT_S, give_up)

    async def _write_all(self) -> None:
        """Write what waits, one commit after the other, until nothing does."""
        try:
            while self._waiting:
                await self._write_next()
                await asyncio.sleep(0)  # the callers go on before the next commit is made up
        finally:
            self._writer = None
            for change in self._taken(self._waiting):  # only when it is cancelled
                change.done.cancel()

    async def _write_next(self) -> None:
        try:
            await self._learn()
        except ServiceError as error:
            for change in self._taken(self._waiting):
                change.fail(error)
            return
        group = self._taken(self._next())
        writes = [write for change in group for write in change.writes]
        shared = len(group) > 1
        try:
            await self._write(writes, shared=shared)
        except asyncio.CancelledError:
            for change in group:
                change.done.cancel()
            raise
        except Exception as error:
            if shared and not isinstance(error, OutcomeUnknownError):
                self._try_alone(group)
                return
            for change in group:
                change.fail(error)
        for change in group:
            change.succeed()

    def _next(self) -> list[_Change]:
        """Return the changes of the next commit, the earliest first; none when all gave up."""
        group: list[_Change] = []
        size = 0
        for change in self._waiting:
            size += len(change.writes)
            if group and (change.alone or group[0].alone or size > MOST_TOGETHER):
                break
            group.append(change)
        return group

    def _taken(self, changes: Iterable[_Change]) -> list[_Change]:
        """Take changes from those that wait."""
        taken = list(changes)
        for change in taken:
            change.begin()
            self._waiting.remove(change)
        return taken

    def _try_alone(self, group: Sequence[_Change]) -> None:
        """Let the changes of a refused commit wait again, each for one of its own."""
        for change in reversed(group):
            if not change.done.done():
                change.alone = True
                self._waiting.appendleft(change)
                self._limit(change)

    async def _learn(self) -> None:
        """Wait for the late commit, and look up its outcome when it does not know that itself."""
        late = self._late
        if late is None:
            return
        await asyncio.wait({late})  # who waits for its turn gives up by itself
        if not late.cancelled() and isinstance(late.exception(), OutcomeUnknownError):
            await self._store.look_up()
        self._late = None

    async def _write(self, writes: Sequence[Write], *, shared: bool) -> None:
        """Write in one commit. A refused one that is ``shared`` leaves its rows to be tried."""
        mine = {key for write in writes for key in keys(write)}
        owed = dict(self._owed)
        rows = {key: row.write or self._row(key) for key, row in owed.items() if key not in mine}
        events = self._events.take_unwritten()
        usage = self._usage.take_unwritten()
        batch = [*(row for row in rows.values() if row is not None)]
        batch += [PutUsage(usage), *writes] if usage else writes
        if not batch and not events:
            return
        task = asyncio.create_task(self._store.commit(*batch, PutEvents(events)))
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_S):
                await asyncio.shield(task)
        except BaseException as error:
            self._usage.give_back(usage)
            self._events.give_back(events)
            timed_out = isinstance(error, TimeoutError)
            unknown = timed_out or isinstance(error, OutcomeUnknownError | asyncio.CancelledError)
            if unknown:
                self._late = task
                task.add_done_callback(seen)
            if unknown or not shared:
                self._owe_again(writes, unknown=unknown)
            if timed_out:
                raise OutcomeUnknownError(
                    "timeout",
                    f"the store did not answer in {COMMIT_TIMEOUT_S:g} s",
                    object="store",
                    hint="check the disk; the request is rolled back as soon as it answers",
                ) from None
            raise
        self.error = ""
        for key in mine | {key for key, row in rows.items() if row is not None}:
            if key in owed and self._owed.get(key) is owed[key]:
                del self._owed[key]

    def _owe_again(self, writes: Iterable[Write], *, unknown: bool) -> None:
        """Owe the rows that other commits, or a late success of theirs, may change."""
        for write in writes:
            if isinstance(write, PutAnswer | DropAnswer):
                if unknown:
                    self.owe(write if _is_end(write) else DropAnswer(keys(write)[0][1]))
                continue
            if isinstance(write, PutTransaction):
                continue  # its end is recorded later
            for key in keys(write):
                if unknown or self._row(key) is not None:
                    self._owed[key] = _Row(None)


def keys(write: Write) -> list[Key]:
    """Return the rows that ``write`` sets; events and usage have ids of their own."""
    found: list[Key] = []
    match write:
        case PutFacts():
            found = [FACTS]
        case PutAttachments():
            found = [ATTACHMENTS]
        case PutJob(job=job):
            found = [("job", job.name)]
        case DropJobs(names=names):
            found = [("job", name) for name in names]
        case PutTransaction(record=record):
            found = [("transaction", record.id)]
        case PutAnswer(answer=answer):
            found = [("answer", answer.id)]
        case DropAnswer(id=ident):
            found = [("answer", ident)]
        case PutRecords(records=records):
            found = [(type(record).__name__, key_of(record)) for record in records]
        case DropRecords(kind=kind, keys=gone):
            found = [(kind.__name__, key) for key in gone]
        case PutMeasurement(record=measurement):
            found = [("measurement", measurement.id)]
        case DropMeasurements(ids=idents):
            found = [("measurement", ident) for ident in idents]
    return found


def _is_end(write: PutAnswer | DropAnswer) -> bool:
    """Whether a key's change is over: only a key whose change has not begun is rolled back."""
    return isinstance(write, DropAnswer) or write.answer.status is not None


def _busy() -> ServiceError:
    return ServiceError(
        "unavailable",
        "the store is still busy with an earlier write; nothing was changed",
        object="store",
        hint="check the disk; try again in a moment",
    )
