"""The tables of the usage ledger: intervals, and below them the sums of days.

Intervals that are too old or too many are summed up by day (UTC), project and user, in the commit
that deletes them. A day's sums belong to its beginning, so windows that meet still add up.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import fields
from typing import Any

import sqlalchemy as sa

from controller.state.writes import PutUsage, TrimUsage
from controller.store.meta import META, upsert
from controller.usage.interval import ChargedJob, Level, UsageInterval, UsageSums
from controller.usage.window import MOST_LINES, Kept, Key, UsageQuery

DAY_S = 86400.0
KEPT_S = 90 * DAY_S
"""Age from which intervals are summed up by day."""
KEPT_INTERVALS = 200_000
KEPT_DAYS_S = 400 * DAY_S
AT_ONCE = 1_000
"""Intervals that one commit sums up."""

_FIGURES = tuple(field.name for field in fields(UsageSums))

INTERVALS = sa.Table(
    "usage",
    META,
    sa.Column("id", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("job", sa.String(63), nullable=False),
    sa.Column("submitted_at", sa.Float, nullable=False),
    sa.Column("project", sa.String(63), nullable=False),
    sa.Column("user", sa.String(127), nullable=False),
    sa.Column("endpoints", sa.Integer, nullable=False),
    sa.Column("frozen", sa.Boolean, nullable=False),
    sa.Column("weight", sa.Float, nullable=False),
    sa.Column("since", sa.Float, nullable=False),
    sa.Column("until", sa.Float, index=True),
    sa.Column("first", sa.Boolean, nullable=False),
    sa.Column("dark_s", sa.Float, nullable=False),
)
DAYS = sa.Table(
    "usage_days",
    META,
    sa.Column("id", sa.String(255), primary_key=True),
    sa.Column("day", sa.Float, nullable=False, index=True),
    sa.Column("project", sa.String(63), nullable=False),
    sa.Column("user", sa.String(127), nullable=False),
    sa.Column("held_s", sa.Float, nullable=False),
    sa.Column("frozen_s", sa.Float, nullable=False),
    sa.Column("dark_s", sa.Float, nullable=False),
    sa.Column("weighted_s", sa.Float, nullable=False),
    sa.Column("jobs", sa.Integer, nullable=False),
)


def apply(db: sa.Connection, write: PutUsage | TrimUsage) -> None:
    """Carry out one write inside the caller's database transaction."""
    match write:
        case PutUsage(intervals=intervals):
            upsert(db, INTERVALS, [_row(interval) for interval in intervals])
        case TrimUsage(now=now):
            _trim(db, now)


def _trim(db: sa.Connection, now: float) -> None:
    """Sum up by day at most ``AT_ONCE`` intervals that are too old or too many.

    Days are forgotten by their age.
    """
    newest = db.execute(sa.select(sa.func.max(INTERVALS.c.id))).scalar() or 0
    old = INTERVALS.c.until < now - KEPT_S
    many = INTERVALS.c.until.is_not(None) & (INTERVALS.c.id <= newest - KEPT_INTERVALS)
    found = db.execute(sa.select(INTERVALS).where(old | many).limit(AT_ONCE)).all()
    if found:
        _add_to_days(db, [_interval(row) for row in found])
        gone = INTERVALS.delete().where(INTERVALS.c.id == sa.bindparam("of"))
        db.execute(gone, [{"of": row.id} for row in found])
    db.execute(DAYS.delete().where(DAYS.c.day < now - KEPT_DAYS_S))


def read_open(db: sa.Connection) -> tuple[tuple[UsageInterval, ...], int]:
    """Return the intervals that go on, and the highest id of all."""
    rows = db.execute(sa.select(INTERVALS).where(INTERVALS.c.until.is_(None)))
    newest = db.execute(sa.select(sa.func.max(INTERVALS.c.id))).scalar() or 0
    return tuple(_interval(row) for row in rows), int(newest)


def read(db: sa.Connection, window: UsageQuery, live: Sequence[UsageInterval]) -> Kept:
    """Return what ended in a window, without the intervals ``live``.

    By job, these are the jobs that held most, and those of ``live``.
    """
    ids = [interval.id for interval in live]
    total = sum((sums for _, sums in _grouped(db, window, ids, "project")), UsageSums())
    total = sum((sums for _, sums in _days(db, window, "project")), total)
    lines: dict[Key, UsageSums] = {}
    if window.by == "job":
        of_live = INTERVALS.c.job.in_([interval.account.job for interval in live])
        lines.update(_grouped(db, window, ids, "job", of_live))
        lines.update(_grouped(db, window, ids, "job", ~of_live, most=MOST_LINES))
    else:
        lines.update(_grouped(db, window, ids, window.by))
        for key, sums in _days(db, window, window.by):
            lines[key] = lines.get(key, UsageSums()) + sums
    return Kept(lines, total)


