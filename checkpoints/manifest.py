"""The manifest of one rank's part of a step: every file with its length and CRC32C.

Nothing is opened here; ``measure`` reads a file object that it is given.
"""

from __future__ import annotations

import json
from array import array
from bisect import bisect_left
from collections.abc import ItemsView, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import accumulate
from typing import Any, Protocol

from crc32c import crc32c

from checkpoints.values import MAX_RANKS, MAX_STEP, path_fault

KIND = "lightloom checkpoint part"
VERSION = 1
MAX_BYTES = 16 << 20
"""Bytes of a manifest."""
MAX_FILES = 16_384
MAX_VALUES = 16 * MAX_FILES
"""Names and values of a manifest, twice as many as one of ``MAX_FILES`` files has."""
MAX_LENGTH = 2**53
"""Bytes of a file: the whole numbers that every reader of JSON keeps."""
BLOCK = 1 << 20


class Readable(Protocol):
    """What can be read in blocks."""

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; none at the end."""


@dataclass(slots=True, frozen=True)
class Sum:
    """Length in bytes and CRC32C (Castagnoli, RFC 3720) of some content."""

    bytes: int
    crc32c: int


class _Items(ItemsView[str, Sum]):
    """Paths and sums in their order, without a search for each path."""

    _mapping: FileSums

    def __iter__(self) -> Iterator[tuple[str, Sum]]:
        return zip(self._mapping, self._mapping.sums(), strict=True)


class FileSums(Mapping[str, Sum]):
    """The sums of files by path, sorted. It uses the bytes of the paths and some 20 more a file.

    A dict of as many files uses some 250 bytes more for each, and a server holds many manifests.
    """

    __slots__ = ("_crcs", "_ends", "_lengths", "_paths")

    def __init__(self, files: Mapping[str, Sum]) -> None:
        paths = sorted((path.encode(errors="surrogatepass"), one) for path, one in files.items())
        self._paths = b"".join(path for path, _ in paths)
        self._ends = array("I", accumulate(len(path) for path, _ in paths))
        self._lengths = array("Q", (one.bytes for _, one in paths))
        self._crcs = array("I", (one.crc32c for _, one in paths))

    @property
    def names_bytes(self) -> int:
        """Bytes of all paths together, in UTF-8."""
        return len(self._paths)

    def __getitem__(self, path: str) -> Sum:
        wanted = path.encode(errors="surrogatepass")
        at = bisect_left(range(len(self)), wanted, key=self._path)
        if at == len(self) or self._path(at) != wanted:
            raise KeyError(path)
        return Sum(self._lengths[at], self._crcs[at])

    def __iter__(self) -> Iterator[str]:
        return (self._path(at).decode(errors="surrogatepass") for at in range(len(self)))

    def __len__(self) -> int:
        return len(self._ends)

    def items(self) -> ItemsView[str, Sum]:
        """Return paths and sums."""
        return _Items(self)

    def sums(self) -> Iterator[Sum]:
        """Return the sums in the order of their paths."""
        return map(Sum, self._lengths, self._crcs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({dict(self)!r})"

    def _path(self, at: int) -> bytes:
        return self._paths[self._ends[at - 1] if at else 0 : self._ends[at]]


@dataclass(slots=True, frozen=True)
class Manifest:
    """One rank's part of one step of one run of a job."""

    job: str
    epoch: int
    """The run of the job: it grows with every restart. Parts of two are never mixed."""
    step: int
    rank: int
    ranks: int
    rule: str
    files: FileSums
    """By path relative to the rank's folder."""

    @property
    def bytes(self) -> int:
        """All files together."""
        return sum(file.bytes for _, file in self.files.items())

    @property
    def digest(self) -> str:
        """Eight hexadecimal digits over the whole manifest: two equal ones hold equal parts."""
        return f"{crc32c(_body(self)):08x}"


class Damaged(StrEnum):
    """What is wrong with a file."""

    MISSING = "missing"
    LENGTH = "length"
    CONTENT = "content"
    EXTRA = "extra"
    """It is in the folder but not in the manifest."""


@dataclass(slots=True, frozen=True)
class Damage:
    """One damaged file."""

    path: str
    what: Damaged


def measure(source: Readable) -> Sum:
    """Return the sum of all that a file object yields, one block in memory."""
    length = crc = 0
    while block := source.read(BLOCK):
        crc = crc32c(block, crc)
        length += len(block)
    return Sum(length, crc)


def verify(manifest: Manifest, found: Mapping[str, Sum]) -> tuple[Damage, ...]:
    """Compare what was found in a folder with its manifest; empty when all is as written."""
    damages = []
    for path, wanted in sorted(manifest.files.items()):
        got = found.get(path)
        if got is None:
            damages.append(Damage(path, Damaged.MISSING))
        elif got.bytes != wanted.bytes:
            damages.append(Damage(path, Damaged.LENGTH))
        elif got.crc32c != wanted.crc32c:
            damages.append(Damage(path, Damaged.CONTENT))
    damages += [Damage(path, Damaged.EXTRA) for path in sorted(found.keys() - manifest.files)]
    return tuple(damages)


