"""The store's tables, and each write and record as rows of them. SQLAlchemy Core.

The schema uses nothing that PostgreSQL lacks.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import sqlalchemy as sa

from controller.state.kinds.kind import Kind
from controller.state.records import (
    JobRecord,
    TransactionRecord,
)
from controller.state.transactions import KEPT_TRANSACTIONS
from controller.state.writes import (
    CALLER_CHARS,
    DropAnswer,
    DropJobs,
    DropMeasurements,
    DropRecords,
    Intent,
    KeptAnswer,
    PutAnswer,
    PutAttachments,
    PutEvents,
    PutFacts,
    PutJob,
    PutMeasurement,
    PutRecords,
    PutTransaction,
    PutUsage,
    TrimUsage,
    Write,
)
from controller.store import measurements, usage
from controller.store.documents import Documents
from controller.store.kinds import TABLES
from controller.store.meta import META, upsert

FACTS = sa.Table(
    "facts",
    META,
    sa.Column("key", sa.String(63), primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
JOBS = sa.Table(
    "jobs",
    META,
    sa.Column("name", sa.String(63), primary_key=True),
    sa.Column("state", sa.String(16), nullable=False),
    sa.Column("submitted_at", sa.Float, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)
ALLOCATIONS = sa.Table(
    "allocations",
    META,
    sa.Column("endpoint", sa.String(63), primary_key=True),
    sa.Column("job", sa.String(63), nullable=False),
    sa.Column("rank", sa.Integer, nullable=False),
    sa.UniqueConstraint("job", "rank"),
)
ATTACHMENTS = sa.Table(
    "attachments",
    META,
    sa.Column("endpoint", sa.String(63), primary_key=True),
    sa.Column("aggregator", sa.String(63), nullable=False),
    sa.Column("port", sa.Integer, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.Column("fiber", sa.Integer, nullable=False, server_default="0"),
    sa.UniqueConstraint("aggregator", "port"),
)
"""Where each lit endpoint is attached, and by which of its fibers."""
UPLINKS = sa.Table(
    "uplinks",
    META,
    sa.Column("near_aggregator", sa.String(63), primary_key=True),
    sa.Column("near_port", sa.Integer, primary_key=True, autoincrement=False),
    sa.Column("aggregator", sa.String(63), nullable=False),
    sa.Column("port", sa.Integer, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
    sa.UniqueConstraint("aggregator", "port"),
)
"""The circuits between two aggregators."""
TRANSACTIONS = sa.Table(
    "transactions",
    META,
    sa.Column("id", sa.String(63), primary_key=True),
    sa.Column("finished", sa.Boolean, nullable=False),
    sa.Column("started_at", sa.Float, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("intent", sa.Text, nullable=False),
)
EVENTS = sa.Table(
    "events",
    META,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("time", sa.Float, nullable=False),
    sa.Column("severity", sa.String(8), nullable=False),
    sa.Column("object", sa.String(127), nullable=False),
    sa.Column("reason", sa.String(63), nullable=False),
    sa.Column("message", sa.Text, nullable=False),
    sa.Column("epoch", sa.BigInteger, nullable=False),
)
ANSWERS = sa.Table(
    "answers",
    META,
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("print", sa.String(64), nullable=False),
    sa.Column("at", sa.Float, nullable=False, index=True),
    sa.Column("status", sa.Integer),
    sa.Column("headers", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary),
    sa.Column("size", sa.Integer, nullable=False),
)

JOB: Documents[JobRecord] = Documents(JobRecord)
LOG: Documents[TransactionRecord] = Documents(TransactionRecord)
INTENT: Documents[Intent] = Documents(Intent)


def apply_all(db: sa.Connection, writes: Iterable[Write]) -> None:
    """Carry out writes in order; consecutive records of one kind together."""
    for what, group in groupby(writes, _together):
        if what is PutJob:
            latest = {write.job.name: write.job for write in group if isinstance(write, PutJob)}
            _put_jobs(db, list(latest.values()))
        elif isinstance(what, Kind):
            puts = (write for write in group if isinstance(write, PutRecords))
            TABLES[what.name].put(db, [record for put in puts for record in put.records])
        else:
            for write in group:
                apply(db, write)


def _together(write: Write) -> object:
    """Return what consecutive writes have in common that are carried out together."""
    return write.kind if isinstance(write, PutRecords) else type(write)


def apply(db: sa.Connection, write: Write) -> None:
    """Carry out one write inside the caller's database transaction."""
    match write:
        case PutRecords(kind=kind, records=records):
            TABLES[kind.name].put(db, records)
        case DropRecords(kind=kind, keys=keys):
            TABLES[kind.name].drop(db, keys)
        case PutFacts(facts=facts):
            upsert(db, FACTS, [{"key": k, "value": v} for k, v in facts.items()])
        case PutJob(job=job):
            _put_jobs(db, [job])
        case PutAttachments():
            _put_attachments(db, write)
        case PutTransaction(record=record, intent=intent):
            _put_transaction(db, record, intent)
        case PutEvents():
            _put_events(db, write)
        case PutUsage() | TrimUsage():
            usage.apply(db, write)
        case PutAnswer():
            _put_answer(db, write)
        case PutMeasurement():
            measurements.put(db, write)
        case DropJobs() | DropAnswer() | DropMeasurements():
            _drop(db, write)


