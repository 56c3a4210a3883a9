from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from controller.base.errors import ServiceError
from controller.devices.aggregators import AttachPoint
from controller.state.records import (
    NOTICES,
    QUARANTINE,
    Event,
    JobRecord,
    JobSpec,
    MoveRecord,
    Notice,
    PhaseRecord,
    Quarantine,
    TransactionRecord,
)
from controller.state.writes import (
    DropRecords,
    Intent,
    PutAttachments,
    PutEvents,
    PutFacts,
    PutJob,
    PutRecords,
    PutTransaction,
)
from controller.store import tables
from controller.store.store import Store
from controller.transaction.circuits import EndpointEnd
from scheduler.model import TimeLimitAction

JOB = JobRecord(
    name="red",
    request=JobSpec(
        name="red",
        count=2,
        env={"A": "b"},
        secrets={"B": "wandb"},
        time_limit_s=60.0,
        time_limit_action=TimeLimitAction.END,
    ),
    image="image:1",
    submitted_at=10.0,
    state="running",
    endpoints=("gpu0", "gpu1"),
    epoch=3,
    exit_codes=(None, None),
    dark_time_s={"gpu0": 0.25},
)
TX = TransactionRecord(
    id="t1",
    state="running",
    phase="qualify",
    phases=(PhaseRecord("admit", 1.0),),
    cause="regroup",
    epoch_before=3,
    moves=(MoveRecord("gpu0", "as0", "as1"),),
    jobs=("red",),
    dark_time_s={},
    started_at=1.0,
)
GPU0 = EndpointEnd("gpu0")
INTENT = Intent({GPU0: AttachPoint("as0", 1)}, {GPU0: None}, True, ("red",))


async def opened(path: Path) -> Store:
    store = Store(path / "state.sqlite")
    await store.load()
    return store


