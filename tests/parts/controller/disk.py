"""Disk faults below the store: slow, full, failing, or torn.

Faults are injected between SQLAlchemy and SQLite, at the COMMIT: that is where a real disk is
slow, refuses or fails, and the store sees the same errors.
"""

from __future__ import annotations

import sqlite3
from typing import Any, Literal

import sqlalchemy as sa

from controller.people.accounts import Accounts
from controller.store.store import Store
from testbed.simulated.work import WorkEvent

Fault = Literal["", "slow", "full", "refused", "torn", "failing", "lost"]
"""``slow``: the commit hangs until released, and is then written. ``full`` and ``refused``: nothing
is written. ``torn``: written, and answered with an error. ``failing``: answered with an error, not
written, and nothing can be read before the release. ``lost``: the same, but written."""

FAULTS: tuple[Fault, ...] = ("slow", "full", "refused", "torn", "failing", "lost")
_CODES = {
    "full": sqlite3.SQLITE_FULL,
    "refused": sqlite3.SQLITE_READONLY,
}


class Disk:
    """The disk of one store. ``fault`` affects the next commits, at most ``times`` of them."""

    def __init__(self, store: Store | Accounts) -> None:
        self.fault: Fault = ""
        self.after = 0
        """Number of commits that succeed before the fault begins."""
        self.times: int | None = None
        self.hit = 0
        """Number of commits with a fault."""
        self.refuses = ""
        """Statements that begin with this word fail."""
        self._go = WorkEvent()
        engine = store._engine
        dialect: Any = engine.dialect
        self._commit = dialect.do_commit
        dialect.do_commit = self._faulty
        sa.event.listen(engine, "before_cursor_execute", self._look_up)
        self._pages: int | None = None
        sa.event.listen(engine, "checkout", self._checkout)

    def limit(self, pages: int) -> None:
        """Stop the database from growing beyond ``pages``, as on a full disk; 0 means no limit."""
        self._pages = pages

    def release(self) -> None:
        """End the fault and let hanging commits complete."""
        self.fault, self.after, self.times = "", 0, None
        self._go.set()

    def _checkout(self, connection: sqlite3.Connection, *_: object) -> None:
        if self._pages is not None:
            connection.execute(f"PRAGMA max_page_count={self._pages or 2**31 - 2}")

    def _faulty(self, connection: Any) -> None:
        fault = self._next()
        if fault == "slow":
            self._go.wait()
        elif fault:
            if fault in ("torn", "lost"):
                self._commit(connection)
            raise _error(fault, _CODES.get(fault, sqlite3.SQLITE_IOERR))
        self._commit(connection)

    def _look_up(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if self.refuses and statement.startswith(self.refuses):
            raise _error("full", _CODES["full"])
        if "wal_checkpoint" in statement and self.fault in ("failing", "lost"):
            raise _error(self.fault, sqlite3.SQLITE_IOERR)

    def _next(self) -> Fault:
        if not self.fault:
            return ""
        if self.after:
            self.after -= 1
            return ""
        if self.times is not None:
            if self.times == 0:
                return ""
            self.times -= 1
        self.hit += 1
        if self.fault == "slow":
            self._go.clear()
        return self.fault


def _error(fault: str, code: int) -> sqlite3.OperationalError:
    error = sqlite3.OperationalError(f"the disk is {fault}")
    error.sqlite_errorcode = code
    return error
