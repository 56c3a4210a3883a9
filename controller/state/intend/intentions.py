"""Changes durably: what is intended is on the disk before anything acts on it, or it never was.

An intention has its rows alone until its outcome is known; others wait for it in the order in which
they asked, or are refused as busy. It gives each record's new value as a function of the record, so
that what other parts note in the record meanwhile is kept. Most intentions become visible when they
are durable: a job's end, a cancel, whatever is dropped. A reservation is visible at once, because
two jobs must not take the same endpoint; a refusal restores the fields that it set.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, fields, replace
from types import TracebackType
from typing import Any, Self

from controller.base import failpoints
from controller.base.errors import ServiceError
from controller.state import journal
from controller.state.intend.locks import RowLock
from controller.state.journal import Journal, Outcome, Row
from controller.state.kinds.kind import Key
from controller.state.writes import Body, Write

Make = Callable[[Any], Any]
"""Returns the record as it is to be, None to drop it; takes the record as it is, None when there is
none. Called more than once. ServiceError when that is not possible (any more)."""


@dataclass(slots=True, frozen=True)
class Table:
    """The records of one kind, as memory has them, and how they are written."""

    get: Callable[[str], Any]
    put: Callable[[Any], object]
    remove: Callable[[str], object]
    put_row: Callable[[Any], Write]
    drop_row: Callable[[str], Write]
    put_back: Callable[[Any], object] | None = None
    """Restores an earlier record without waking a waiter; None where ``put`` wakes none."""

    def write(self, name: str, record: Any) -> Write:
        """Return the write of a record; of its removal when it is None."""
        return self.drop_row(name) if record is None else self.put_row(record)


@dataclass(slots=True)
class _One:
    """What becomes of one record."""

    make: Make
    visible: bool
    before: Any = None
    """As it was when it became visible, or when it was written."""
    made: Any = None
    """What became visible, or was written."""


@dataclass(slots=True, eq=False)
class Intention:
    """One change of several records, all or none. Leaving its context before ``commit`` undoes it.

    Its journal asks it what to write, and reports the outcome to it.
    """

    journal: Journal
    table: Callable[[str], Table]
    _also: Sequence[Body] = ()
    """Written with it: rows that memory does not hold."""
    _lock: RowLock = field(default_factory=RowLock)
    _ones: dict[Key, _One] = field(default_factory=dict)

    async def acquire(self, *keys: Key) -> None:
        """Wait until nothing else changes these records; free ones are taken at once.

        ServiceError ``unavailable`` when that takes too long.
        """
        try:
            async with asyncio.timeout(journal.TURN_TIMEOUT_S):
                await self.journal.locks.acquire(self._lock, keys)
        except TimeoutError:
            raise journal.busy() from None

    def will(self, key: Key, make: Make) -> None:
        """Change a record that was taken, once that is durable. ServiceError of ``make``."""
        make(self.table(key[0]).get(key[1]))
        self._ones[key] = _One(make, visible=False)

    def now(self, key: Key, make: Make) -> None:
        """Change a record that was taken at once; it is undone when it does not become durable."""
        table = self.table(key[0])
        before = table.get(key[1])
        made = make(before)
        self._ones[key] = _One(make, True, before, made)
        table.put(made)

    async def commit(self, *rows: Row, point: str = "") -> None:
        """Make it durable, with ``rows``. ServiceError, OutcomeUnknownError: it is undone.

        ``point`` names a failpoint.
        """
        self._also = [row for row in rows if not isinstance(row, tuple)]
        async with failpoints.around(point) if point else nullcontext():
            self.journal.owe(*(row for row in rows if isinstance(row, tuple)))
            await self.journal.change(self)

    # --- for the journal ------------------------------------------------------------------

    @property
    def keys(self) -> Sequence[Key]:
        """The rows that it has, which nothing else writes."""
        return self._lock.keys

    def writes(self) -> Sequence[Write]:
        """Return what to write at this moment."""
        found = []
        for (kind, name), one in self._ones.items():
            table = self.table(kind)
            record = table.get(name)
            if not one.visible:
                one.before, one.made = record, one.make(record)
                record = one.made
            found.append(table.write(name, record))
        return [*found, *self._also]

    def end(self, outcome: Outcome) -> None:
        """Publish what is durable, or undo it; let the next change go on."""
        if outcome != "durable":
            for key in reversed(self._ones):
                if self._ones[key].visible:
                    self._undo(key, self._ones[key])
            if outcome == "unknown":
                self.journal.owe(*self._ones)
        else:
            for key, one in self._ones.items():
                if not one.visible:
                    self._publish(key, one)
        self._ones = {}
        self.journal.locks.release(self._lock)

    def _publish(self, key: Key, one: _One) -> None:
        table = self.table(key[0])
        now, made = table.get(key[1]), one.made
        if now != one.before:  # changed since it was written: the disk follows
            self.journal.owe(key)
            if now is None:
                return
            try:
                made = one.make(now)
            except ServiceError:  # what happened meanwhile has overtaken it
                return
        if made is not None:
            table.put(made)
        else:
            table.remove(key[1])

    def _undo(self, key: Key, one: _One) -> None:
        table = self.table(key[0])
        now = table.get(key[1])
        if now is None:
            return
        if one.before is None:
            table.remove(key[1])
        else:
            (table.put_back or table.put)(_without(now, one.made, one.before))

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._lock.keys:  # else the journal has reported the outcome
            self.end("refused")


def constant(record: Any) -> Make:
    """Return what makes any record this one."""
    return lambda now: record


def _without(now: Any, made: Any, before: Any) -> Any:
    """Return a record without what an intention made of it; what others changed since stays."""
    undone = {
        name: getattr(before, name)
        for name in (field.name for field in fields(made))
        if getattr(made, name) != getattr(before, name)
        and getattr(now, name) == getattr(made, name)
    }
    return replace(now, **undone)
