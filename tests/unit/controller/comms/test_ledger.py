from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from agentlink.values import Record
from controller.comms.ledger import MOST_PAST, JobComms, advance, bucket
from controller.comms.views import view_of
from controller.devices.engine import RecordedCall, Recording, WireBursts
from tests.parts.measure.recordings import operation, recording, training
from tests.unit.controller.comms.recordings import JOB, MB, counted


def total(known: JobComms) -> int:
    return sum(sums.calls for sums in known.buckets.values())


def test_a_rank_counts_on_and_a_restart_begins_anew() -> None:
    first = advance(None, [counted(3), counted(4, 1)], 1, 2, 10.0)
    later = advance(first, [counted(5)], 1, 2, 20.0)
    assert total(first) == 7
    assert total(later) == 9
    again = advance(later, [replace(counted(2), epoch=2)], 2, 2, 30.0)
    assert set(again.ranks) == {0}
    assert again.ranks[0].sums != later.ranks[0].sums
    assert total(again) == 11  # what is shown to Prometheus only grows


def test_a_damaged_file_takes_nothing_back() -> None:
    first = advance(None, [counted(3)], 1, 2, 10.0)
    damaged = replace(counted(0), state="damaged", reason="lies", operations=(), calls=())
    later = advance(first, [damaged], 1, 2, 20.0)
    assert total(later) == 3
    assert later.ranks[0].recording.state == "damaged"


def test_the_last_minutes_are_told_from_the_whole() -> None:
    known = None
    for minute in range(10):
        one = counted(minute + 1, time=60.0 * minute)
        known = advance(known, [one], 1, 2, 60.0 * minute)
    assert known is not None
    sums, since = known.ranks[0].since(60.0 * 6.5)
    assert since == 360.0
    assert [s.calls for s in sums.values()] == [3]
    everything, start = known.ranks[0].since(-1.0)
    assert start is None
    assert [s.calls for s in everything.values()] == [10]


def test_an_hour_is_kept() -> None:
    known = None
    for minute in range(MOST_PAST + 20):
        one = counted(minute + 1, time=60.0 * minute)
        known = advance(known, [one], 1, 2, 60.0 * minute)
    assert known is not None
    assert len(known.ranks[0].past) == MOST_PAST
    _, since = known.ranks[0].since(0.0)
    assert since == known.ranks[0].past[0].time


@given(st.integers(1, 2**50))
def test_a_bucket_is_the_next_power_of_four(size: int) -> None:
    limit = bucket(size)
    assert size <= limit < 4 * size
    assert limit.bit_length() % 2 == 1
    assert bucket(0) == 0


def test_a_view_of_a_job() -> None:
    known = advance(
        None,
        [training(20, 1.0, [(MB, 1.0, 0.1)], rank=r, offset_s=100.0 * r) for r in range(2)],
        1, 2, 50.0,
    )  # fmt: skip
    view = view_of(JOB, known, None, None, 50.0)
    (row,) = view.rows
    assert (row.calls, row.rank, row.op) == (40, None, "all_reduce")
    assert row.share == pytest.approx(0.1 / 1.1, rel=0.01)
    assert row.skew_s == pytest.approx(0.0, abs=1e-9)
    assert row.busbw == pytest.approx(MB / 0.1)
    assert view.overlap is not None
    assert view.overlap.step_s == pytest.approx(1.1)
    assert (view.overlap.rank, view.overlap.definition) == (None, "timeline")
    assert [r.recorder for r in view.ranks] == ["recording", "recording"]
    assert [r.rank for r in view.rank_rows] == [0, 1]
    assert "HTA" in view.notes[0]
    one = view_of(JOB, known, 1, None, 50.0)
    assert [(r.rank, r.calls) for r in one.rows] == [(1, 20)]
    assert one.overlap is not None
    assert one.overlap.rank == 1


def test_what_is_not_known_is_said() -> None:
    view = view_of(JOB, None, None, None, 5.0)
    assert (view.rows, view.overlap, view.updated_at) == ([], None, None)
    assert [r.recorder for r in view.ranks] == ["unknown", "unknown"]
    ended = view_of(replace(JOB, state="completed"), None, None, None, 5.0)
    assert "ended" in ended.ranks[0].reason
    off = replace(JOB, request=replace(JOB.request, record=Record.OFF))
    assert [r.recorder for r in view_of(off, None, None, None, 5.0).ranks] == ["off", "off"]
    waiting = view_of(replace(JOB, endpoints=(), state="pending"), None, None, None, 5.0)
    assert waiting.ranks[0].reason == "the job has not started"


