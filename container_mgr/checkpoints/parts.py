"""One part on disk: a directory with ``files/``, ``manifest.json`` and ``part.json``.

It is complete from the moment that it has its name: it is made in ``arriving`` and renamed.
A parity has ``members/N.json`` besides, the manifests of its set in the order of the ring.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from checkpoints.ledger import Member
from checkpoints.manifest import MAX_BYTES, Manifest, Sum, dump, parse, verify
from container_mgr.checkpoints.disk import files
from container_mgr.checkpoints.disk.files import ChangedError, Stamp
from container_mgr.volumes import tree

FILES, MANIFEST, ABOUT, MEMBERS = "files", "manifest.json", "part.json", "members"
MAX_MEMBERS = 64
MAX_DAMAGES = 16
"""Damages of one part that are reported."""


@dataclass(slots=True, frozen=True)
class About:
    """What this server notes of a part, beside its manifest."""

    stamp: str = ""
    """``files.written`` of the program's files."""
    written_s: float | None = None
    seen_at: float = 0.0
    rank: int = -1
    """The rank that starts from a staged part."""
    stamps: Mapping[str, Stamp] = field(default_factory=dict)
    """The files of a staged part when they were compared."""


@dataclass(slots=True, frozen=True)
class StoredPart:
    """A part as it was read."""

    manifest: Manifest
    about: About
    members: tuple[Manifest, ...] = ()

    @property
    def covers(self) -> tuple[Member, ...]:
        """The set of a parity."""
        return tuple(Member(m.rank, m.digest, m.bytes) for m in self.members)


def write(
    at: int, manifest: Manifest, about: About, members: Sequence[Manifest] = (), *, durable: bool
) -> None:
    """Write all but the files into a part's open directory. Raises OSError, ValueError."""
    if len(members) > MAX_MEMBERS:
        raise ValueError(f"a parity has at most {MAX_MEMBERS} members")
    if members:
        os.mkdir(MEMBERS, 0o700, dir_fd=at)
        with tree.opened_in(at, MEMBERS) as folder:
            for number, member in enumerate(members):
                _put(folder, f"{number}.json", dump(member), durable=durable)
            if durable:
                os.fsync(folder)
    _put(at, ABOUT, json.dumps(_about(about)).encode(), durable=durable)
    _put(at, MANIFEST, dump(manifest), durable=durable)
    if durable:
        with tree.opened_in(at, FILES) as folder:
            files.sync_folders(folder, manifest.files)
        os.fsync(at)


def _put(at: int, name: str, content: bytes, *, durable: bool) -> None:
    descriptor = os.open(
        name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=at
    )
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
        file.flush()
        if durable:
            os.fsync(descriptor)


def _about(about: About) -> dict[str, Any]:
    return {
        "stamp": about.stamp,
        "written_s": about.written_s,
        "seen_at": about.seen_at,
        "rank": about.rank,
        "stamps": {
            path: [s.inode, s.size, s.modified_ns, s.changed_ns] for path, s in about.stamps.items()
        },
    }


def read(at: int) -> StoredPart:
    """Read a part's open directory. Raises OSError, or ValueError for a damaged one.

    Lengths are compared, contents are not: see :func:`damages`.
    """
    manifest = parse(_get(at, MANIFEST, MAX_BYTES))
    with tree.opened_in(at, FILES) as folder, files.Folders(folder) as folders:
        for path, one in manifest.files.items():
            try:
                within, name = folders.of(path)
                found = os.stat(name, dir_fd=within, follow_symlinks=False)
            except (ChangedError, FileNotFoundError):
                raise ValueError(f"{path[:64]}: missing") from None
            if not stat.S_ISREG(found.st_mode) or found.st_size != one.bytes:
                raise ValueError(f"{path[:64]}: length")
    members: list[Manifest] = []
    try:
        with tree.opened_in(at, MEMBERS) as folder:
            count = len(files.names(folder, MAX_MEMBERS))
            members = [parse(_get(folder, f"{n}.json", MAX_BYTES)) for n in range(count)]
    except FileNotFoundError:
        pass
    return StoredPart(manifest, _read_about(at), tuple(members))


def _read_about(at: int) -> About:
    try:
        fields = json.loads(_get(at, ABOUT, MAX_BYTES))
        written_s = fields["written_s"]
        return About(
            stamp=str(fields["stamp"]),
            written_s=None if written_s is None else float(written_s),
            seen_at=float(fields["seen_at"]),
            rank=int(fields["rank"]),
            stamps={
                str(path): Stamp(*map(int, numbers)) for path, numbers in fields["stamps"].items()
            },
        )
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{ABOUT} is damaged") from error


def _get(at: int, name: str, most: int) -> bytes:
    try:
        with files.opened(at, name) as descriptor, os.fdopen(os.dup(descriptor), "rb") as file:
            return file.read(most + 1)
    except ChangedError as error:
        raise ValueError(f"{name} is missing") from error


def damages(
    at: int, manifest: Manifest, stopped: Callable[[], bool], *, durable: bool = False
) -> tuple[str, ...]:
    """Read the files below an open directory; return how they differ from the manifest.

    Files that the manifest does not have, or with another length, are not read. Raises OSError,
    AgentEndingError.
    """
    present = files.listing(at).stamps
    sizes = {path: one.bytes for path, one in manifest.files.items() if path in present}
    found: dict[str, Sum] = files.sums(at, sizes, stopped, durable=durable)
    found |= {path: Sum(one.size, 0) for path, one in present.items() if path not in sizes}
    return tuple(f"{d.path}: {d.what}" for d in verify(manifest, found)[:MAX_DAMAGES])
