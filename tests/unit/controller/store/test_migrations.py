"""A database written by an older version opens without loss."""

from __future__ import annotations

import json
import shutil
import sqlite3
from contextlib import closing
from dataclasses import fields
from pathlib import Path

import pytest

from controller.base.errors import ServiceError
from controller.devices.aggregators import AttachPoint
from controller.devices.engine import Pull
from controller.jobs.admission import spec_of
from controller.schema.plans import TransactionView
from controller.schema.submit.request import JobRequest
from controller.state.records import JobSpec, MoveRecord, TransactionRecord
from controller.state.writes import PutAttachments, PutTransaction
from controller.store.store import SCHEMA_VERSION, Store
from controller.transaction.circuits import EndpointEnd
from scheduler.model import Locality, Policy, RankOrder
from tests.unit.controller.store.schemas import SCHEMA_1, SCHEMA_2


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return Path(shutil.copy(SCHEMA_1, tmp_path / "state.sqlite"))


async def test_a_store_of_schema_1_is_read_completely(old: Path) -> None:
    store = Store(old)
    loaded = await store.load()
    jobs = {job.name: job for job in loaded.jobs}
    assert {name: job.state for name, job in jobs.items()} == {
        "red": "running",
        "blue": "running",
        "waits": "pending",
        "gone": "cancelled",
    }
    red, waits = jobs["red"], jobs["waits"]
    assert red.request == JobSpec(
        name="red",
        count=2,
        endpoints=("gpu0", "gpu2"),
        command=("python", "train.py", "é"),
        env={"NCCL_DEBUG": "INFO"},
        priority=3,
        restart="on-failure:2",
        pull=Pull.NEVER,
        dark_tolerance_s=120.0,
        checkpoint_grace_s=20.0,
        cpu=1.5,
        memory_bytes=2**30,
        io_bps=10**6,
        time_limit_s=3600.0,
        preemptible=True,
    )
    assert (red.endpoints, red.pauses.keys()) == (("gpu0", "gpu2"), {"t2"})
    assert (waits.request.pinned, waits.request.rank_order) == (True, RankOrder.PLACED)
    blue = jobs["blue"].request
    assert (blue.policy, blue.locality) == (Policy.LIVE, Locality.ANY)
    log = {record.id: (record, intent) for record, intent in loaded.transactions}
    regroup, intent = log["t2"]
    assert (regroup.state, regroup.cause, regroup.jobs) == ("committed", "regroup", ("blue", "red"))
    assert regroup.moves == (MoveRecord("gpu1", "as0", "as1"), MoveRecord("gpu2", "as1", "as0"))
    assert [p.name for p in regroup.phases][:2] == ["admit", "quiesce"]
    assert regroup.dark_time_s.keys() == {"gpu1", "gpu2"}
    assert isinstance(intent.after[EndpointEnd("gpu1")], AttachPoint)
    assert log["t99"][0].finished_at is None
    assert [entry.object for entry in loaded.records["quarantine"]] == ["as0/4"]
    assert loaded.records["notices"] == ()  # its table did not exist
    assert any(event.reason == "RegroupCommitted" for event in loaded.events)
    answer = await store.answer("id1")
    assert answer is not None and answer.status == 201
    await store.close()


async def test_it_is_migrated_once_and_then_used_as_it_is(old: Path) -> None:
    for _ in range(2):
        store = Store(old)
        loaded = await store.load()
        record, intent = loaded.transactions[-1]
        await store.commit(PutTransaction(record, intent))
        await store.close()
    with sqlite3.connect(old) as db:
        facts = dict(db.execute("SELECT key, value FROM facts"))
        bodies = [json.loads(body) for (body,) in db.execute("SELECT body FROM transactions")]
    assert facts["schema"] == str(SCHEMA_VERSION)
    names = {field.name for field in fields(TransactionRecord)}
    assert all(body.keys() <= names for body in bodies)


@pytest.fixture
def before_uplinks(tmp_path: Path) -> Path:
    path = tmp_path / "state.sqlite"
    with closing(sqlite3.connect(path)) as db:
        db.executescript(SCHEMA_2.read_text(encoding="utf-8"))
    return path


async def test_a_store_from_before_uplinks_is_read_and_goes_on(before_uplinks: Path) -> None:
    """The release before goes on with it, too: it names no fiber when it attaches an endpoint."""
    store = Store(before_uplinks)
    loaded = await store.load()
    lit = dict(loaded.attachments)
    assert (len(lit), lit["gpu2"], loaded.uplinks) == (6, AttachPoint("as1", 1), {})
    record, intent = loaded.transactions[-1]
    assert (record.id, record.finished_at) == ("t2", None)
    gpu2 = EndpointEnd("gpu2")
    assert (intent.before[gpu2], intent.after[gpu2]) == (lit["gpu2"], AttachPoint("as0", 3))
    uplinks = {AttachPoint("as0", 4): AttachPoint("as1", 4)}
    await store.commit(PutAttachments(lit, uplinks, 4), PutTransaction(record, intent))
    await store.close()
    with closing(sqlite3.connect(before_uplinks)) as db, db:
        written = dict(db.execute("SELECT id, intent FROM transactions"))
        assert f"{written['t2']}" in SCHEMA_2.read_text(encoding="utf-8"), (
            "the document is the same"
        )
        db.execute(
            "INSERT INTO attachments (endpoint, aggregator, port, epoch) VALUES ('x','a',1,5)"
        )
        fibers = list(db.execute("SELECT DISTINCT fiber FROM attachments"))
    assert fibers == [(0,)]
    again = Store(before_uplinks)
    loaded = await again.load()
    await again.close()
    assert loaded.attachments == {**lit, "x": AttachPoint("a", 1)}
    assert (loaded.uplinks, loaded.placed_at) == (uplinks, 5)


async def test_a_migration_of_a_damaged_row_changes_nothing(old: Path) -> None:
    with sqlite3.connect(old) as db:
        db.execute("UPDATE transactions SET body = '{\"moves\": 3}' WHERE id = 't2'")
    before = dump(old)
    store = Store(old)
    with pytest.raises(ServiceError, match="damaged"):
        await store.load()
    await store.close()
    assert dump(old) == before


def dump(path: Path) -> list[tuple[str, str]]:
    with sqlite3.connect(path) as db:
        return list(db.execute("SELECT id, body FROM transactions ORDER BY id"))


def test_the_state_keeps_every_field_of_a_request_and_shows_it() -> None:
    request = JobRequest(count=3, restart="on-failure:7", endpoints=["a", "b", "c"])
    assert spec_of(request).restart == "on-failure:7"
    assert {f.name for f in fields(TransactionRecord)} <= set(TransactionView.model_fields)
