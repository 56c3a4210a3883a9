"""The files of an audit trail: appended at one end, deleted at the other, read from any record.

``audit.jsonl`` takes the records. A full file is renamed after its first record
(``audit.000000000001234.jsonl``), and the oldest of these is deleted if there are too many; number
and hash of the last deleted record stay in ``audit.base``, as the start of the chain. Number and
hash of the last record are in ``audit.head``, so that a truncated trail is noticed.

The code is synchronous. A lock keeps readers from opening files during a write.
"""

from __future__ import annotations

import errno
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from threading import Lock
from typing import Any, BinaryIO

from base import clock
from controller.people.audit_record import START, AuditRecord, hash_of, line_of, parsed

FILE = "audit.jsonl"
HEAD = "audit.head"
BASE = "audit.base"
MAX_FILE_BYTES = 16 * 2**20
MAX_FILES = 32
"""Full files that are kept, 512 MiB in all: some 1.5 million records."""
TAIL_BYTES = 4 * 2**20
"""Bytes at the end that a start checks: more than one write ever holds."""
_NEAR_BYTES = 64 * 2**10
_FULL = re.compile(r"audit\.([0-9]{15})\.jsonl")
_REST_EVERY, _REST_S = 200, 0.002
"""A long check pauses regularly, so that other threads run."""


@dataclass(slots=True, frozen=True)
class TrailCheck:
    """Whether a trail is intact; ``problem`` names the first record that is not as written."""

    ok: bool
    records: int
    head: str
    """``SEQ:HASH`` of the last record."""
    problem: str = ""


@dataclass(slots=True, frozen=True)
class _Link:
    """A place in the chain: number and hash of a record."""

    seq: int = 0
    hash: str = START

    def __str__(self) -> str:
        return f"{self.seq}:{self.hash}"


