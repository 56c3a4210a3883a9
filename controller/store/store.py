"""The durable part of the controller's state: jobs, intent, transactions, events, quarantine.

SQLAlchemy Core over SQLite in WAL mode with ``synchronous=FULL``: an acknowledged commit
survives a power cut. The schema uses nothing that PostgreSQL lacks. One ``commit`` is one
database transaction, hence one durable write, regardless of the number of records.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from base.pools import Pool
from controller.base.errors import OutcomeUnknownError, ServiceError
from controller.devices.aggregators import AttachPoint
from controller.state.records import Event
from controller.state.transactions import KEPT_TRANSACTIONS
from controller.state.writes import (
    KeptAnswer,
    Loaded,
    PutFacts,
    Write,
)
from controller.store import kinds, measurements, usage
from controller.store.ackfile import AckFile
from controller.store.meta import META, upsert
from controller.store.migrations import add_columns, migrate
from controller.store.tables import (
    ANSWERS,
    ATTACHMENTS,
    EVENTS,
    FACTS,
    INTENT,
    JOB,
    JOBS,
    LOG,
    TRANSACTIONS,
    UPLINKS,
    apply,
    apply_all,
    read_answer,
)
from controller.usage.interval import UsageInterval
from controller.usage.window import Kept, UsageQuery

SCHEMA_VERSION = 2
"""1: transactions and jobs were kept as documents of the REST schema."""
COMMITS = "commits"
"""Fact that counts commits; compared with the acknowledged number."""


class Store:
    """One database; a single worker thread does all of its I/O, so writes keep their order."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._existed = path.exists()
        self._engine = _open(f"sqlite:///{path}")
        self._acknowledged = AckFile(path.with_name(path.name + ".ack"))
        self._pool = Pool("store")
        self._readers = Pool("store reads")
        self._done = 0
        """Number of the last commit that the database holds."""
        self.commits = 0
        """Durable writes since the start."""

    async def load(self) -> Loaded:
        """Create missing tables and return everything. ServiceError when it is not readable."""
        loaded: Loaded = await self._call(self._load)
        return loaded

    async def commit(self, *writes: Write) -> None:
        """Make all ``writes`` durable together, or none; takes as long as the disk does.

        ServiceError when the disk refuses; OutcomeUnknownError when it failed in a way that
        leaves open whether the writes are durable (see ``look_up``).
        """
        await self._call(self._commit, writes)
        self.commits += 1

    async def look_up(self) -> None:
        """Find out the outcome of an unknown commit. ServiceError while the disk fails."""
        await self._call(self._look_up)

    async def answer(self, ident: str) -> KeptAnswer | None:
        """Return what became of a change with an ``Idempotency-Key``. ServiceError."""
        found: KeptAnswer | None = await self._call(self._answer, ident)
        return found

    async def measurement_result(self, ident: str) -> str | None:
        """Return a measurement's result as JSON; None without one. ServiceError."""
        found: str | None = await self._call(self._measurement_result, ident, pool=self._readers)
        return found

    async def usage(self, window: UsageQuery, live: Sequence[UsageInterval]) -> Kept:
        """Return what ended in ``window``, without the intervals ``live``. ServiceError.

        It delays no commit: a reader has a thread and a view of the database of its own.
        """
        kept: Kept = await self._call(self._usage, window, live, pool=self._readers)
        return kept

    async def close(self) -> None:
        """Finish what is under way and close the database."""
        await self._pool.run(self._engine.dispose)
        self._acknowledged.close()
        self._pool.close()
        self._readers.close()

    async def _call(self, function: Any, *arguments: Any, pool: Pool | None = None) -> Any:
        try:
            return await (pool or self._pool).run(function, *arguments)
        except (ValueError, KeyError, TypeError) as error:  # a damaged row
            raise self._damaged(f"{type(error).__name__}: {error}") from error
        except (sa.exc.SQLAlchemyError, OSError) as error:
            raise ServiceError(
                "failed",
                f"the store refused: {_cause(error)}",
                object=f"store/{self._path}",
                hint="free disk space and check the disk; the controller then continues by itself",
            ) from error

    def _damaged(self, what: str) -> ServiceError:
        return ServiceError(
            "failed",
            f"the store is damaged: {what[:200]}",
            object=f"store/{self._path}",
            hint="restore a copy, or move it away: unknown jobs keep their containers and flows,"
            " and their endpoints are not used; agents then require --take-command"
            " (docs/reliability.md)",
        )

    def _load(self) -> Loaded:
        self._check_pages()
        META.create_all(self._engine)
        with self._engine.begin() as db:
            add_columns(db)
            facts = {row.key: row.value for row in db.execute(sa.select(FACTS))}
            version = int(facts.setdefault("schema", str(SCHEMA_VERSION)))
            if version < SCHEMA_VERSION:
                migrate(db, version)
                facts["schema"] = str(SCHEMA_VERSION)
            elif version > SCHEMA_VERSION:
                raise ServiceError(
                    "failed",
                    f"the store has schema {version}, this program uses {SCHEMA_VERSION}",
                    object=f"store/{self._path}",
                    hint="start the version that wrote it",
                )
            done = int(facts.get(COMMITS, "0"))
            acknowledged = self._acknowledged.read() if self._existed else 0
            if done < acknowledged:
                raise self._damaged(f"it holds {done} commits, {acknowledged} were acknowledged")
            self._done = done
            self._acknowledged.write(done)
            upsert(db, FACTS, [{"key": "schema", "value": facts["schema"]}])
            jobs = [
                JOB.read(row.body)
                for row in db.execute(sa.select(JOBS).order_by(JOBS.c.submitted_at))
            ]
            lit = db.execute(sa.select(ATTACHMENTS)).all()
            attachments = {row.endpoint: AttachPoint(row.aggregator, row.port) for row in lit}
            joined = db.execute(sa.select(UPLINKS)).all()
            uplinks = {
                AttachPoint(row.near_aggregator, row.near_port): AttachPoint(
                    row.aggregator, row.port
                )
                for row in joined
            }
            log = db.execute(
                sa.select(TRANSACTIONS).order_by(TRANSACTIONS.c.started_at.desc())
            ).all()
            latest = [r for i, r in enumerate(log) if i < KEPT_TRANSACTIONS or not r.finished]
            events = db.execute(sa.select(EVENTS).order_by(EVENTS.c.id)).all()
            measured = measurements.read_measurements(db)
            going_on, last = usage.read_open(db)
            records = kinds.read_all(db)
        return Loaded(
            facts,
            tuple(jobs),
            attachments,
            uplinks,
            tuple((LOG.read(row.body), INTENT.read(row.intent)) for row in reversed(latest)),
            tuple(Event(*row) for row in events),
            going_on,
            last,
            max((row.epoch for row in (*lit, *joined)), default=0),
            measured,
            records,
        )

    def _answer(self, ident: str) -> KeptAnswer | None:
        with self._engine.connect() as db:
            row = db.execute(sa.select(ANSWERS).where(ANSWERS.c.id == ident)).one_or_none()
            return None if row is None else read_answer(row)

    def _measurement_result(self, ident: str) -> str | None:
        with self._engine.connect() as db:
            return measurements.read_result(db, ident)

    def _usage(self, window: UsageQuery, live: Sequence[UsageInterval]) -> Kept:
        with self._engine.connect() as db, db.begin():
            return usage.read(db, window, live)

    def _check_pages(self) -> None:
        with self._engine.connect() as db:
            if db.dialect.name == "sqlite":
                result = db.exec_driver_sql("PRAGMA quick_check(1)").scalar()
                if result != "ok":
                    raise self._damaged(str(result))

    def _commit(self, writes: Iterable[Write]) -> None:
        number = self._done + 1
        try:
            self._write(number, writes)
        except (sa.exc.DBAPIError, OSError) as error:
            if _refused(error):
                raise
            # A commit whose fsync failed may still be in the log.
            try:
                self._look_up()
            except (sa.exc.SQLAlchemyError, OSError) as again:
                raise OutcomeUnknownError(
                    "failed",
                    f"the store failed: {_cause(again)}",
                    object=f"store/{self._path}",
                    hint="check the disk; whether the write is durable is then looked up",
                ) from error
            if self._done != number:
                raise
        self._done = number
        self._acknowledged.write(number)

    def _write(self, number: int, writes: Iterable[Write]) -> None:
        with self._engine.begin() as db:
            apply_all(db, writes)
            apply(db, PutFacts({COMMITS: str(number)}))

    def _look_up(self) -> None:
        """Read the number of the last commit, once the whole log is certainly on the disk.

        The connection is a new one: after a failed fsync SQLite's own view of its log may differ
        from what a restart would find.
        """
        self._engine.dispose()
        with self._engine.connect() as db:
            if db.dialect.name == "sqlite":
                busy, *_ = db.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").one()
                if busy:
                    raise OSError("the write-ahead log could not be merged into the database")
            last = db.execute(sa.select(FACTS.c.value).where(FACTS.c.key == COMMITS))
            self._done = int(last.scalar() or 0)


_CERTAIN = {
    sqlite3.SQLITE_FULL,
    sqlite3.SQLITE_CONSTRAINT,
    sqlite3.SQLITE_BUSY,
    sqlite3.SQLITE_LOCKED,
    sqlite3.SQLITE_READONLY,
    sqlite3.SQLITE_CANTOPEN,
    sqlite3.SQLITE_TOOBIG,
}
"""Primary result codes after which SQLite has rolled back before anything was synchronised."""


def _refused(error: BaseException) -> bool:
    """Whether the database is known not to hold the commit that ended with ``error``."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    code = getattr(cause, "sqlite_errorcode", None)
    return code is not None and code & 0xFF in _CERTAIN


def _cause(error: BaseException) -> str:
    return str(error.__cause__ or error)


def _open(url: str) -> sa.Engine:
    engine = sa.create_engine(url)

    @sa.event.listens_for(engine, "connect")
    def _pragmas(connection: Any, _record: object) -> None:
        connection.execute("PRAGMA journal_mode=WAL")
        connection.execute("PRAGMA synchronous=FULL")
        connection.execute("PRAGMA busy_timeout=5000")

    return engine