def dump(manifest: Manifest) -> bytes:
    """Return the manifest as JSON in UTF-8. Raises ValueError when it is out of bounds."""
    _check(_document(manifest))
    body = _body(manifest)
    _require_few(body)
    return body[:-1] + f',"digest":"{crc32c(body):08x}"}}'.encode()


def parse(content: bytes) -> Manifest:
    """Read a manifest that may be hostile or damaged. Raises ValueError."""
    if len(content) > MAX_BYTES:
        raise ValueError(f"the manifest has {len(content)} bytes; {MAX_BYTES} are accepted")
    _require_few(content)
    try:
        document = json.loads(content, parse_constant=_refuse, object_pairs_hook=_no_doubles)
    except RecursionError:
        raise ValueError("the manifest is nested too deeply") from None
    manifest = _check(document)
    digest = document.get("digest")
    if digest != manifest.digest:
        raise ValueError(f"the manifest is damaged: its digest is not {manifest.digest}")
    return manifest


def _require_few(content: bytes) -> None:
    """Raise ValueError for too many values. Three bytes can become an object of 100 bytes."""
    if sum(map(content.count, (b",", b":", b"[", b"{"))) > MAX_VALUES:
        raise ValueError(f"the manifest has more than {MAX_VALUES} values")


def _document(manifest: Manifest) -> dict[str, Any]:
    return {
        "kind": KIND,
        "version": VERSION,
        "job": manifest.job,
        "epoch": manifest.epoch,
        "step": manifest.step,
        "rank": manifest.rank,
        "ranks": manifest.ranks,
        "rule": manifest.rule,
        "files": [
            {"path": path, "bytes": file.bytes, "crc32c": f"{file.crc32c:08x}"}
            for path, file in sorted(manifest.files.items())
        ],
    }


def _body(manifest: Manifest) -> bytes:
    return json.dumps(_document(manifest), separators=(",", ":"), ensure_ascii=True).encode()


def _refuse(constant: str) -> Any:
    raise ValueError(f"{constant} is not allowed as a number in a manifest")


def _no_doubles(pairs: Iterable[tuple[str, Any]]) -> dict[str, Any]:
    document: dict[str, Any] = {}
    for name, value in pairs:
        if name in document:
            raise ValueError(f"the manifest has {name[:64]!r} twice")
        document[name] = value
    return document


def _check(document: Any) -> Manifest:
    if not isinstance(document, dict) or document.get("kind") != KIND:
        raise ValueError("this is not a manifest of a checkpoint")
    if document.get("version") != VERSION:
        raise ValueError(f"version {document.get('version')!r:.20} is not {VERSION}")
    ranks = _whole(document, "ranks", MAX_RANKS)
    listed = document.get("files")
    if not isinstance(listed, list) or not 0 < len(listed) <= MAX_FILES:
        raise ValueError(f"a manifest lists 1 to {MAX_FILES} files")
    files: dict[str, Sum] = {}
    for one in listed:
        if not isinstance(one, dict):
            raise ValueError("a file entry in the manifest is not a JSON object")
        path = _text(one, "path")
        fault = path_fault(path) or ("it is there twice" if path in files else "")
        if fault:
            raise ValueError(f"the path {path[:64]!a}: {fault}")
        files[path] = Sum(_whole(one, "bytes", MAX_LENGTH), _crc(one))
    manifest = Manifest(
        job=_text(document, "job"),
        epoch=_whole(document, "epoch", MAX_STEP),
        step=_whole(document, "step", MAX_STEP),
        rank=_whole(document, "rank", MAX_RANKS),
        ranks=ranks,
        rule=_text(document, "rule"),
        files=FileSums(files),
    )
    if not manifest.rank < ranks:
        raise ValueError(f"rank {manifest.rank} is not one of {ranks}")
    return manifest


def _whole(document: Mapping[str, Any], name: str, most: int) -> int:
    value = document.get(name)
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value <= most:
        raise ValueError(f"{name} must be a whole number from 0 to {most}")
    return value


def _text(document: Mapping[str, Any], name: str) -> str:
    value = document.get(name)
    if not isinstance(value, str) or not 0 < len(value) <= 4096:
        raise ValueError(f"{name} must be a text of 1 to 4096 letters")
    return value


def _crc(document: Mapping[str, Any]) -> int:
    value = _text(document, "crc32c")
    if len(value) != 8 or not set(value) <= set("0123456789abcdef"):
        raise ValueError("crc32c must have eight hexadecimal digits")
    return int(value, 16)
