from __future__ import annotations

import asyncio
import itertools
from pathlib import Path
from typing import BinaryIO

import pytest

from container_mgr.ranks import logs
from container_mgr.ranks.logs import Joiner, LineFilter, OutputLine, files, read
from tests.unit.container_mgr.ranks.written import ended, everything, fill, record


def test_split_lines_are_joined_by_stream() -> None:
    joiner = Joiner()
    assert joiner.feed(record("half ")) is None
    assert joiner.feed(record("other\n", "stderr")) == OutputLine(1767225600.0, "stderr", "other")
    assert joiner.feed(record("whole\n")) == OutputLine(1767225600.0, "stdout", "half whole")


def test_a_line_without_end_is_cut() -> None:
    joiner = Joiner()
    fed = [joiner.feed(record("x" * 16_384)) for _ in range(4)]
    assert [line is None for line in fed] == [True, True, True, False]


def test_broken_records_are_skipped() -> None:
    joiner = Joiner()
    for raw in (b"", b"{", b"[]\n", b'{"log": "x"}\n', b"\xff\n", b"null\n"):
        assert joiner.feed(raw) is None


async def test_rotated_files_are_read_oldest_first(tmp_path: Path) -> None:
    log = tmp_path / "x-json.log"
    log.write_bytes(record("3\n") + record("4\n"))
    (tmp_path / "x-json.log.1").write_bytes(record("2\n"))
    (tmp_path / "x-json.log.2").write_bytes(record("1\n"))
    assert [p.name[-2:] for p in files(log)] == [".2", ".1", "og"]
    assert await everything(log) == ["1", "2", "3", "4"]
    assert await everything(log, tail=3) == ["2", "3", "4"]
    assert await everything(log, tail=0) == []


def test_a_log_exists_while_the_engine_rotates_it(tmp_path: Path) -> None:
    log = tmp_path / "x-json.log"
    assert not logs.exists(log)
    log.write_bytes(record("1\n"))
    assert logs.exists(log)
    log.rename(tmp_path / "x-json.log.1")
    assert logs.exists(log)


async def test_a_missing_file_has_no_lines(tmp_path: Path) -> None:
    assert await everything(tmp_path / "none") == []


async def test_follow_sees_growth_rotation_and_the_end(tmp_path: Path) -> None:
    log = tmp_path / "x-json.log"
    log.write_bytes(record("1\n"))
    steps = iter(("grow", "half", "rotate", "end"))

    async def alive() -> bool:
        match next(steps, "dead"):
            case "grow":
                with log.open("ab") as out:
                    out.write(record("2\n"))
            case "half":
                with log.open("ab") as out:
                    out.write(record("3\n")[:10])
            case "rotate":
                with log.open("ab") as out:
                    out.write(record("3\n")[10:])
                log.rename(tmp_path / "x-json.log.1")
                log.write_bytes(record("4\n"))
            case "dead":
                return False
        return True

    seen = [line.text async for b in read(log, tail=None, follow=True, alive=alive) for line in b]
    assert seen == ["1", "2", "3", "4"]


async def test_lines_written_during_a_rotation_are_not_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The engine writes and rotates between the last read of the old file and the next check."""
    log = tmp_path / "x-json.log"
    log.write_bytes(record("1\n"))
    is_rotated = logs._is_rotated

    def rotated(handle: BinaryIO, path: Path) -> bool:
        if not (tmp_path / "x-json.log.1").exists():
            with log.open("ab") as out:
                out.write(record("2\n"))
            log.rename(tmp_path / "x-json.log.1")
            log.write_bytes(record("3\n"))
        return is_rotated(handle, path)

    monkeypatch.setattr(logs, "_is_rotated", rotated)
    seen = [line.text async for b in read(log, tail=None, follow=True, alive=ended) for line in b]
    assert seen == ["1", "2", "3"]


class ParseCount:
    """Counts the parsed records, and notes whether the event loop's own thread parsed any."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.records = 0
        self.by_the_loop = False
        parse = Joiner.feed

        def feed(joiner: Joiner, raw: bytes) -> OutputLine | None:
            self.records += 1
            self.by_the_loop |= asyncio._get_running_loop() is not None
            return parse(joiner, raw)

        monkeypatch.setattr(Joiner, "feed", feed)


