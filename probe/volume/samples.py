"""A data set of records in a volume: made by the probe, read as a training reads its samples.

Samples have one size and lie in shards, ``per_file`` in each. A read goes past the page cache
where the file system allows it (O_DIRECT), so that what is measured is the volume and not what the
last reader left in memory; nothing of the server's other caches is touched.
"""

from __future__ import annotations

import contextlib
import mmap
import multiprocessing
import os
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ALIGNMENT = 4096
"""Direct I/O needs offsets, sizes and buffers that are multiples of the device's block."""
CHUNK = 4 * 2**20


@dataclass(slots=True, frozen=True)
class Samples:
    """Where the samples are."""

    folder: Path
    count: int
    sample_bytes: int
    """A multiple of ALIGNMENT."""
    per_file: int

    def shard(self, number: int) -> Path:
        """Return the path of one shard."""
        return self.folder / f"shard-{number:06d}"

    def make(self) -> None:
        """Write all shards, random so that nothing stores them smaller. Raises OSError."""
        for number in range(-(-self.count // self.per_file)):
            left = min(self.per_file, self.count - number * self.per_file) * self.sample_bytes
            with self.shard(number).open("wb", buffering=0) as file:
                while left > 0:
                    left -= file.write(os.urandom(min(CHUNK, left)))
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


class SampleReader:
    """Reads samples and decodes them; threads and forked processes may share it."""

    def __init__(self, samples: Samples, *, direct: bool, decode_s: float, busy: bool) -> None:
        self._samples = samples
        self._direct = direct
        self._decode_s = decode_s
        self._busy = busy
        self._local = threading.local()
        self.count = multiprocessing.Value("q", 0)
        """Samples that were read, by all."""

    def __call__(self, index: int) -> tuple[float, float]:
        """Read sample ``index`` and decode it; return the seconds of both. Raises OSError."""
        began = time.monotonic()
        samples = self._samples
        shard, place = divmod(index, samples.per_file)
        buffer = self._buffer()
        with _open(samples.shard(shard), direct=self._direct) as file:
            offset = place * samples.sample_bytes
            done = os.preadv(file, [buffer], offset)
        if done != samples.sample_bytes:
            raise OSError(None, f"sample {index} has {done} of {samples.sample_bytes} bytes")
        with self.count.get_lock():
            self.count.value += 1
        read = time.monotonic()
        spend(self._decode_s, busy=self._busy)
        return read - began, time.monotonic() - read

    def _buffer(self) -> mmap.mmap:
        """Return this thread's buffer; memory maps begin at a page."""
        buffer: mmap.mmap | None = getattr(self._local, "buffer", None)
        if buffer is None:
            buffer = self._local.buffer = mmap.mmap(-1, self._samples.sample_bytes)
        return buffer


def can_read_directly(path: Path) -> bool:
    """Return whether the file system opens ``path`` past the page cache."""
    try:
        with _open(path, direct=True) as file, mmap.mmap(-1, ALIGNMENT) as buffer:
            return os.preadv(file, [buffer], 0) >= 0
    except OSError:
        return False


@contextlib.contextmanager
def _open(path: Path, *, direct: bool) -> Iterator[int]:
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_DIRECT if direct else 0))
    try:
        yield file
    finally:
        os.close(file)


def spend(seconds: float, *, busy: bool) -> None:
    """Spend time: asleep, as an accelerator's or an emulated core's, or keeping a core busy."""
    if not busy:
        time.sleep(seconds)
        return
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        sum(range(2000))