def _grouped(
    db: sa.Connection,
    window: UsageQuery,
    without: Sequence[int],
    by: str,
    *conditions: sa.ColumnElement[bool],
    most: int | None = None,
) -> list[tuple[Key, UsageSums]]:
    """Return the sums of intervals that ended; the same sums as ``UsageInterval.sums``."""
    c = INTERVALS.c
    start = sa.case((c.since > window.since, c.since), else_=window.since)
    end = sa.case((c.until < window.until, c.until), else_=window.until)
    length = sa.case((end > start, end - start), else_=0.0)
    held = c.endpoints * length
    begins = c.first & (c.since >= window.since) & (c.since < window.until)
    keys = [c.job, c.submitted_at, c.project, c.user] if by == "job" else [c[by]]
    most_first = sa.func.sum(held).desc()
    query = (
        sa.select(
            *keys,
            sa.func.sum(held),
            sa.func.sum(sa.case((c.frozen, held), else_=0.0)),
            sa.func.sum(
                sa.case((c.until > c.since, c.dark_s * length / (c.until - c.since)), else_=0.0)
            ),
            sa.func.sum(held * c.weight),
            sa.func.sum(sa.case((begins, 1), else_=0)),
        )
        .where(c.until >= window.since, c.since < window.until, c.id.not_in(without), *conditions)
        .group_by(*keys)
        .order_by(most_first, *keys)
        .limit(most)
    )
    if window.projects is not None:
        query = query.where(c.project.in_(window.projects))
    return _keyed(db, query, len(keys))


def _days(db: sa.Connection, window: UsageQuery, by: str) -> list[tuple[Key, UsageSums]]:
    c = DAYS.c
    query = (
        sa.select(c[by], *(sa.func.sum(c[name]) for name in _FIGURES))
        .where(c.day >= window.since, c.day < window.until)
        .group_by(c[by])
    )
    if window.projects is not None:
        query = query.where(c.project.in_(window.projects))
    return _keyed(db, query, 1)


def _keyed(db: sa.Connection, query: sa.Select[Any], keys: int) -> list[tuple[Key, UsageSums]]:
    rows = (tuple(row) for row in db.execute(query))
    return [(row[:keys], UsageSums(*row[keys:])) for row in rows]


def _add_to_days(db: sa.Connection, intervals: Iterable[UsageInterval]) -> None:
    """Add intervals to the sums of the days that they touch."""
    added: dict[tuple[float, str, str], UsageSums] = {}
    for interval in intervals:
        day = math.floor(interval.since / DAY_S) * DAY_S
        end = interval.since if interval.until is None else interval.until
        while day <= end:
            key = day, interval.account.project, interval.account.user
            added[key] = added.get(key, UsageSums()) + interval.sums(day, day + DAY_S)
            day += DAY_S
    rows = []
    for (day, project, user), more in added.items():
        ident = json.dumps([int(day), project, user])
        kept = db.execute(sa.select(DAYS).where(DAYS.c.id == ident)).one_or_none()
        before = UsageSums(*(getattr(kept, name) for name in _FIGURES)) if kept else UsageSums()
        sums = before + more
        figures = {name: getattr(sums, name) for name in _FIGURES}
        rows.append({"id": ident, "day": day, "project": project, "user": user} | figures)
    upsert(db, DAYS, rows)


def _row(interval: UsageInterval) -> dict[str, object]:
    account, level = interval.account, interval.level
    return {
        "id": interval.id,
        "job": account.job,
        "submitted_at": account.submitted_at,
        "project": account.project,
        "user": account.user,
        "endpoints": level.endpoints,
        "frozen": level.frozen,
        "weight": level.weight,
        "since": interval.since,
        "until": interval.until,
        "first": interval.first,
        "dark_s": interval.dark_s,
    }


def _interval(row: sa.Row[Any]) -> UsageInterval:
    return UsageInterval(
        id=row.id,
        account=ChargedJob(row.job, row.submitted_at, row.project, row.user),
        level=Level(row.endpoints, row.frozen, row.weight),
        since=row.since,
        until=row.until,
        first=row.first,
        dark_s=row.dark_s,
    )
