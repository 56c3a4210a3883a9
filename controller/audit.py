"""The audit trail: who asked for what, and how it ended. Append-only, each record chained.

A record is one JSON line whose ``hash`` is SHA-256 over the record and the hash of the record
before it. Records that wait are written together and made durable with one ``fdatasync``. The
number and the hash of the last one lie in a second file, so that a trail that was cut off is
noticed; somebody who may write both files is beaten by a head kept elsewhere (``expect``).
"""

from __future__ import annotations

import asyncio
import errno
import hashlib
import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

from controller.errors import ServiceError

FILE = "audit.jsonl"
HEAD = "audit.head"
START = "0" * 64
"""What the first record chains to."""
WRITE_TIMEOUT_S = 10.0
MAX_FIELD = 500


@dataclass(slots=True, frozen=True)
class Record:
    """One line. ``time`` is seconds since 1970, ``outcome`` an HTTP status."""

    seq: int
    time: float
    actor: str
    role: str
    token: str
    remote: str
    verb: str
    action: str
    object: str
    outcome: int
    epoch_before: int
    epoch_after: int
    prev: str = START
    hash: str = ""


@dataclass(slots=True, frozen=True)
class Verdict:
    """Whether a trail is whole; ``problem`` names the first record that is not as written."""

    ok: bool
    records: int
    head: str
    problem: str = ""