async def test_everything_written_is_read_back_unchanged(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    event = Event(1, 5.0, "info", "job/red", "JobStarted", "here", 3)
    quarantine = Quarantine("as0/3", "no light", 6.0)
    notices = [Notice(f"n{n}", "receiver", "red", "{}", 7.0 - n) for n in range(3)]
    at = {"gpu0": AttachPoint("as0", 1), "gpu1": AttachPoint("as1", 2)}
    uplinks = {AttachPoint("as0", 4): AttachPoint("as1", 4)}
    await store.commit(
        PutFacts({"epoch": "3"}),
        PutJob(JOB),
        PutAttachments(at, uplinks, 3),
        PutTransaction(TX, INTENT),
        PutEvents([event]),
        PutRecords(QUARANTINE, [quarantine]),
        PutRecords(NOTICES, notices),
        DropRecords(NOTICES, ["n1"]),
    )
    assert store.commits == 1
    await store.close()
    again = Store(tmp_path / "state.sqlite")
    loaded = await again.load()
    await again.close()
    assert loaded.facts["epoch"] == "3"
    assert loaded.jobs == (JOB,)
    assert (loaded.attachments, loaded.uplinks, loaded.placed_at) == (at, uplinks, 3)
    assert loaded.transactions == ((TX, INTENT),)
    assert loaded.events == (event,)
    assert loaded.records["quarantine"] == (quarantine,)
    assert loaded.records["notices"] == (notices[2], notices[0])  # oldest first


async def test_a_commit_is_all_or_nothing(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.commit(PutJob(JOB))
    nothing: str = None  # type: ignore[assignment] - the table requires a reason
    with pytest.raises(ServiceError) as caught:
        await store.commit(
            PutFacts({"epoch": "9"}), PutRecords(QUARANTINE, [Quarantine("x", nothing, 0)])
        )
    assert caught.value.code == "failed"
    loaded = await store.load()
    await store.close()
    assert "epoch" not in loaded.facts
    assert [job.name for job in loaded.jobs] == ["red"]


async def test_ended_job_releases_its_endpoints(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.commit(PutJob(JOB))
    ended = JobRecord("red", JOB.request, "image:1", 10.0, "completed", "", ("gpu0", "gpu1"))
    other = JobRecord("blue", JobSpec(count=1), "image:1", 11.0, "running", "", ("gpu0",))
    await store.commit(PutJob(ended), PutJob(other))
    await store.close()


async def test_only_attachments_that_differ_are_replaced(tmp_path: Path) -> None:
    """Two endpoints and two uplinks swap ports, one leaves, one arrives, and one stays."""
    store = await opened(tmp_path)
    names = ("gpu0", "gpu1", "gpu2", "gpu3")
    before = {name: AttachPoint("as0", port) for port, name in enumerate(names)}
    after = {
        "gpu0": before["gpu1"],
        "gpu1": before["gpu0"],
        "gpu2": before["gpu2"],
        "gpu4": before["gpu3"],
    }
    a, b, c, d = (AttachPoint(name, 9) for name in ("as0", "as1", "as2", "as3"))
    await store.commit(PutAttachments(before, {a: c, b: d}, 1))
    await store.commit(PutAttachments(after, {a: d, b: c}, 2))
    with closing(sqlite3.connect(tmp_path / "state.sqlite")) as db:
        since = dict(db.execute("SELECT endpoint, epoch FROM attachments"))
        joined = list(db.execute("SELECT near_aggregator, aggregator, epoch FROM uplinks"))
    assert since == {"gpu0": 2, "gpu1": 2, "gpu2": 1, "gpu4": 2}
    assert joined == [("as0", "as3", 2), ("as1", "as2", 2)]
    await store.close()
    again = await opened_and_loaded(tmp_path)
    assert again == after


async def opened_and_loaded(path: Path) -> dict[str, AttachPoint]:
    store = Store(path / "state.sqlite")
    try:
        return dict((await store.load()).attachments)
    finally:
        await store.close()


async def test_two_endpoints_on_one_port_are_refused(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    with pytest.raises(ServiceError):
        await store.commit(
            PutAttachments({"gpu0": AttachPoint("as0", 1), "gpu1": AttachPoint("as0", 1)}, {}, 1)
        )
    await store.close()


async def test_old_transactions_are_forgotten_unless_they_are_under_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "KEPT_TRANSACTIONS", 2)
    store = await opened(tmp_path)
    await store.commit(PutTransaction(TX, INTENT))
    for n in range(2, 6):
        ended = replace(TX, id=f"t{n}", state="committed", started_at=n, finished_at=n + 1)
        await store.commit(PutTransaction(ended, INTENT))
    await store.close()
    with sqlite3.connect(tmp_path / "state.sqlite") as db:
        left = {ident for (ident,) in db.execute("SELECT id FROM transactions")}
    assert left == {"t1", "t4", "t5"}


async def test_a_damaged_file_stops_with_a_message(tmp_path: Path) -> None:
    (tmp_path / "state.sqlite").write_bytes(b"this is not a database" * 100)
    store = Store(tmp_path / "state.sqlite")
    with pytest.raises(ServiceError) as caught:
        await store.load()
    assert caught.value.hint
    await store.close()


async def test_another_schema_stops_with_a_message(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    await store.commit(PutFacts({"schema": "99"}))
    with pytest.raises(ServiceError, match="schema 99"):
        await store.load()
    await store.close()


async def test_writes_are_durable_and_journaled(tmp_path: Path) -> None:
    store = await opened(tmp_path)
    with store._engine.connect() as db:
        assert db.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert db.exec_driver_sql("PRAGMA synchronous").scalar() == 2  # FULL
    await store.close()


def test_the_schema_compiles_for_postgresql() -> None:
    for table in tables.META.sorted_tables:
        dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
        text = str(sa.schema.CreateTable(table).compile(dialect=dialect))
        assert text.strip().startswith("CREATE TABLE")