def _drop(db: sa.Connection, write: DropJobs | DropAnswer | DropMeasurements) -> None:
    match write:
        case DropJobs(names=names):
            if names:
                db.execute(JOBS.delete().where(JOBS.c.name.in_(names)))
        case DropAnswer(id=ident):
            db.execute(ANSWERS.delete().where(ANSWERS.c.id == ident))
        case DropMeasurements(ids=idents):
            table = measurements.MEASUREMENTS
            db.execute(table.delete().where(table.c.id.in_(idents)))


def _put_events(db: sa.Connection, write: PutEvents) -> None:
    names = [column.name for column in EVENTS.columns]
    upsert(db, EVENTS, [{name: getattr(e, name) for name in names} for e in write.events])
    if write.gone:
        old = EVENTS.delete().where(EVENTS.c.id == sa.bindparam("old"))
        db.execute(old, [{"old": ident} for ident in write.gone])


def _put_transaction(db: sa.Connection, record: TransactionRecord, intent: Intent) -> None:
    finished = record.finished_at is not None
    row = {
        "id": record.id,
        "finished": finished,
        "started_at": record.started_at,
        "body": LOG.write(record),
        "intent": INTENT.write(intent),
    }
    upsert(db, TRANSACTIONS, [row])
    if finished:
        ended = sa.select(TRANSACTIONS.c.id).where(TRANSACTIONS.c.finished)
        latest = ended.order_by(TRANSACTIONS.c.started_at.desc()).limit(KEPT_TRANSACTIONS)
        old = TRANSACTIONS.c.finished & TRANSACTIONS.c.id.not_in(latest)
        db.execute(TRANSACTIONS.delete().where(old))


def _put_jobs(db: sa.Connection, jobs: Sequence[JobRecord]) -> None:
    upsert(
        db,
        JOBS,
        [
            {
                "name": job.name,
                "state": job.state,
                "submitted_at": job.submitted_at,
                "body": JOB.write(job),
            }
            for job in jobs
        ],
    )
    if jobs:
        mine = ALLOCATIONS.delete().where(ALLOCATIONS.c.job == sa.bindparam("of"))
        db.execute(mine, [{"of": job.name} for job in jobs])
    ranks = [
        {"endpoint": endpoint, "job": job.name, "rank": rank}
        for job in jobs
        if job.holding
        for rank, endpoint in enumerate(job.endpoints)
    ]
    if ranks:  # the state decides who holds an endpoint; an older row must not prevent that
        theirs = ALLOCATIONS.delete().where(ALLOCATIONS.c.endpoint == sa.bindparam("of"))
        db.execute(theirs, [{"of": rank["endpoint"]} for rank in ranks])
        db.execute(ALLOCATIONS.insert(), ranks)