async def test_a_tail_reads_the_end_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log, parsed = tmp_path / "x-json.log", ParseCount(monkeypatch)
    fill(log, records=20_000)
    assert await everything(log, tail=10) == [str(n) for n in range(59_990, 60_000)]
    assert parsed.records < 3_000
    assert not parsed.by_the_loop


@pytest.mark.parametrize("tail", [0, 1, 700, 2_000, 2_999, 3_000, 5_000])
async def test_a_tail_spans_rotated_files(tmp_path: Path, tail: int) -> None:
    log = tmp_path / "x-json.log"
    fill(log, records=1_000)
    wanted = [str(n) for n in range(max(0, 3_000 - tail), 3_000)]
    assert await everything(log, tail=tail) == wanted


async def test_a_tail_joins_lines_that_the_engine_split(tmp_path: Path) -> None:
    log = tmp_path / "x-json.log"
    long = "".join(f"{n:07d} " for n in range(5_000))  # three records a line
    pieces = [long[at : at + 16_384] for at in range(0, len(long), 16_384)]
    with log.open("wb") as out:
        for number in range(40):
            for piece in pieces:
                out.write(record(piece))
            out.write(record(f"{number}\n"))
    assert await everything(log, tail=3) == [f"{long}{n}" for n in (37, 38, 39)]


async def test_a_tail_has_a_limit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "MAX_TAIL_BYTES", 100_000)
    log = tmp_path / "x-json.log"
    fill(log, records=5_000)
    found = await everything(log, tail=10_000)
    assert found[-1] == "14999"
    assert found == [str(n) for n in range(15_000 - len(found), 15_000)]
    assert 1_000 < len(found) < 2_000


async def test_a_message_of_long_lines_is_within_the_receivers_limit(tmp_path: Path) -> None:
    log = tmp_path / "x-json.log"
    with log.open("wb") as out:
        for _ in range(512 * 4):
            out.write(record("\u20ac" * 16_384))
    batches = [b async for b in read(log, tail=None, follow=False, alive=ended)]
    sizes = [sum(len(line.text.encode()) for line in batch) for batch in batches]
    assert sum(sizes) == 512 * 4 * 16_384 * 3
    assert max(sizes) < 2 * 2**20


async def test_an_incomplete_last_line_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "x-json.log"
    log.write_bytes(record("one\n") + record("Segmentation fa"))
    assert await everything(log) == ["one", "Segmentation fa"]
    assert await everything(log, tail=1) == ["Segmentation fa"]


@pytest.mark.parametrize(
    "raw",
    [
        b'{"log": 5, "stream": "stdout", "time": "2026-01-01T00:00:00Z"}\n',
        b'{"log": "x\\n", "stream": "stdout", "time": 5}\n',
        b'{"log": "x\\n", "stream": [], "time": "2026-01-01T00:00:00Z"}\n',
        b'{"log": "x\\n", "stream": "third", "time": "2026-01-01T00:00:00Z"}\n',
        b'{"log": "' + b"x" * 300_000 + b'\\n", "stream": "stdout", "time": ""}\n',
        b"[" * 200_000 + b"\n",
    ],
    ids=["number", "time", "list", "stream", "endless", "deep"],
)
async def test_an_invalid_record_is_skipped_alone(tmp_path: Path, raw: bytes) -> None:
    log = tmp_path / "x-json.log"
    log.write_bytes(record("1\n") + raw + record("2\n"))
    assert await everything(log) == ["1", "2"]
    assert await everything(log, tail=2) == ["1", "2"]


async def test_text_with_surrogates_can_be_sent(tmp_path: Path) -> None:
    log = tmp_path / "x-json.log"
    log.write_bytes(record("a\ud800b\0\x1b[31m\n"))
    assert await everything(log) == ["a?b\0\x1b[31m"]


