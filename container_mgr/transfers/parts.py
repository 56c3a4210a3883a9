"""Reads a part as one stream, its files in the manifest's order, and cuts a stream into files.

All is opened below a descriptor, component by component, and no link is followed.
"""

from __future__ import annotations

import os
import stat
from bisect import bisect_right
from contextlib import suppress
from itertools import accumulate
from pathlib import Path
from types import TracebackType

from crc32c import crc32c

from checkpoints.manifest import BLOCK, Damage, Damaged, Manifest, Sum, verify

_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_READ = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_CLOEXEC
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
MAX_TOLD = 8
"""Damaged files that a message names."""


class DamagedPartError(Exception):
    """A part of this server differs from its manifest."""


class PartStream:
    """A part as one stream; a ``checkpoints.schemes.Source``. Belongs to one thread.

    Raises DamagedPartError for a file that is missing, is not a file, or has another length.
    """

    def __init__(self, root: Path | int, manifest: Manifest) -> None:
        self._root = os.open(root, _DIRECTORY) if isinstance(root, Path) else os.dup(root)
        self._files = sorted(manifest.files.items())
        self._ends = list(accumulate(one.bytes for _, one in self._files))
        self._at = 0
        self._open: tuple[int, int] | None = None
        """Index and descriptor of the file that was read last."""

    @property
    def length(self) -> int:
        """The length of the stream."""
        return self._ends[-1] if self._ends else 0

    def __enter__(self) -> PartStream:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close what is open."""
        self._close_file()
        os.close(self._root)

    def seek(self, offset: int, /) -> int:
        """Go to ``offset`` bytes from the start."""
        self._at = offset
        return offset

    def read(self, size: int, /) -> bytes:
        """Return at most ``size`` bytes; none at the end."""
        if self._at >= self.length:
            return b""
        descriptor, offset, left = self.place(self._at)
        block = os.pread(descriptor, min(size, left), offset)
        if not block:
            raise DamagedPartError(f"{self._name()} is shorter than in its manifest")
        self._at += len(block)
        return block

    def place(self, at: int) -> tuple[int, int, int]:
        """Return a descriptor, an offset in its file, and the bytes of the file from there on."""
        index = bisect_right(self._ends, at)
        if self._open is None or self._open[0] != index:
            self._close_file()
            path, wanted = self._files[index]
            self._open = index, _open_file(self._root, path, wanted.bytes)
        left = self._ends[index] - at
        return self._open[1], self._files[index][1].bytes - left, left

    def _name(self) -> str:
        return self._files[self._open[0]][0] if self._open else "a file"

    def _close_file(self) -> None:
        if self._open is not None:
            os.close(self._open[1])
            self._open = None


class Files:
    """Cuts a stream into the files of a manifest; a ``checkpoints.schemes.ByteSink``.

    Raises OSError (a full disk) and ValueError for bytes beyond the end.
    """

    def __init__(self, root: int, manifest: Manifest) -> None:
        self._root = root
        self._manifest = manifest
        self._left = iter(sorted(manifest.files.items()))
        self._sums: dict[str, Sum] = {}
        self._path, self._wanted, self._length, self._crc = "", 0, 0, 0
        self._file: int | None = None
        self._next()

    def write(self, block: bytes | memoryview, /) -> int:
        """Write a block whole."""
        view = memoryview(block)
        while view:
            if self._file is None:
                raise ValueError("more bytes than in the manifest")
            piece = view[: self._wanted - self._length]
            done = os.write(self._file, piece)
            self._crc = crc32c(piece[:done], self._crc)
            self._length += done
            view = view[done:]
            if self._length == self._wanted:
                self._next()
        return len(block)

    def finish(self) -> tuple[Damage, ...]:
        """Compare what came with the manifest."""
        self.close()
        return verify(self._manifest, self._sums)

    def close(self) -> None:
        """Close what is open."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _next(self) -> None:
        """Go to the next file with bytes; those without are made on the way."""
        while True:
            if self._file is not None:
                os.close(self._file)
                self._file = None
                self._sums[self._path] = Sum(self._length, self._crc)
            found = next(self._left, None)
            if found is None:
                return
            self._path, self._wanted = found[0], found[1].bytes
            self._length = self._crc = 0
            self._file = create_file(self._root, self._path)
            if self._wanted:
                return


def damages(root: Path | int, manifest: Manifest) -> tuple[Damage, ...]:
    """Read a part again and compare it. Raises OSError where the folder itself cannot be read."""
    top = os.open(root, _DIRECTORY) if isinstance(root, Path) else os.dup(root)
    found: list[Damage] = []
    try:
        for path, wanted in sorted(manifest.files.items()):
            try:
                descriptor = _open_file(top, path, wanted.bytes)
            except DamagedPartError:
                found.append(Damage(path, Damaged.MISSING))
                continue
            try:
                if _sum(descriptor, wanted.bytes) != wanted:
                    found.append(Damage(path, Damaged.CONTENT))
            except OSError:
                found.append(Damage(path, Damaged.CONTENT))
            finally:
                os.close(descriptor)
    finally:
        os.close(top)
    return tuple(found)


def summary(found: tuple[Damage, ...]) -> str:
    """Return damages in words."""
    names = ", ".join(f"{one.path[:128]} ({one.what})" for one in found[:MAX_TOLD])
    more = len(found) - MAX_TOLD
    return f"differs from its manifest: {names}" + (f" and {more} more" if more > 0 else "")


def create_file(root: int, path: str) -> int:
    """Make a file and the folders above it; return its descriptor. Raises OSError."""
    *folders, name = path.split("/")
    at = os.dup(root)
    try:
        for folder in folders:
            with suppress(FileExistsError):
                os.mkdir(folder, 0o755, dir_fd=at)
            below = os.open(folder, _DIRECTORY, dir_fd=at)
            os.close(at)
            at = below
        return os.open(name, _CREATE, 0o644, dir_fd=at)
    finally:
        os.close(at)


def _sum(descriptor: int, size: int) -> Sum:
    """Read a file of ``size`` bytes, and one more if it has grown."""
    length = crc = 0
    while block := os.pread(descriptor, min(BLOCK, size + 1 - length), length):
        crc = crc32c(block, crc)
        length += len(block)
    return Sum(length, crc)


def _open_file(root: int, path: str, length: int) -> int:
    """Return the descriptor of a file of exactly this length. Raises DamagedPartError."""
    *folders, name = path.split("/")
    at = os.dup(root)
    try:
        for folder in folders:
            below = os.open(folder, _DIRECTORY, dir_fd=at)
            os.close(at)
            at = below
        descriptor = os.open(name, _READ, dir_fd=at)
    except OSError as error:
        raise DamagedPartError(f"{path}: {error.strerror}") from error
    finally:
        os.close(at)
    found = os.fstat(descriptor)
    if not stat.S_ISREG(found.st_mode) or found.st_size != length:
        os.close(descriptor)
        raise DamagedPartError(f"{path} has {found.st_size} bytes, in its manifest {length}")
    return descriptor
