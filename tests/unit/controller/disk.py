"""A disk that misbehaves under the store: slow, full, failing, or torn.

Faults are put between SQLAlchemy and SQLite, at the COMMIT itself: that is where a real disk is
slow, refuses or fails, and the store sees what it would see then.
"""

from __future__ import annotations

import sqlite3
import threading
from typing import Any, Literal

import sqlalchemy as sa

from controller.state import journal
from controller.store.store import Store

Fault = Literal["", "slow", "full", "refused", "torn", "failing", "lost"]
"""``slow``: the commit hangs until released, and then lands. ``full`` and ``refused``: nothing is
written. ``torn``: written, and answered with an error. ``failing``: answered with an error, not
written, and nothing can be looked up before the release. ``lost``: the same, but written."""

FAULTS: tuple[Fault, ...] = ("slow", "full", "refused", "torn", "failing", "lost")
_CODES = {
    "full": sqlite3.SQLITE_FULL,
    "refused": sqlite3.SQLITE_READONLY,
}


PATIENT_S = journal.COMMIT_TIMEOUT_S
IMPATIENT_S = 0.3


class Disk:
    """The disk of one store. Set ``fault``; ``times`` bounds for how many commits.

    While the disk is slow the journal is less patient, so that tests need not wait for it; at any
    other time a busy machine has all the time that a real disk has.
    """

    def __init__(self, store: Store) -> None:
        self._fault: Fault = ""
        self.after = 0
        """Commits that pass before the fault begins."""
        self.times: int | None = None
        self.hit = 0
        """Commits that met a fault."""
        self._go = threading.Event()
        dialect: Any = store._engine.dialect
        self._commit = dialect.do_commit
        dialect.do_commit = self._faulty
        sa.event.listen(store._engine, "before_cursor_execute", self._look_up)

    @property
    def fault(self) -> Fault:
        """What befalls the next commits."""
        return self._fault

    @fault.setter
    def fault(self, fault: Fault) -> None:
        self._fault = fault
        patience_s = IMPATIENT_S if fault == "slow" else PATIENT_S
        journal.COMMIT_TIMEOUT_S = journal.TURN_TIMEOUT_S = patience_s

    def release(self) -> None:
        """Mend the disk and let what hangs land."""
        self.fault, self.after, self.times = "", 0, None
        self._go.set()

    def _faulty(self, connection: Any) -> None:
        fault = self._next()
        if fault == "slow":
            self._go.wait(60)
        elif fault:
            if fault in ("torn", "lost"):
                self._commit(connection)
            raise _error(fault, _CODES.get(fault, sqlite3.SQLITE_IOERR))
        self._commit(connection)

    def _look_up(self, _connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
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
