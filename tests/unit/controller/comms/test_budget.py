"""What ranks write takes no more of the controller's memory than their project and user may."""

from __future__ import annotations

import gc
import sys
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st

from agentlink.values import Record
from controller.comms import budget
from controller.comms.ledger import JobComms, advance
from controller.devices.agents.messages import recordings_of
from controller.state.records import JobRecord, JobSpec
from protos import agent_pb2 as pb
from tests.parts.controller.comms import running, view
from tests.parts.controller.rack import Rack
from tests.parts.measure.hostile import CALLS, ROWS, full_recording

MIB = 2**20
RANKS = 10


@pytest_asyncio.fixture
async def rack(tmp_path: Path) -> AsyncIterator[Rack]:
    one = Rack(tmp_path)
    await one.up()
    yield one
    await one.down()


def job(name: str, ranks: int, **fields: object) -> JobRecord:
    spec = JobSpec(count=ranks, record=Record.COUNTS, project=str(fields.pop("project", "default")))
    ends = tuple(f"{name}-{rank}" for rank in range(ranks))
    made = JobRecord(name, spec, "image:1", 1.0, "running", endpoints=ends, epoch=1)
    return replace(made, **fields)  # type: ignore[arg-type]


def answered(rack: Rack, name: str) -> dict[str, pb.RecordingsReply]:
    """Return what agents answer of a job whose ranks fill their recorders' files."""
    found: dict[str, pb.RecordingsReply] = {}
    for spec in rack.engine.specs[name]:
        reply = found.setdefault(spec.server, pb.RecordingsReply())
        reply.recordings.append(full_recording(name, spec.key.rank, spec.key.epoch))
    return found


def words(message: pb.Recording) -> list[str]:
    """Return a recording's words, interned and held.

    The interpreter's table of interned words doubles when it is full, by megabytes in a process
    with many modules. Words that it has already do not make it grow while a test counts memory.
    """
    rows = message.operations
    return [sys.intern(word) for row in rows for word in (row.op, row.dtype, row.tag)]


async def test_full_recorders_of_one_job_stay_within_the_budget(rack: Rack) -> None:
    """A rank's file has 1,023 rows of 96 bins: 13 MiB as numbers."""
    await running(rack)
    answers = answered(rack, "red")
    held = words(full_recording("red", 0, 1))
    await view(rack)
    gc.collect()
    tracemalloc.start()
    try:
        rack.engine.answers = answers
        await rack.parts.comms.read()
        rack.engine.answers = {}
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(held) == 3 * ROWS
    assert grown < 8 * MIB
    shown = await view(rack, rank=1)
    assert len(shown.rows) == 1000
    assert {rank.recorder for rank in shown.ranks} == {"recording"}


def test_many_ranks_share_the_budget_of_their_job() -> None:
    mine = job("red", RANKS)
    share = budget.shares([mine], 0.0)["red"]
    limits = {"red": budget.limit_of(RANKS, share)}
    turns = [full_recording("red", 0, 1, turn) for turn in (1, 2)]
    held = words(turns[0])
    known: JobComms | None = None
    tracemalloc.start()
    try:
        for turn, message in enumerate(turns):
            read = []
            for rank in range(RANKS):
                message.rank = rank
                read += recordings_of("srv0", pb.RecordingsReply(recordings=[message]), 1e9, limits)
            now, past = 60.0 * turn, share // RANKS // 4
            known = advance(known, read, 1, RANKS, now, past_bytes=past)
            del read
        gc.collect()
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert known is not None
    assert len(held) == 3 * ROWS
    assert grown < 1.25 * budget.RUNNING_BYTES
    assert all(16 <= len(one.sums) < ROWS for one in known.ranks.values())
    assert "rows have room" in known.ranks[0].recording.reason
    longest = min(sums.total_s for sums in known.ranks[0].sums.values())
    assert longest > 2e4 + ROWS / 3, "those that took the longest are kept"
    assert len(known.ranks[0].recording.calls) == CALLS


async def test_an_ended_job_keeps_its_record_alone(rack: Rack) -> None:
    names = [f"red{number}" for number in range(4)]
    for name in names:
        await running(rack, name)
        rack.engine.answers = answered(rack, name)
        await rack.parts.comms.read()
        for rank in range(2):
            rack.engine.exit(name, rank, 0)
        await rack.state(name, "completed")
        await rack.parts.comms.read()
        rack.engine.answers = {}
    gc.collect()
    kept = sum(len(one.body) for one in rack.see.comms.values())
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for name in names:
            assert (await view(rack, name)).rows
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept <= len(names) * 256 * 1024
    assert after - before < MIB


@given(
    st.lists(
        st.tuples(st.integers(1, 64), st.sampled_from("abc"), st.sampled_from(["ann", "bob"])),
        max_size=40,
    )
)
def test_no_project_and_no_user_has_more_than_the_budget(asked: list[tuple[int, str, str]]) -> None:
    jobs = [
        job(f"j{number}", ranks, project=project, user=user)
        for number, (ranks, project, user) in enumerate(asked)
    ]
    shares = budget.shares(jobs, 0.0)
    of: Counter[str] = Counter()
    for one in jobs:
        of[one.request.project] += shares[one.name]
        of[one.user] += shares[one.name]
    assert all(total <= budget.RUNNING_BYTES for total in of.values())


def test_a_job_alone_is_read_whole() -> None:
    share = budget.shares([job("red", 4)], 0.0)["red"]
    limit = budget.limit_of(4, share)
    assert limit.rows >= 1023
    assert limit.calls == {0, 1, 2, 3}


def test_only_the_newest_ended_jobs_are_read() -> None:
    jobs = [
        job(f"j{number}", 64, state="completed", finished_at=float(number)) for number in range(9)
    ]
    assert set(budget.shares(jobs, 10.0)) == {"j5", "j6", "j7", "j8"}
    assert budget.shares(jobs, 8.0 + budget.ENDED_S + 1) == {}
    off = replace(jobs[0].request, record=Record.OFF)
    assert budget.shares([job("dark", 2, request=off)], 0.0) == {}


def test_the_past_is_told_more_coarsely_where_room_is_short() -> None:
    known: JobComms | None = None
    limits = {"red": budget.limit_of(512, 0)}
    message = full_recording("red", 0, 1)
    for minute in range(60):
        read = recordings_of("srv0", pb.RecordingsReply(recordings=[message]), 1e9, limits)
        known = advance(known, read, 1, 1, 60.0 * minute, past_bytes=200_000)
    assert known is not None
    past = known.ranks[0].past
    assert 4 < len(past) < 20
    assert known.ranks[0].cut