class AuditLog:
    """One trail in one directory. ``append`` returns when the record is durable."""

    def __init__(self, directory: Path) -> None:
        self._path = directory / FILE
        self._head_path = directory / HEAD
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="audit")
        self._seq, self._hash = 0, START
        self._waiting: list[tuple[Record, asyncio.Future[None]]] = []
        self._writing: asyncio.Task[None] | None = None
        self.error = ""
        """Why the last write failed, empty when it did not."""

    async def open(self) -> None:
        """Read the whole trail. ServiceError when it is not as it was left."""
        verdict = await asyncio.to_thread(self._recover)
        if not verdict.ok:
            raise ServiceError(
                "failed",
                f"the audit trail is damaged: {verdict.problem}",
                object=f"file/{self._path}",
                hint="keep it as evidence: move both audit files away, then start again",
            )
        number, _, value = verdict.head.partition(":")
        self._seq, self._hash = int(number), value

    async def append(self, record: Record) -> None:
        """Chain ``record`` (its seq, prev and hash are set here) and make it durable.

        ServiceError ``failed`` when the disk refuses, ``timeout`` when it does not answer.
        """
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((record, done))
        if self._writing is None:
            self._writing = asyncio.get_running_loop().create_task(self._write_all())
        try:
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await asyncio.shield(done)
        except TimeoutError:
            raise ServiceError(
                "timeout", "the audit trail was not written in time", object=f"file/{self._path}"
            ) from None

    async def verify(self, expect: str = "") -> Verdict:
        """Check every record; ``expect`` is a head (``SEQ:HASH``) that must be in the trail."""
        if self._writing is not None:
            await asyncio.shield(self._writing)
        return await asyncio.to_thread(verify, self._path, self._head_path, expect)

    async def records(self, after: int, limit: int) -> list[Record]:
        """Return at most ``limit`` records after number ``after``, oldest first."""
        if self._writing is not None:
            await asyncio.shield(self._writing)
        return await asyncio.to_thread(self._read, after, limit)

    async def close(self) -> None:
        """Write what waits and stop."""
        if self._writing is not None:
            await self._writing
        self._thread.shutdown(wait=False)

    async def _write_all(self) -> None:
        loop = asyncio.get_running_loop()
        try:
            while self._waiting:
                batch, self._waiting = self._waiting, []
                chained = self._chained([record for record, _ in batch])
                error: ServiceError | None = None
                try:
                    await loop.run_in_executor(self._thread, self._write, chained)
                    self._seq, self._hash = chained[-1].seq, chained[-1].hash
                    self.error = ""
                except OSError as refusal:
                    error = _refused(self._path, refusal)
                    self.error = error.message
                for _, done in batch:
                    if done.done():
                        continue
                    if error is None:
                        done.set_result(None)
                    else:
                        done.set_exception(error)
                        done.exception()  # whoever waited may be gone
        finally:
            self._writing = None

    def _chained(self, records: list[Record]) -> list[Record]:
        seq, last = self._seq, self._hash
        chained = []
        for record in records:
            seq += 1
            following = replace(record, seq=seq, prev=last)
            following = replace(following, hash=record_hash(following))
            last = following.hash
            chained.append(following)
        return chained

    def _write(self, batch: list[Record]) -> None:
        """Append all records or none; a part of a line must not stay on a full disk."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW
        descriptor = os.open(self._path, flags, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            text = "".join(_line(record) for record in batch).encode()
            try:
                if os.write(descriptor, text) != len(text):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
                os.fdatasync(descriptor)
                _write_head(self._head_path, f"{batch[-1].seq}:{batch[-1].hash}")
            except OSError:
                os.ftruncate(descriptor, size)
                raise
        finally:
            os.close(descriptor)

    def _recover(self) -> Verdict:
        """Drop a last line that a crash tore, if it was never acknowledged; then check."""
        if self._path.exists():
            raw = self._path.read_bytes()
            whole = raw.rfind(b"\n") + 1
            if whole < len(raw):
                os.truncate(self._path, whole)
        return verify(self._path, self._head_path)

    def _read(self, after: int, limit: int) -> list[Record]:
        found = (r for r in _records(self._path) if r.seq > after)
        return list(islice(found, limit))


def record_hash(record: Record) -> str:
    """Return SHA-256 over everything in ``record`` but its own hash; ``prev`` chains it."""
    body = {key: value for key, value in asdict(record).items() if key != "hash"}
    text = json.dumps(body, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()


def verify(path: Path, head_path: Path | None = None, expect: str = "") -> Verdict:
    """Check a trail record by record; the first one that is not as it was written is named."""
    count, last, seen = 0, START, not expect
    problem = ""
    try:
        for record in _records(path):
            problem = _fault(record, count, last)
            if problem:
                break
            count, last = record.seq, record.hash
            seen = seen or expect == f"{count}:{last}"
        kept = _read_head(head_path) if head_path is not None and not problem else None
    except ValueError as error:
        problem, kept = f"record {count + 1} is broken: {error}", None
    if not problem and kept is not None:
        problem = _cut_off(count, last, kept)
    if not problem and not seen:
        problem = f"no record is {expect[:80]}"
    return Verdict(not problem, count, f"{count}:{last}", problem)


def _fault(record: Record, count: int, last: str) -> str:
    if record.seq != count + 1:
        return _missing(count + 1, record.seq)
    if record.prev != last or record.hash != record_hash(record):
        return f"record {count + 1} was changed"
    return ""


def _cut_off(count: int, last: str, kept: str) -> str:
    """Compare the end of the trail with the head that was kept; later records are no fault."""
    if not kept:
        return f"the head after record {count} is missing" if count else ""
    number = int(kept.partition(":")[0])
    if number > count:
        return f"records {count + 1} to {number} are cut off"
    return f"record {count} was changed" if number == count and kept != f"{count}:{last}" else ""


def clipped(text: str) -> str:
    """Return ``text`` fit for a record: bounded, whatever a client sent."""
    return text if len(text) <= MAX_FIELD else text[: MAX_FIELD - 1] + "…"


def _records(path: Path) -> Iterator[Record]:
    """Read a trail line by line. ValueError for a line that is no record."""
    try:
        file = path.open(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return
    with file:
        for line in file:
            yield _parse(line)


def _parse(line: str) -> Record:
    try:
        body: Any = json.loads(line)
        return Record(**body)
    except (TypeError, ValueError):
        raise ValueError("it is not a record") from None


def _line(record: Record) -> str:
    return json.dumps(asdict(record), separators=(",", ":"), ensure_ascii=True) + "\n"


def _missing(wanted: int, found: int) -> str:
    if found > wanted:
        return f"record {wanted} is missing: record {found} follows record {wanted - 1}"
    return f"record {found} stands where record {wanted} belongs"


def _read_head(path: Path) -> str:
    try:
        text = path.read_text(encoding="ascii", errors="replace").strip()
    except FileNotFoundError:
        return ""
    number, _, value = text.partition(":")
    if not number.isdecimal() or len(value) != 64:
        raise ValueError("the head is damaged")
    return text


def _write_head(path: Path, head: str) -> None:
    """Replace the head in one step, so that a crash leaves the old or the new one."""
    beside = path.with_suffix(".new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW
    with os.fdopen(os.open(beside, flags, 0o600), "w", encoding="ascii") as file:
        file.write(head + "\n")
        file.flush()
        os.fdatasync(file.fileno())
    beside.replace(path)


def _refused(path: Path, error: OSError) -> ServiceError:
    return ServiceError(
        "failed",
        f"the audit trail can not be written: {error.strerror}",
        object=f"file/{path}",
        hint="free disk space; what was done is done, look at the object",
    )