def _put_answer(db: sa.Connection, write: PutAnswer) -> None:
    answer = write.answer
    row = {name: getattr(answer, name) for name in ("id", "print", "at", "status", "body")}
    row |= {"headers": json.dumps(answer.headers), "size": len(answer.body or b"")}
    upsert(db, ANSWERS, [row])
    db.execute(ANSWERS.delete().where(ANSWERS.c.at < write.oldest))
    count, size = db.execute(sa.select(sa.func.count(), sa.func.sum(ANSWERS.c.size))).one()
    if count <= write.most and size <= write.most_bytes:
        return
    caller = sa.func.substr(ANSWERS.c.id, 1, CALLER_CHARS)
    kept: dict[str, deque[tuple[float, str, int]]] = {}
    """By caller, oldest first: time, id and size."""
    by_age = sa.select(caller, ANSWERS.c.at, ANSWERS.c.id, ANSWERS.c.size)
    for who, *row_of in db.execute(by_age.order_by(ANSWERS.c.at, ANSWERS.c.id)):
        if row_of[1] != answer.id:
            kept.setdefault(who, deque()).append((row_of[0], row_of[1], row_of[2]))
    held = {who: sum(size for _, _, size in rows) for who, rows in kept.items()}
    removed = []
    # Some more at once: in a flood, not every answer examines all of them.
    most_rows, most_bytes = (n - n // 100 for n in (write.most, write.most_bytes))
    while kept and (count > most_rows or size > most_bytes):
        share = {who: len(rows) for who, rows in kept.items()} if count > most_rows else held
        most = max(kept, key=lambda who: (share[who], -kept[who][0][0]))
        _, ident, own = kept[most].popleft()
        removed.append({"old": ident})
        count, size, held[most] = count - 1, size - own, held[most] - own
        if not kept[most]:
            del kept[most]
    if removed:
        db.execute(ANSWERS.delete().where(ANSWERS.c.id == sa.bindparam("old")), removed)


def read_answer(row: sa.Row[Any]) -> KeptAnswer:
    """Read an answer back. ValueError, KeyError or TypeError when the row is damaged."""
    headers = tuple((str(name), str(value)) for name, value in json.loads(row.headers))
    return KeptAnswer(row.id, row.print, row.at, row.status, headers, row.body)


def _put_attachments(db: sa.Connection, write: PutAttachments) -> None:
    attached = {(endpoint,): (at.aggregator, at.port) for endpoint, at in write.attachments.items()}
    joined = {(a.aggregator, a.port): (b.aggregator, b.port) for a, b in write.uplinks.items()}
    _put_circuits(db, ATTACHMENTS, attached, write.epoch)
    _put_circuits(db, UPLINKS, joined, write.epoch)


def _put_circuits(
    db: sa.Connection, table: sa.Table, want: Mapping[Any, tuple[str, int]], epoch: int
) -> None:
    """Replace the rows that differ; delete before inserting, because ends swap ports."""
    key = [column.name for column in table.primary_key]
    names = (*key, "aggregator", "port")
    rows = db.execute(sa.select(*(table.c[name] for name in names)))
    have = {tuple(row[:-2]): tuple(row[-2:]) for row in rows}
    removed = [dict(zip(key, end, strict=True)) for end, at in have.items() if want.get(end) != at]
    added = [
        dict(zip((*names, "epoch"), (*end, *at, epoch), strict=True))
        for end, at in want.items()
        if have.get(end) != at
    ]
    if removed:
        same = (table.c[name] == sa.bindparam(name) for name in key)
        db.execute(table.delete().where(*same), removed)
    if added:
        db.execute(table.insert(), added)
