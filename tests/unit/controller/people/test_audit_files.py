"""The files of the trail: full ones are put aside, the oldest go, and the chain holds over them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from controller.people.audit_files import BASE, FILE, HEAD, Trail, TrailCheck, verify
from controller.people.audit_record import START, AuditRecord, record_hash
from controller.people.refusals import KINDS, SEVERAL, WINDOW_S, JoinedRefusals

RECORD = AuditRecord(
    0, 1.0, "ann", "user", "t", "127.0.0.1", "jobs:submit", "submit_job", "", 201, 1, 1
)
OLD_LINE = (
    '{"seq":1,"time":1.5,"actor":"ann","role":"user","token":"t","remote":"127.0.0.1",'
    '"verb":"jobs:submit","action":"submit_job","object":"red","outcome":201,"epoch_before":1,'
    f'"epoch_after":2,"prev":"{START}",'
    '"hash":"a6ea44b67a1e862aec5ee9c92ff6a796e19e3e781dcb8ad65c55322bec5f770e"}\n'
)
"""As it was written before records had a count."""


class Writer:
    """Writes chained records, some at a time."""

    def __init__(self, folder: Path, *, files: int = 3, seq: int = 0, last: str = START) -> None:
        self.trail = Trail(folder / FILE, file_bytes=2000, files=files)
        self.seq, self.last = seq, last

    def write(self, count: int, at_once: int = 1) -> None:
        for _ in range(0, count, at_once):
            batch = []
            for _ in range(at_once):
                self.seq += 1
                made = replace(RECORD, seq=self.seq, prev=self.last, object=f"job-{self.seq}")
                batch.append(replace(made, hash=record_hash(made)))
                self.last = batch[-1].hash
            self.trail.write(batch)

    def goes_on(self) -> Writer:
        """Return the writer after a restart."""
        check = self.trail.recover()
        assert check.ok, check.problem
        number, _, value = check.head.partition(":")
        folder = self.trail.path.parent
        return Writer(folder, files=self.trail._files, seq=int(number), last=value)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("audit.0*.jsonl"))


def whole(folder: Path, expect: str = "") -> TrailCheck:
    return verify(folder / FILE, expect)


def test_full_files_are_put_aside_and_the_oldest_go(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(100)
    assert len(files(tmp_path)) == 3
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) < 5 * 3000
    check = whole(tmp_path)
    assert check.ok, check.problem
    assert check.head == f"100:{writer.last}"
    base = (tmp_path / BASE).read_text().strip()
    begin = int(base.partition(":")[0]) + 1
    assert check.records == 100 - begin + 1
    assert files(tmp_path)[0].name == f"audit.{begin:015d}.jsonl"
    assert whole(tmp_path, base).ok
    assert f"begins with record {begin}" in whole(tmp_path, f"1:{START}").problem
    writer = writer.goes_on()
    writer.write(3)
    assert whole(tmp_path).head == f"103:{writer.last}"
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in tmp_path.iterdir())


@pytest.mark.parametrize(("after", "limit"), [(0, 5), (93, 20), (99, 5), (100, 5), (95, 1)])
def test_a_page_begins_anywhere(tmp_path: Path, after: int, limit: int) -> None:
    writer = Writer(tmp_path, files=50)
    writer.write(100)
    wanted = list(range(1, 101))[after : after + limit]
    assert [record.seq for record in writer.trail.page(after, limit)] == wanted


def test_a_page_of_a_long_file_is_found_without_reading_it_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = Writer(tmp_path)
    writer.trail._file_bytes = 10**9
    writer.write(4000, at_once=100)
    read = 0
    parse = AuditRecord.__init__

    def counting(self: AuditRecord, *given: object, **named: object) -> None:
        nonlocal read
        read += 1
        parse(self, *given, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(AuditRecord, "__init__", counting)
    for after in (0, 1, 1999, 2000, 3990):
        assert [r.seq for r in writer.trail.page(after, 3)] == [after + 1, after + 2, after + 3]
    assert read == 15


def test_a_file_taken_away_is_noticed(tmp_path: Path) -> None:
    Writer(tmp_path, files=50).write(100)
    aside = files(tmp_path)
    assert len(aside) > 4
    kept = aside[2].read_bytes()
    aside[2].unlink()
    assert "is missing" in whole(tmp_path).problem
    aside[2].write_bytes(kept)
    assert whole(tmp_path).ok
    aside[0].unlink()
    assert "record 1 is missing" in whole(tmp_path).problem


def test_a_changed_record_in_a_file_put_aside_is_named(tmp_path: Path) -> None:
    Writer(tmp_path, files=50).write(100)
    aside = files(tmp_path)[3]
    number = int(aside.name.split(".")[1])
    aside.write_text(aside.read_text().replace("ann", "bob", 1))
    assert whole(tmp_path).problem == f"record {number} was changed"
    assert Trail(tmp_path / FILE).recover().ok  # which looks at the end only


def test_a_crash_at_any_step_of_putting_aside_loses_nothing(tmp_path: Path) -> None:
    writer = Writer(tmp_path)
    writer.write(60)
    oldest = files(tmp_path)[0]
    kept = oldest.read_bytes()
    # renamed, and not yet written to
    begin = 60 - len((tmp_path / FILE).read_bytes().splitlines()) + 1
    (tmp_path / FILE).rename(tmp_path / f"audit.{begin:015d}.jsonl")
    assert whole(tmp_path).ok
    writer = writer.goes_on()
    writer.write(40)
    assert whole(tmp_path).ok
    # the base was written, and the oldest file is still there
    oldest.write_bytes(kept)
    assert whole(tmp_path).ok
    writer = writer.goes_on()
    writer.write(40)
    assert whole(tmp_path).ok
    assert not oldest.exists()


def test_records_after_the_head_were_written_and_count(tmp_path: Path) -> None:
    """A crash between the records and the head, which names a record in the file before."""
    writer = Writer(tmp_path)
    writer.write(1)
    while (tmp_path / FILE).stat().st_size < 2000:
        writer.write(1)
    head = (tmp_path / HEAD).read_text()
    writer.write(3, at_once=3)
    assert len(files(tmp_path)) == 1
    (tmp_path / HEAD).write_text(head)
    assert writer.goes_on().seq == writer.seq
    lines = (tmp_path / FILE).read_text().splitlines(keepends=True)
    (tmp_path / FILE).write_text("".join([*lines[:-2], lines[-1]]))
    assert "is missing" in Trail(tmp_path / FILE).recover().problem


def test_a_trail_of_before_is_read(tmp_path: Path) -> None:
    (tmp_path / FILE).write_text(OLD_LINE)
    (tmp_path / HEAD).write_text("1:" + OLD_LINE[-67:-3] + "\n")
    check = whole(tmp_path)
    assert (check.ok, check.records) == (True, 1)
    assert Trail(tmp_path / FILE).recover().ok
    assert Trail(tmp_path / FILE).page(0, 10)[0].count == 1


# --- refusals -------------------------------------------------------------------------------


def refusal(
    remote: str, *, ident: str = "", action: str = "list_jobs", thing: str = ""
) -> AuditRecord:
    return replace(
        RECORD, actor="", token=ident, remote=remote, action=action, object=thing, outcome=401
    )


def test_refusals_alike_are_joined_for_a_minute() -> None:
    refusals = JoinedRefusals()
    assert refusals.add(refusal("10.0.0.1"), 0.0) == refusal("10.0.0.1")
    assert all(refusals.add(refusal("10.0.0.1"), 1.0) is None for _ in range(9))
    assert refusals.add(refusal("10.0.0.2"), 2.0) is not None
    assert refusals.due(WINDOW_S - 1) == []
    assert refusals.due(WINDOW_S + 3) == [replace(refusal("10.0.0.1"), count=9)]
    assert refusals.add(refusal("10.0.0.1"), WINDOW_S + 4) is not None


def test_strangers_of_many_addresses_share_what_they_may_fill() -> None:
    refusals = JoinedRefusals()
    made = [
        refusals.add(refusal(f"10.0.{n // 256}.{n % 256}", thing=f"job-{n}"), 0.0)
        for n in range(5000)
    ]
    recorded = [record for record in made if record is not None]
    assert len(recorded) == KINDS + 1
    assert recorded[-1].object == SEVERAL
    late = refusals.due(WINDOW_S)
    assert sum(record.count for record in late) + len(recorded) == 5000
    assert not refusals._joined
    assert refusals.add(refusal("10.9.9.9"), WINDOW_S) is not None


def test_a_strangers_flood_hides_no_user() -> None:
    refusals = JoinedRefusals()
    for number in range(100):
        refusals.add(refusal(f"10.0.0.{number}"), 0.0)
    mine = refusal("10.0.0.1", ident="t1")
    assert refusals.add(mine, 0.0) == mine