def test_bursts_are_shown_where_nothing_else_is_known() -> None:
    wire = WireBursts(
        time=1.0, window_s=5.0, bursts=9, period_s=0.5, burst_s=0.2, sent_bytes=1e6, spread=0.02
    )
    silent = replace(recording([], wire=wire), state="absent", reason="no recorder has written")
    view = view_of(JOB, advance(None, [silent], 1, 2, 5.0), None, None, 5.0)
    (row,) = view.rows
    assert (row.source, row.exact, row.share) == ("wire", False, 0.4)
    assert view.overlap is not None
    assert (view.overlap.definition, view.overlap.source) == ("wire", "wire")
    assert view.ranks[0].source == "wire"


def test_waiting_for_input_is_no_collective() -> None:
    rows = (operation("input_wait", 0, [0.5]), operation("step", 0, [1.0]))
    view = view_of(JOB, advance(None, [recording([], rows=rows)], 1, 2, 5.0), None, None, 5.0)
    assert view.rows == []
    assert view.rank_rows == []


WAITING = (operation("input_wait", 0, [9.0]), operation("step", 0, [99.0]))


def test_waiting_for_input_is_in_no_sum_share_or_source() -> None:
    plain = [training(20, 1.0, [(MB, 1.0, 0.1)], rank=r, offset_s=100.0 * r) for r in range(2)]
    fed = [replace(one, operations=(*one.operations, *WAITING)) for one in plain]
    bare, with_input = (advance(None, ranks, 1, 2, 50.0) for ranks in (plain, fed))
    assert with_input.buckets == bare.buckets
    assert with_input.skews == bare.skews
    for rank in (None, 1):
        shown, other = (view_of(JOB, known, rank, None, 50.0) for known in (with_input, bare))
        assert (shown.rows, shown.rank_rows) == (other.rows, other.rank_rows)
    assert with_input.facts is not None
    assert with_input.facts.wait_s == 9.0


def test_a_rank_that_only_loads_is_seen_on_the_wire() -> None:
    wire = WireBursts(
        time=1.0, window_s=5.0, bursts=9, period_s=0.5, burst_s=0.2, sent_bytes=1e6, spread=0.02
    )
    silent = recording([], rows=WAITING, wire=wire)
    view = view_of(JOB, advance(None, [silent], 1, 2, 5.0), None, None, 5.0)
    assert view.ranks[0].source == "wire"
    assert "only bursts on the wire" in " ".join(view.notes)


def test_calls_of_a_loader_have_no_skew() -> None:
    calls = tuple(RecordedCall(0, n, 1.0 * n, n + 0.5, 7) for n in range(9))
    fed = [replace(recording([], rank=rank, rows=WAITING[:1]), calls=calls) for rank in range(2)]
    assert advance(None, fed, 1, 2, 5.0).skews == {}


def twice(rank: int) -> Recording:
    """What both recorders have of the same calls; PyTorch knows when they were issued."""
    one = training(20, 1.0, [(MB, 1.0, 0.1)], rank=rank)
    torch = operation(size=MB, durations=[1e-5] * 20, source="torch", timing="issue")
    (ours,) = one.operations
    nccl = replace(ours, source="nccl", timing="device")
    issued = tuple(replace(call, ended_s=None, communicator=3) for call in one.calls)
    theirs = tuple(replace(call, operation=2) for call in one.calls)
    calls = sorted((*issued, *theirs), key=lambda call: (call.issued_s, call.operation))
    rows = (torch, *WAITING[1:], nccl)
    return replace(one, operations=rows, calls=tuple(calls))


def test_a_call_that_two_recorders_saw_counts_once() -> None:
    known = advance(None, [twice(rank) for rank in range(2)], 1, 2, 50.0)
    assert total(known) == 40
    view = view_of(JOB, known, None, None, 50.0)
    assert [(row.source, row.timing, row.calls) for row in view.rows] == [("nccl", "device", 40)]
    assert view.ranks[0].source == "nccl"
    assert view.overlap is not None
    assert (view.overlap.calls_per_step, view.overlap.step_s) == (1.0, pytest.approx(1.1))
    assert not any("issue" in note for note in view.notes)


def test_gloo_beside_nccl_and_a_silent_plug_in_stay() -> None:
    gloo = operation("broadcast", 8, [0.1], source="torch", timing="host")
    torch = operation(size=MB, durations=[1e-5], source="torch", timing="issue")
    nccl = operation(size=MB, durations=[0.1], source="nccl", timing="device")
    both = advance(None, [recording([], rows=(gloo, torch, nccl))], 1, 2, 5.0)
    assert {row.source for row in view_of(JOB, both, None, None, 5.0).rows} == {"torch", "nccl"}
    silent = replace(nccl, calls=0, total_s=0.0)
    alone = advance(None, [recording([], rows=(torch, silent))], 1, 2, 5.0)
    assert [row.source for row in view_of(JOB, alone, None, None, 5.0).rows] == ["torch"]
