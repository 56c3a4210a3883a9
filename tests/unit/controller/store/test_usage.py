"""The usage ledger in the database: the sums of the pure code, folded by day, in every window."""

from __future__ import annotations

import math
import shutil
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from controller.state.writes import PutUsage, TrimUsage
from controller.store import usage as tables
from controller.store.store import Store
from controller.usage.interval import ChargedJob, Level, UsageInterval, UsageSums
from controller.usage.window import By, Kept, UsageQuery
from tests.unit.controller.store.schemas import SCHEMA_1

DAY_S = tables.DAY_S
NOW = 1000 * DAY_S
BYS: tuple[By, ...] = ("project", "user", "job")


def interval(number: int, since: float, length: float, **how: object) -> UsageInterval:
    """Two jobs of two projects and users, in turns."""
    account = ChargedJob(f"j{number % 4}", 1.0, ("alpha", "beta")[number % 2], f"u{number % 3}")
    known = UsageInterval(
        id=number,
        account=account,
        level=Level(number % 5 + 1, number % 3 == 0, 1.0 + number % 2),
        since=since,
        until=since + length,
        first=number < 4,
        dark_s=float(number % 2),
    )
    return replace(known, **how)  # type: ignore[arg-type]


def close(one: UsageSums, other: UsageSums) -> bool:
    figures = ("held_s", "frozen_s", "dark_s", "weighted_s", "jobs")
    pairs = [(getattr(one, f), getattr(other, f)) for f in figures]
    return all(math.isclose(a, b, rel_tol=1e-9, abs_tol=1e-6) for a, b in pairs)


def plain(intervals: list[UsageInterval], window: UsageQuery) -> Kept:
    lines: dict[tuple[str | float, ...], UsageSums] = {}
    for one in intervals:
        part = one.sums(window.since, window.until)
        if window.shows(one.account.project) and part != UsageSums():
            key = window.key(one.account)
            lines[key] = lines.get(key, UsageSums()) + part
    return Kept(lines, sum(lines.values(), UsageSums()))


PARTS = st.lists(
    st.tuples(st.integers(0, 100_000), st.integers(0, 300_000)), min_size=1, max_size=12
)
EDGES = st.integers(-50_000, 400_000)
ONLY = st.none() | st.just(frozenset({"beta"})) | st.just(frozenset[str]())
WINDOWS = st.builds(
    lambda edges, by, only: UsageQuery(min(edges), max(edges), by, only),
    st.tuples(EDGES, EDGES),
    st.sampled_from(BYS),
    ONLY,
)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(PARTS, WINDOWS)
async def test_the_database_adds_up_as_the_pure_code_does(
    tmp_path_factory: pytest.TempPathFactory,
    parts: list[tuple[int, int]],
    window: UsageQuery,
) -> None:
    store = Store(tmp_path_factory.mktemp("usage") / "state.sqlite")
    await store.load()
    intervals = [interval(n, float(since), length) for n, (since, length) in enumerate(parts)]
    await store.commit(PutUsage(intervals))
    await store.commit(PutUsage(intervals[:3]))  # again: by id, so nothing counts twice
    live = intervals[::4]
    found = await store.usage(window, live)
    wanted = plain([i for i in intervals if i not in live], window)
    assert close(found.total, wanted.total)
    shown = {key: sums for key, sums in found.lines.items() if sums != UsageSums()}
    assert shown.keys() == wanted.lines.keys()
    assert all(close(sums, wanted.lines[key]) for key, sums in shown.items())
    await store.close()


async def test_old_intervals_become_sums_of_days_and_lose_nothing(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.sqlite")
    await store.load()
    old = NOW - tables.KEPT_S - 10 * DAY_S
    intervals = [interval(n, old + n * 30_000, 100_000) for n in range(1, 9)]
    going_on = interval(9, old, 0, until=None)
    fresh = interval(10, NOW - 3600, 60)
    await store.commit(PutUsage([*intervals, going_on, fresh]))
    whole = UsageQuery(0, NOW, "project")
    before = await store.usage(whole, ())
    await store.commit(TrimUsage(NOW))
    await store.commit(TrimUsage(NOW))
    after = await store.usage(whole, ())
    assert close(before.total, after.total)
    assert all(close(before.lines[key], after.lines[key]) for key in before.lines)
    by_user = await store.usage(replace(whole, by="user"), ())
    assert close(sum(by_user.lines.values(), UsageSums()), after.total)
    by_job = await store.usage(replace(whole, by="job"), ())
    assert list(by_job.lines) == [whole_key(fresh)]
    assert close(by_job.total, after.total)
    days = [old + n * DAY_S for n in range(-1, 14)]
    pieces = [await store.usage(UsageQuery(a, a + DAY_S, "project"), ()) for a in days]
    wanted = sum((piece.total for piece in pieces), UsageSums())
    assert close(
        wanted, (await store.usage(UsageQuery(days[0], days[-1] + DAY_S, "user"), ())).total
    )
    loaded = await store.load()
    assert loaded.usage == (going_on,)
    assert loaded.last_usage == 10
    await store.close()


def whole_key(one: UsageInterval) -> tuple[str | float, ...]:
    return UsageQuery(0, 1, "job").key(one.account)


async def test_what_is_kept_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tables, "KEPT_INTERVALS", 5)
    monkeypatch.setattr(tables, "AT_ONCE", 3)
    store = Store(tmp_path / "state.sqlite")
    await store.load()
    intervals = [interval(n, NOW - 1000 + n, 1) for n in range(1, 13)]
    await store.commit(PutUsage(intervals))
    window = UsageQuery(0, NOW, "project")
    before = await store.usage(window, ())
    for _ in range(3):
        await store.commit(TrimUsage(NOW))
        assert close((await store.usage(window, ())).total, before.total)
    with closing(sqlite3.connect(tmp_path / "state.sqlite")) as db:
        assert db.execute("SELECT count(*) FROM usage").fetchone() == (5,)
    await store.commit(TrimUsage(NOW + tables.KEPT_DAYS_S + DAY_S))
    await store.commit(TrimUsage(NOW + tables.KEPT_DAYS_S + DAY_S))
    assert (await store.usage(window, ())).total == UsageSums()
    await store.close()


async def test_a_database_without_a_ledger_opens(tmp_path: Path) -> None:
    store = Store(Path(shutil.copy(SCHEMA_1, tmp_path / "state.sqlite")))
    loaded = await store.load()
    assert (loaded.usage, loaded.last_usage) == ((), 0)
    assert {job.user for job in loaded.jobs} == {""}
    await store.close()
