"""The recorder's file: what the writer wrote is read, and no byte of it is trusted."""

from __future__ import annotations

import dataclasses
import math
import os
import struct
import threading
from pathlib import Path
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from controller.devices.engine import RecordedCall, RecordedOperation
from recorder import layout
from recorder.layout import FILE_NAME, SIZE, Call, Contents, DamagedError, OperationSums, read
from recorder.python import lightloom_writer as written
from recorder.python.lightloom_writer import BINS, CALLS, ROWS, Writer, bin_of


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "torch-7.rec"


def record(writer: Writer, size: int, sequence: int, issued: float, ended: float | None) -> None:
    row = writer.row("all_reduce", size, "float", "host")
    writer.end(writer.issue(row, 3, sequence, issued), row, issued, ended)


def sample(path: Path) -> bytes:
    writer = Writer(str(path), "torch", "torch 1.13")
    for sequence in range(40):
        record(writer, 4 << sequence % 5, sequence, 10.0 + sequence, 10.5 + sequence)
    return path.read_bytes()


def test_what_is_written_is_read(path: Path) -> None:
    writer = Writer(str(path), "torch", "torch 1.13.0")
    record(writer, 4096, 0, 5.0, 5.25)
    record(writer, 4096, 1, 6.0, 6.75)
    record(writer, 8, 2, 7.0, None)
    contents = read(path.read_bytes())
    large, small = contents.operations
    assert (large.op, large.bytes, large.dtype, large.calls) == ("all_reduce", 4096, "float", 2)
    assert (large.total_s, large.min_s, large.max_s) == (1.0, 0.25, 0.75)
    assert (large.source, large.timing, large.exact) == ("torch", "host", True)
    assert {i: n for i, n in enumerate(large.histogram) if n} == {bin_of(0.25): 1, bin_of(0.75): 1}
    assert (small.calls, small.total_s, sum(small.histogram)) == (1, 0.0, 0)
    assert contents.calls == (
        Call(0, 0, 5.0, 5.25, 3),
        Call(0, 1, 6.0, 6.75, 3),
        Call(1, 2, 7.0, None, 3),
    )
    assert (contents.pid, contents.note) == (os.getpid(), "torch 1.13.0")
    assert (contents.damaged_rows, contents.torn_rows, contents.lost) == (0, 0, 0)


def test_what_exceeds_the_table_is_other(path: Path) -> None:
    writer = Writer(str(path), "torch")
    for size in range(1, ROWS + 5):
        record(writer, size, size, 1.0, 2.0)
    contents = read(path.read_bytes())
    assert len(contents.operations) == ROWS
    other = contents.operations[0]
    assert (other.op, other.bytes, other.dtype, other.calls) == ("other", 0, "", 5)
    assert sum(o.calls for o in contents.operations) == ROWS + 4


def test_the_ring_keeps_the_latest_calls(path: Path) -> None:
    writer = Writer(str(path), "torch")
    for sequence in range(CALLS + 100):
        record(writer, 8, sequence, 1.0 + sequence, 1.5 + sequence)
    data = path.read_bytes()
    assert [c.sequence for c in read(data, 5).calls] == list(range(CALLS + 95, CALLS + 100))
    assert len(read(data, 10**9).calls) == CALLS
    late = writer.issue(writer.row("barrier", 0, "", "host"), 3, 0, 1.0)
    for sequence in range(CALLS):
        record(writer, 8, sequence, 1.0, 1.5)
    writer.end(late, writer.row("barrier", 0, "", "host"), 1.0, 9.0)
    barrier = next(o for o in read(path.read_bytes()).operations if o.op == "barrier")
    assert barrier.total_s == 8.0
    assert all(call.ended_s == 1.5 for call in read(path.read_bytes()).calls)


def test_sampled_calls_are_counted_and_estimated(path: Path) -> None:
    writer = Writer(str(path), "torch")
    record(writer, 8, 0, 1.0, 1.5)
    row = writer.row("all_reduce", 8, "float", "host")
    writer.count(row)
    writer.count(row, 2)
    (operation,) = read(path.read_bytes()).operations
    assert (operation.calls, operation.total_s, operation.exact) == (4, 2.0, False)


def test_waits_are_no_calls_between_ranks(path: Path) -> None:
    writer = Writer(str(path), "torch")
    writer.wait(writer.row("input_wait", 0, "", "host"), 0.5)
    contents = read(path.read_bytes())
    assert [(o.op, o.calls, o.total_s) for o in contents.operations] == [("input_wait", 1, 0.5)]
    assert contents.calls == ()


