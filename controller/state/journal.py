"""The journal: writes the state's changes to the store, one commit at a time.

Changes that come while a commit is under way share the next one, so that many callers wait for
few writes of the disk. When the store refuses a shared commit, each change is tried alone: the
rows of one caller cannot make the change of another fail.

A write names the rows that memory holds, and reads them when it is made: what the disk gets of a
record is the record at that moment. Only rows that memory does not hold (entries of the intent log,
answers, usage) come with their bodies.

An outcome of the store is known or looked up, never guessed:

- ``change`` makes an intention durable before anything acts on it (``controller.state.intend``
  makes them). When the store refuses, the intention does not exist and is rolled back. When the
  store does not answer in time the outcome is unknown: the intention is rolled back too, and the
  next commit rewrites its rows as memory has them then, whether or not the late write succeeded.
- ``record`` is for what has happened already (a transaction ended, containers stopped). It cannot
  be rolled back: what is not written now stays owed and goes with the next commit. A row stops
  being owed when the disk has it as it was when it was owed, or as it was later.
- A row has one change under way at a time (``RowLocks``), and only that change writes it: what is
  owed of the row meanwhile goes with it, or after it.
- At most one commit is under way. While one is late nothing else is handed to the store, so a
  write that timed out waiting for its turn is known not to have been written.

Rows are idempotent: writing one twice is harmless.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from controller.base.errors import OutcomeUnknownError, ServiceError
from controller.base.tasks import seen
from controller.state.events import EventLog
from controller.state.intend.keys import FACTS
from controller.state.intend.locks import RowLocks
from controller.state.kinds.kind import Key
from controller.state.writes import (
    Body,
    DropAnswer,
    KeptAnswer,
    Loaded,
    PutAnswer,
    PutEvents,
    PutTransaction,
    PutUsage,
    Write,
)
from controller.usage.interval import UsageInterval
from controller.usage.ledger import UsageLedger
from controller.usage.window import Kept, UsageQuery

TURN_TIMEOUT_S = 10.0
"""How long a caller waits until the commits before its own are over."""
COMMIT_TIMEOUT_S = 10.0
"""How long a caller waits for its own commit."""
MOST_TOGETHER = 1000
"""Writes in one commit; a single caller may have more."""

Row = Key | Body
"""A row that memory holds, by its key; any other with its body."""
Outcome = Literal["durable", "refused", "unknown"]


@dataclass(slots=True, eq=False)
class _Owed:
    """A row that is owed."""

    body: Body | None = None
    """None: taken from the state when it is written."""
    asked: int = 0
    """How often it was owed."""
    written: int = 0
    """How many of these the disk has."""


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

    async def usage(self, window: UsageQuery, live: Sequence[UsageInterval]) -> Kept:
        """Return the usage in ``window``, of jobs that ended and without ``live``. ServiceError."""


class Change(Protocol):
    """What one caller changes."""

    @property
    def keys(self) -> Sequence[Key]:
        """The rows that it has, which nothing else writes."""

    def writes(self) -> Sequence[Write]:
        """Return what to write at this moment."""

    def end(self, outcome: Outcome) -> None:
        """Receive the outcome, before any other commit is made up."""


@dataclass(slots=True, frozen=True, eq=False)
class _Bodies:
    """Writes that no record of memory stands behind."""

    bodies: Sequence[Body]
    owe: Callable[..., object]
    keys: Sequence[Key] = ()

    def writes(self) -> Sequence[Write]:
        return self.bodies

    def end(self, outcome: Outcome) -> None:
        """Undo an answer whose outcome is unknown, unless its change is over.

        The end of a transaction in the log is recorded later.
        """
        if outcome == "unknown":
            answers = (w for w in self.bodies if isinstance(w, PutAnswer | DropAnswer))
            self.owe(*(w if _is_end(w) else DropAnswer(_key(w)[1]) for w in answers))


@dataclass(slots=True, eq=False)
class _Waiting:
    """A change that waits for its commit, and the future that gives its caller the outcome."""

    change: Change
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
        """Pass the outcome to the change and its caller, unless that is gone."""
        if not self.done.done():
            self.change.end("unknown" if isinstance(error, OutcomeUnknownError) else "refused")
            self.done.set_exception(error)
            self.done.exception()  # the caller may go at this moment

    def succeed(self) -> None:
        """Pass the outcome to the change and its caller, unless that is gone."""
        if not self.done.done():
            self.change.end("durable")
            self.done.set_result(None)


class Journal:
    """Orders the writes of one controller and remembers those that are owed."""

    def __init__(
        self,
        store: Durable,
        events: EventLog,
        row: Callable[[Key], Write],
        usage: UsageLedger,
    ) -> None:
        """``row`` returns the write of a row as memory has it now: its removal if it is gone."""
        self._store = store
        self._events = events
        self._usage = usage
        self._row = row
        self.locks = RowLocks()
        """The rows that are being changed."""
        self._waiting: deque[_Waiting] = deque()
        self._writer: asyncio.Task[None] | None = None
        """Writes what waits; None while nothing does."""
        self._late: asyncio.Task[None] | None = None
        """A commit whose outcome is not known."""
        self._owed: dict[Key, _Owed] = {}
        """Rows to be written with the next commit."""
        self.error = ""
        """Why the last commit failed; empty when it did not."""

    async def commit(self, *rows: Row) -> None:
        """Make ``rows`` durable with everything owed and all events so far.

        ServiceError when the bodies among them are not durable and never will be;
        OutcomeUnknownError when that is unknown. What memory holds stays owed.
        """
        bodies = [row for row in rows if not isinstance(row, tuple)]
        await self._write_owed([row for row in rows if isinstance(row, tuple)], bodies)

    async def record(self, *rows: Row) -> None:
        """Make durable what has happened. On ServiceError it is not durable yet and stays owed."""
        await self._write_owed(rows)

    async def change(self, change: Change) -> None:
        """Make a change durable with everything owed and all events so far.

        ServiceError when it is not and never will be; OutcomeUnknownError when that is unknown.
        The change receives its outcome in any case, also when the caller is cancelled.
        """
        waiting = _Waiting(change, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._limit(waiting)
        if self._writer is None:
            self._writer = asyncio.create_task(self._write_all(), name="journal")
        try:
            await waiting.done
        except asyncio.CancelledError:
            waiting.begin()
            if waiting in self._waiting:
                self._waiting.remove(waiting)
                change.end("refused")
            elif waiting.done.cancelled():  # it may be durable, or will be
                change.end("unknown")
            raise

    async def flush(self) -> None:
        """Write everything owed; after a failure, also check whether the store works again."""
        await self.commit(*((FACTS,) if self.error else ()))

    async def answer(self, ident: str) -> KeptAnswer | None:
        """Return what became of a change with an ``Idempotency-Key``. ServiceError."""
        return await self._store.answer(ident)

    def owe(self, *rows: Row) -> dict[Key, tuple[_Owed, int]]:
        """Add ``rows`` to the next commit; return how often each was owed by now."""
        asked = {}
        for row in rows:
            key = row if isinstance(row, tuple) else _key(row)
            owed = self._owed[key] = self._owed.pop(key, _Owed())  # the latest comes last
            owed.body = None if isinstance(row, tuple) else row
            owed.asked += 1
            asked[key] = owed, owed.asked
        return asked

    async def _write_owed(self, rows: Iterable[Row], bodies: Sequence[Body] = ()) -> None:
        """Owe ``rows`` and wait until the disk has them and ``bodies``. ServiceError."""
        asked = self.owe(*rows)
        await self.change(_Bodies(bodies, self.owe))
        while left := [key for key, (owed, n) in asked.items() if owed.written < n]:
            await self.locks.free(left[0])  # its change may have taken the row along
            await self.change(_Bodies((), self.owe))

    def _limit(self, waiting: _Waiting) -> None:
        """Limit the time that a change waits for its turn."""

        def give_up() -> None:
            self._waiting.remove(waiting)
            refusal = busy()
            self.error = refusal.message
            waiting.fail(refusal)

        waiting.turn = asyncio.get_running_loop().call_later(TURN_TIMEOUT_S, give_up)

    async def _write_all(self) -> None:
        """Write what waits, one commit after the other, until nothing does."""
        try:
            while self._waiting:
                await self._write_next()
                await asyncio.sleep(0)  # the callers go on before the next commit is made up
        finally:
            self._writer = None
            for waiting in self._taken(self._waiting):  # only when it is cancelled
                waiting.done.cancel()

    async def _write_next(self) -> None:
        try:
            await self._resolve()
        except ServiceError as error:
            self.error = error.message
            for waiting in self._taken(self._waiting):
                waiting.fail(error)
            return
        group = self._taken(self._next())
        shared = len(group) > 1
        try:
            await self._write([waiting.change for waiting in group])
        except asyncio.CancelledError:
            for waiting in group:
                waiting.done.cancel()
            raise
        except Exception as error:
            if shared and not isinstance(error, OutcomeUnknownError):
                self._try_alone(group)
                return
            for waiting in group:
                waiting.fail(error)
        for waiting in group:
            waiting.succeed()

    def _next(self) -> list[_Waiting]:
        """Return the changes of the next commit, the earliest first; none when all gave up."""
        group: list[_Waiting] = []
        size = 0
        for waiting in self._waiting:
            size += max(1, len(waiting.change.keys))
            if group and (waiting.alone or group[0].alone or size > MOST_TOGETHER):
                break
            group.append(waiting)
        return group

    def _taken(self, changes: Iterable[_Waiting]) -> list[_Waiting]:
        """Take changes from those that wait."""
        taken = list(changes)
        for waiting in taken:
            waiting.begin()
            self._waiting.remove(waiting)
        return taken

    def _try_alone(self, group: Sequence[_Waiting]) -> None:
        """Let the changes of a refused commit wait again, each for one of its own."""
        for waiting in reversed(group):
            if not waiting.done.done():
                waiting.alone = True
                self._waiting.appendleft(waiting)
                self._limit(waiting)

    async def _resolve(self) -> None:
        """Wait for the late commit; look up its outcome in the store if it is still unknown."""
        late = self._late
        if late is None:
            return
        await asyncio.wait({late})  # who waits for its turn gives up by itself
        if not late.cancelled() and isinstance(late.exception(), OutcomeUnknownError):
            await self._store.look_up()
        self._late = None

    async def _write(self, changes: Sequence[Change]) -> None:
        """Write what is owed and ``changes`` in one commit."""
        mine = {key for change in changes for key in change.keys}
        owed = {key: (row, row.asked) for key, row in self._owed.items()}
        free = [key for key in owed if key not in self.locks]
        batch = [owed[key][0].body or self._row(key) for key in free]
        own = [write for change in changes for write in change.writes()]
        events, gone = self._events.take_unwritten()
        usage = self._usage.take_unwritten()
        batch += [PutUsage(usage), *own] if usage else own
        if batch or events or gone:
            task = asyncio.create_task(self._store.commit(*batch, PutEvents(events, gone)))
            try:
                await self._in_time(task)
            except BaseException as error:
                self.error = error.message if isinstance(error, ServiceError) else self.error
                self._usage.give_back(usage)
                self._events.give_back(events, gone)
                raise
            self.error = ""
        for key in (*free, *(mine & owed.keys())):
            row, asked = owed[key]
            row.written = asked
            if self._owed.get(key) is row and row.asked == asked:
                del self._owed[key]

    async def _in_time(self, task: asyncio.Task[None]) -> None:
        """Wait for the store. OutcomeUnknownError when it does not answer in time."""
        try:
            async with asyncio.timeout(COMMIT_TIMEOUT_S):
                await asyncio.shield(task)
        except (TimeoutError, OutcomeUnknownError, asyncio.CancelledError) as error:
            self._late = task
            task.add_done_callback(seen)
            if not isinstance(error, TimeoutError):
                raise
            raise OutcomeUnknownError(
                "timeout",
                f"the store did not answer in {COMMIT_TIMEOUT_S:g} s",
                object="store",
                hint="check the disk; the request is rolled back as soon as it answers",
            ) from None


def _key(write: Body) -> Key:
    """Return what identifies a row that is owed with its body."""
    match write:
        case PutTransaction(record=record):
            return "transaction", record.id
        case PutAnswer(answer=answer):
            return "answer", answer.id
        case DropAnswer(id=ident):
            return "answer", ident
    raise TypeError(f"{type(write).__name__} cannot be owed")


def _is_end(write: PutAnswer | DropAnswer) -> bool:
    """Whether a key's change is over: only a key whose change has not begun is rolled back."""
    return isinstance(write, DropAnswer) or write.answer.status is not None


def busy() -> ServiceError:
    """Return the refusal of a change that waited for its turn in vain."""
    return ServiceError(
        "unavailable",
        "the store is still busy with an earlier write; nothing was changed",
        object="store",
        hint="check the disk; try again in a moment",
    )