async def test_only_wanted_lines_are_read(tmp_path: Path) -> None:
    log = tmp_path / "x-json.log"
    lines = [record(f"step {n} [x]\n", time=f"2026-01-01T00:00:{n:02d}Z") for n in range(60)]
    (tmp_path / "x-json.log.1").write_bytes(b"".join(lines[:30]))
    log.write_bytes(b"".join(lines[30:]) + record("killed [x", time="2026-01-01T00:01:00Z"))

    async def found(wanted: LineFilter, tail: int | None = None) -> list[str]:
        batches = read(log, tail=tail, follow=False, alive=ended, matching=wanted)
        return [line.text async for batch in batches for line in batch]

    start = 1767225600.0
    assert await found(LineFilter(start + 58)) == ["step 58 [x]", "step 59 [x]", "killed [x"]
    assert await found(LineFilter(search="9 [x]")) == [
        f"step {n} [x]" for n in (9, 19, 29, 39, 49, 59)
    ]
    assert await found(LineFilter(search="9 [x]"), 2) == ["step 49 [x]", "step 59 [x]"]
    assert await found(LineFilter(start + 30, "9 [x]"), 100) == [
        f"step {n} [x]" for n in (39, 49, 59)
    ]
    assert await found(LineFilter(search="9 [x]"), 0) == []
    assert await found(LineFilter(search="[x"), 1) == ["killed [x"]
    assert await found(LineFilter(search=".*")) == []


async def test_a_long_search_answers_meanwhile(tmp_path: Path) -> None:
    log = tmp_path / "x-json.log"
    fill(log, records=20_000)
    none = LineFilter(search="no such text")
    batches = read(log, tail=5, follow=False, alive=ended, matching=none)
    sizes = [len(batch) async for batch in batches]
    assert len(sizes) > 3
    assert sum(sizes) == 0


async def test_a_follower_that_is_overtaken_is_told(tmp_path: Path) -> None:
    log = tmp_path / "x-json.log"
    log.write_bytes(record("1\n"))
    steps = iter(("storm", "end"))

    async def alive() -> bool:
        if next(steps, "dead") == "storm":
            for text in ("2", "3", "4"):  # the engine keeps two files
                log.replace(tmp_path / "x-json.log.1")
                log.write_bytes(record(f"{text}\n"))
            return True
        return False

    seen = [line.text async for b in read(log, tail=None, follow=True, alive=alive) for line in b]
    assert seen == ["1", logs.LOST, "3", "4"]


async def test_a_follower_reads_all_files_that_came_meanwhile(tmp_path: Path) -> None:
    log = tmp_path / "x-json.log"
    log.write_bytes(record("1\n"))
    steps = iter(("rotate", "end"))

    async def alive() -> bool:
        if next(steps, "dead") == "rotate":
            log.replace(tmp_path / "x-json.log.2")
            (tmp_path / "x-json.log.1").write_bytes(record("2\n"))
            log.write_bytes(record("3\n"))
            return True
        return False

    seen = [line.text async for b in read(log, tail=None, follow=True, alive=alive) for line in b]
    assert seen == ["1", "2", "3"]


async def test_a_follower_rests_longer_than_it_reads(tmp_path: Path) -> None:
    """So a storm of output costs a quarter of a core at most, for each reader."""
    log = tmp_path / "x-json.log"
    fill(log, records=20_000)
    ticks = itertools.count()
    rests: list[float] = []

    async def rest(seconds: float) -> None:
        rests.append(seconds)

    steps = 0
    async for lines in read(
        log,
        tail=None,
        follow=True,
        alive=ended,
        clock=lambda: float(next(ticks)),
        sleep=rest,
    ):
        steps += bool(lines)
    full = [seconds for seconds in rests if seconds != logs._POLL_S]
    assert steps > 100
    assert len(full) >= steps - 1
    assert set(full) == {3.0}