def test_a_forked_child_does_not_write(path: Path) -> None:
    writer = Writer(str(path), "torch")
    record(writer, 8, 0, 1.0, 1.5)
    child = os.fork()
    if not child:
        record(writer, 16, 0, 1.0, 1.5)
        os._exit(0 if not writer.open else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    record(writer, 8, 1, 1.0, 1.5)
    assert [(o.bytes, o.calls) for o in read(path.read_bytes()).operations] == [(8, 2)]


def test_threads_lose_nothing(path: Path) -> None:
    writer = Writer(str(path), "torch")

    def work(k: int) -> None:
        for sequence in range(500):
            record(writer, k % 2 + 1, sequence, 1.0, 1.5)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    contents = read(path.read_bytes())
    assert [(o.calls, o.total_s) for o in contents.operations] == [(1000, 500.0), (1000, 500.0)]


def test_a_dead_process_file_is_replaced_and_a_link_is_not_followed(path: Path) -> None:
    path.write_bytes(b"old")
    record(Writer(str(path), "torch"), 8, 0, 1.0, 1.5)
    assert read(path.read_bytes()).operations[0].calls == 1
    target = path.with_name("target")
    target.write_bytes(b"kept")
    path.unlink()
    path.symlink_to(target)
    Writer(str(path), "torch")
    assert target.read_bytes() == b"kept"
    assert not path.is_symlink()


def test_without_memory_for_more_rows_they_are_other(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(str(path), "torch")

    def full(_file: int, _at: int, _size: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    for size in range(1, 101):
        record(writer, size, size, 1.0, 2.0)
    contents = read(path.read_bytes())
    assert contents.operations[0].op == "other"
    assert sum(o.calls for o in contents.operations) == 100
    with pytest.raises(OSError, match="No space left"):
        Writer(str(path.with_name("torch-8.rec")), "torch")
    assert not path.with_name("torch-8.rec").exists()


def test_another_file_in_its_place_is_not_touched(path: Path) -> None:
    writer = Writer(str(path), "torch")
    path.unlink()
    path.write_bytes(b"another's")
    for size in range(1, 101):
        record(writer, size, size, 1.0, 2.0)
    assert path.read_bytes() == b"another's"


@pytest.mark.parametrize("quarter", range(4, 90))
def test_bins_are_quarters_of_powers_of_two(quarter: int) -> None:
    limit = 2 ** (quarter / 4) * 1e-6
    assert bin_of(limit * (1 + 1e-9)) == quarter
    assert bin_of(limit * (1 - 1e-9)) == quarter - 1


def test_durations_beyond_the_bins() -> None:
    assert [bin_of(d) for d in (0.0, 1e-12, 1e-6, 100.0, 1e9)] == [0, 0, 0, BINS - 1, BINS - 1]


@pytest.mark.parametrize(
    ("name", "ours"),
    [
        ("torch-1.rec", True),
        ("nccl-4194304.rec", True),
        ("torch-01.rec", False),
        ("torch-1.rec.part", False),
        ("torch-١.rec", False),
        ("../torch-1.rec", False),
    ],
)
def test_names_of_files(name: str, ours: bool) -> None:
    assert bool(FILE_NAME.fullmatch(name)) is ours


def test_the_engine_has_the_same_words() -> None:
    def names(kind: type) -> set[str]:
        return {field.name for field in dataclasses.fields(kind)}

    assert names(OperationSums) == names(RecordedOperation)
    assert names(Call) == names(RecordedCall)
    assert get_args(layout.Timing) == written.TIMINGS
    assert get_args(layout.Source) == written.SOURCES


def plausible(contents: Contents) -> bool:
    times = [x for o in contents.operations for x in (o.total_s, o.min_s, o.max_s)] + [
        x for c in contents.calls for x in (c.issued_s, c.ended_s or 0.0)
    ]
    return (
        all(math.isfinite(x) and x >= 0 for x in times)
        and len(contents.operations) <= ROWS
        and len(contents.calls) <= CALLS
        and all(0 <= c.operation < len(contents.operations) for c in contents.calls)
        and all(c.ended_s is None or c.ended_s >= c.issued_s for c in contents.calls)
        and all(
            o.op in written.OPERATIONS and o.dtype in written.TYPES for o in contents.operations
        )
        and all(o.bytes <= 1 << 50 and o.calls <= 1 << 53 for o in contents.operations)
        and all(len(o.histogram) == BINS for o in contents.operations)
        and contents.note.isprintable()
        and contents.damaged_rows <= ROWS
    )


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    return sample(tmp_path_factory.mktemp("recorder") / "torch-9.rec")


@given(data=st.binary(max_size=200))
def test_any_bytes_are_damaged(data: bytes) -> None:
    with pytest.raises(DamagedError):
        read(data)
    with pytest.raises(DamagedError):
        read((data * (SIZE // max(len(data), 1) + 1))[:SIZE].ljust(SIZE, b"\0"))


@given(data=st.data())
def test_a_mutated_file_stays_within_bounds(whole: bytes, data: st.DataObject) -> None:
    mutated = bytearray(whole)
    at = st.one_of(
        st.integers(0, written.HEADER.size + 200),
        st.integers(written.CALLS_AT, written.CALLS_AT + 48 * 45),
        st.integers(written.ROWS_AT, written.ROWS_AT + 512 * 8),
    )
    word = st.one_of(
        st.integers(0, 2**64 - 1).map(struct.Struct("<Q").pack),
        st.floats().map(struct.Struct("<d").pack),
        st.binary(min_size=1, max_size=8),
    )
    for where, what in data.draw(st.lists(st.tuples(at, word), min_size=1, max_size=8)):
        mutated[where : where + len(what)] = what
    try:
        contents = read(bytes(mutated))
    except DamagedError:
        return
    assert plausible(contents)


@given(data=st.binary(min_size=512, max_size=512), rows=st.integers(1, ROWS))
def test_rows_of_garbage_are_dropped_and_counted(whole: bytes, data: bytes, rows: int) -> None:
    mutated = bytearray(whole)
    mutated[32:40] = rows.to_bytes(8, "little")
    mutated[written.ROWS_AT + 512 : written.ROWS_AT + 1024] = data
    contents = read(bytes(mutated))
    assert plausible(contents)
    assert contents.damaged_rows >= (rows > 1) + max(rows - 6, 0)


def test_a_torn_row_is_kept_with_sums_one_call_apart(whole: bytes) -> None:
    mutated = bytearray(whole)
    begin = written.ROWS_AT + 512
    mutated[begin : begin + 8] = (9).to_bytes(8, "little")  # begun, not ended
    mutated[begin + 40 : begin + 48] = (9).to_bytes(8, "little")  # timed, total not added yet
    mutated[begin + 32 : begin + 40] = (9).to_bytes(8, "little")
    contents = read(bytes(mutated))
    assert (contents.torn_rows, contents.damaged_rows) == (1, 0)
    assert contents.operations[0].calls == 9
