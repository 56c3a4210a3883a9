"""Records of runs: kept within limits, and read back as they were written."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from functools import reduce
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from checkpoints.ledger import Key, Ledger, LedgerRun, Wrote, dropped, fold
from checkpoints.schemes import Layout
from checkpoints.values import Apart, Scheme
from controller.checkpoints import runs
from controller.state.kept.checkpoints import (
    CHECKPOINTS,
    KEPT_RUNS,
    CheckpointRecord,
    CheckpointRun,
    SpoiledStep,
)
from controller.state.writes import DropRecords, PutRecords
from controller.store.store import Store


def run(epoch: int, resumed: Key | None = None, ranks: int = 1) -> CheckpointRun:
    return CheckpointRun(
        epoch=epoch,
        run=LedgerRun(ranks, Layout(), resumed),
        endpoints=tuple(f"gpu{n}" for n in range(ranks)),
        began_at=float(epoch),
    )


def test_a_job_that_starts_for_ever_keeps_its_last_checkpoint() -> None:
    key = Key(10, 1)
    record = CheckpointRecord(folder="red.1", job="red", key=b"k" * 32, runs=(run(1),))
    ledger = reduce(fold, [*runs.reports(record), Wrote(key, 0, "gpu0", "d", 1)], Ledger())
    for epoch in range(2, 2 * KEPT_RUNS):
        record = runs.added(record, run(epoch, key), ledger)
    assert len(record.runs) == KEPT_RUNS
    assert record.runs[0].epoch == 1 and record.runs[-1].epoch == 2 * KEPT_RUNS - 1


def test_large_jobs_keep_fewer_runs() -> None:
    many = [run(epoch, ranks=4096) for epoch in range(1, 60)]
    assert next(iter(runs.trimmed(many, {3}))).epoch == 3
    assert len(runs.trimmed(many, set())) == runs.MOST_PLACES // 4096


@given(st.lists(st.integers(0, 30), min_size=12, max_size=40), st.integers(1, 5))
def test_what_was_given_up_stays_given_up(steps: list[int], old: int) -> None:
    """Without the runs that go, no step that a later run gave up becomes usable."""
    known = tuple(run(n + 1, Key(step, 0) if step else None) for n, step in enumerate(steps))
    big = [replace(one, endpoints=("x",) * (runs.MOST_PLACES // 8)) for one in known]
    left = {one.epoch for one in runs.trimmed(big, {old})}
    assert len(left) <= max(runs.LEAST_RUNS, 1)
    record = CheckpointRecord(folder="f", job="j", key=b"", runs=known)
    fewer = replace(record, runs=tuple(one for one in known if one.epoch in left))
    whole = reduce(fold, runs.reports(record), Ledger())
    part = reduce(fold, runs.reports(fewer), Ledger())
    for step in range(32):
        if dropped(whole, Key(step, old)):
            assert dropped(part, Key(step, old))


async def test_a_record_is_read_back_as_it_was_written(tmp_path: Path) -> None:
    layout = Layout(Scheme.XOR, Apart.AGGREGATOR, (), ((0, 2), (1, 3)))
    whole = CheckpointRun(
        epoch=7,
        run=LedgerRun(4, layout, Key(2**62, 3), identical=True),
        endpoints=("a", "b", "c", "d"),
        began_at=1.5,
        stepped=True,
        end="unfit",
    )
    record = CheckpointRecord(
        folder="red.00ff",
        job="red",
        key=bytes(range(32)),
        runs=(run(1), whole),
        spoiled=(SpoiledStep(5, 1, "it kills"),),
        servers=frozenset({"srv0", "srv1"}),
        remove_after=12.5,
    )
    other = CheckpointRecord(folder="blue.1", job="blue", key=b"x")
    store = Store(tmp_path / "state.sqlite")
    await store.load()
    await store.commit(PutRecords(CHECKPOINTS, [replace(record, runs=()), other]))
    await store.commit(PutRecords(CHECKPOINTS, [record]), DropRecords(CHECKPOINTS, ["blue.1"]))
    await store.close()
    store = Store(tmp_path / "state.sqlite")
    assert (await store.load()).records["checkpoints"] == (record,)
    await store.close()
    assert "0x" not in repr(record) and bytes(range(32)).hex() not in repr(record)


async def test_a_store_from_before_checkpoints_opens(tmp_path: Path) -> None:
    store = Store(tmp_path / "state.sqlite")
    await store.load()
    await store.close()
    with sqlite3.connect(tmp_path / "state.sqlite") as db:
        db.execute("DROP TABLE checkpoints")
    store = Store(tmp_path / "state.sqlite")
    assert (await store.load()).records["checkpoints"] == ()
    await store.commit(PutRecords(CHECKPOINTS, [CheckpointRecord(folder="f", job="j", key=b"k")]))
    await store.close()