class Trail:
    """The files of one trail in one directory, or beside one file of that name."""

    def __init__(
        self, path: Path, *, file_bytes: int = MAX_FILE_BYTES, files: int = MAX_FILES
    ) -> None:
        """``path`` is the file that takes the records."""
        self.path = path
        self._file_bytes, self._files = file_bytes, files
        self._lock = Lock()

    # --- writing ------------------------------------------------------------------------

    def write(self, batch: Sequence[AuditRecord]) -> None:
        """Append all records durably, or none. OSError.

        No incomplete line stays on a full disk.
        """
        with self._lock:
            self._rotate()
            self._append(batch)

    def _append(self, batch: Sequence[AuditRecord]) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        descriptor = os.open(self.path, flags, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            text = "".join(map(line_of, batch)).encode()
            try:
                if os.write(descriptor, text) != len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fdatasync(descriptor)
                self._put(HEAD, _Link(batch[-1].seq, batch[-1].hash))
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)

    def _rotate(self) -> None:
        """Rename a full file, and delete the oldest ones if there are too many."""
        try:
            full = self.path.stat().st_size >= self._file_bytes
        except FileNotFoundError:
            return
        if not full:
            return
        with self.path.open("rb") as file:
            first = int(parsed(file.readline())["seq"])
        self.path.rename(self.path.with_name(f"audit.{first:015d}.jsonl"))
        while len(aside := self._aside()) > self._files:
            last = parsed(_last_lines(aside[0], _NEAR_BYTES)[-1])
            self._put(BASE, _Link(last["seq"], last["hash"]))
            aside[0].unlink()
        folder = os.open(self.path.parent, os.O_RDONLY | os.O_DIRECTORY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def _put(self, name: str, link: _Link) -> None:
        """Replace a file of one link atomically: a crash leaves the old or the new one."""
        path = self.path.with_name(name)
        beside = path.with_name(name + ".new")
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
        with os.fdopen(os.open(beside, flags, 0o600), "w", encoding="ascii") as file:
            file.write(f"{link}\n")
            file.flush()
            os.fdatasync(file.fileno())
        beside.replace(path)

    # --- reading ------------------------------------------------------------------------

    def recover(self) -> TrailCheck:
        """Drop an incomplete last line after a crash, and check the end of the trail."""
        if self.path.exists():
            _drop_torn(self.path)
        try:
            kept = self._link(HEAD)
            lines: list[bytes] = []
            for path in reversed(self._all()):
                lines = _last_lines(path, TAIL_BYTES)
                if lines:
                    break
            return _end(lines, kept)
        except ValueError as error:
            return TrailCheck(False, 0, str(_Link()), str(error))

    def page(self, after: int, limit: int) -> list[AuditRecord]:
        """Return at most ``limit`` records after number ``after``, oldest first. ValueError."""
        with ExitStack() as stack:
            with self._lock:
                files = _opened(self._from(after + 1), stack)
            found: list[AuditRecord] = []
            for file, size in files:
                _seek(file, size, after)
                later = (b for b in map(parsed, _lines(file, size)) if b["seq"] > after)
                found += [AuditRecord(**body) for body in islice(later, limit - len(found))]
                if len(found) >= limit:
                    break
            return found

    def verify(
        self, expect: str = "", *, rest: Callable[[float], None] = clock.sleep
    ) -> TrailCheck:
        """Check every record; ``expect`` is a head (``SEQ:HASH``) that must be in the trail."""
        with ExitStack() as stack:
            with self._lock:
                files = _opened(self._all(), stack)
                try:
                    base, kept = self._link(BASE) or _Link(), self._link(HEAD)
                except ValueError as error:
                    return TrailCheck(False, 0, str(_Link()), str(error))
            lines = (line for file, size in files for line in _lines(file, size))
            return _checked(lines, base, kept, expect, rest)

    def _aside(self) -> list[Path]:
        """Return the full files, oldest first."""
        if self.path.name != FILE:
            return []
        return sorted(p for p in self.path.parent.iterdir() if _FULL.fullmatch(p.name))

    def _all(self) -> list[Path]:
        return [*self._aside(), *([self.path] if self.path.exists() else [])]

    def _from(self, number: int) -> list[Path]:
        """Return the files that hold record ``number`` and later ones."""
        aside = self._aside()
        begun = [path for path in aside if int(_FULL.sub(r"\1", path.name)) <= number]
        return self._all()[max(0, len(begun) - 1) :]

    def _link(self, name: str) -> _Link | None:
        """Read a file of one link. ValueError if it is damaged."""
        try:
            text = self.path.with_name(name).read_text(encoding="ascii", errors="replace").strip()
        except FileNotFoundError:
            return None
        number, _, value = text.partition(":")
        if not number.isdecimal() or len(value) != 64:
            raise ValueError(f"{name} is damaged")
        return _Link(int(number), value)


def verify(path: Path, expect: str = "") -> TrailCheck:
    """Check the trail whose last file is ``path``, without a controller."""
    return Trail(path).verify(expect, rest=lambda _: None)


def _opened(paths: Sequence[Path], stack: ExitStack) -> list[tuple[BinaryIO, int]]:
    """Open files and note their sizes: later records are not read."""
    files = [stack.enter_context(path.open("rb")) for path in paths]
    return [(file, os.fstat(file.fileno()).st_size) for file in files]


def _lines(file: BinaryIO, size: int) -> Iterator[bytes]:
    """Yield the lines from the position of ``file`` to byte ``size``."""
    left = size - file.tell()
    while left > 0 and (line := file.readline()):
        left -= len(line)
        yield line


def _checked(
    lines: Iterator[bytes],
    base: _Link,
    kept: _Link | None,
    expect: str,
    rest: Callable[[float], None],
) -> TrailCheck:
    last, seen, count = base, expect in ("", str(base)), 0
    problem = ""
    for line in lines:
        try:
            body = parsed(line)
        except ValueError as error:
            problem = f"record {last.seq + 1} is broken: {error}"
            break
        if count == 0 and body["seq"] <= base.seq:
            continue  # its file was about to be deleted
        problem = _fault(body, last)
        if problem:
            break
        last, count = _Link(body["seq"], body["hash"]), count + 1
        seen = seen or expect == str(last)
        if count % _REST_EVERY == 0:
            rest(_REST_S)
    problem = problem or _cut_off(last, kept)
    if not problem and not seen:
        older = expect.partition(":")[0].isdecimal() and int(expect.partition(":")[0]) < base.seq
        problem = f"no record has the head {expect[:80]}"
        if older:
            problem += f": the trail begins with record {base.seq + 1}"
    return TrailCheck(not problem, count, str(last), problem)


def _fault(body: dict[str, Any], last: _Link) -> str:
    wanted, found = last.seq + 1, body["seq"]
    if found > wanted:
        return f"record {wanted} is missing: record {found} follows record {wanted - 1}"
    if found < wanted:
        return f"record {found} is in the place of record {wanted}"
    if body["prev"] != last.hash or body["hash"] != hash_of(body):
        return f"record {wanted} was changed"
    return ""


def _cut_off(last: _Link, kept: _Link | None) -> str:
    """Compare the end of the trail with the stored head; later records are allowed."""
    if kept is None:
        return f"the head after record {last.seq} is missing" if last.seq else ""
    if kept.seq > last.seq:
        return f"records {last.seq + 1} to {kept.seq} are missing at the end"
    return f"record {last.seq} was changed" if kept.seq == last.seq and kept != last else ""


def _end(lines: list[bytes], kept: _Link | None) -> TrailCheck:
    """Check the last records: those after the stored head."""
    if not lines:
        problem = _cut_off(_Link(), kept)
        return TrailCheck(not problem, 0, str(_Link()), problem)
    later: list[dict[str, Any]] = []
    before = kept if kept is not None and kept.seq > 0 else None
    for line in reversed(lines):
        body = parsed(line)
        if before is not None and body["seq"] <= before.seq:
            found = _Link(body["seq"], body["hash"])
            problem = _cut_off(found, before) or _broken(body)
            if problem:
                return TrailCheck(False, 0, str(found), problem)
            break
        later.append(body)
    if before is None:
        return TrailCheck(False, 0, str(_Link()), _cut_off(_Link(later[0]["seq"], ""), kept))
    last = before
    for body in reversed(later):
        problem = _fault(body, last)
        if problem:
            return TrailCheck(False, 0, str(last), problem)
        last = _Link(body["seq"], body["hash"])
    return TrailCheck(True, len(later), str(last))


def _broken(body: dict[str, Any]) -> str:
    return "" if body["hash"] == hash_of(body) else f"record {body['seq']} was changed"


def _last_lines(path: Path, most: int) -> list[bytes]:
    """Return the complete lines within the last ``most`` bytes of a file."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(max(0, size - most))
        lines = file.read().splitlines(keepends=True)
    return lines[1:] if size > most else lines


def _drop_torn(path: Path) -> None:
    """Remove an incomplete last line: it was never acknowledged."""
    with path.open("rb+") as file:
        size = end = file.seek(0, os.SEEK_END)
        while end:
            begin = max(0, end - _NEAR_BYTES)
            file.seek(begin)
            place = file.read(end - begin).rfind(b"\n")
            if place >= 0:
                end = begin + place + 1
                break
            end = begin
        if end < size:
            file.truncate(end)


def _seek(file: BinaryIO, size: int, after: int) -> None:
    """Seek to a line at or shortly before the first record after ``after``. ValueError."""
    low, high = 0, size
    while high - low > _NEAR_BYTES:
        file.seek((low + high) // 2)
        file.readline()
        place = file.tell()
        line = file.readline()
        if place < high and line and parsed(line)["seq"] <= after:
            low = place
        else:
            high = (low + high) // 2
    file.seek(low)
