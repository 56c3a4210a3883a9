"""Watches directories by inotify(7): which ones changed. A lost event is never the last word.

No library of the requirements offers it, so three functions of libc are called.
"""

from __future__ import annotations

import ctypes
import os
import select
import struct
from collections.abc import Iterator

_CREATE, _MOVED_TO, _CLOSE_WRITE = 0x100, 0x80, 0x8
_IGNORED, _OVERFLOW = 0x8000, 0x4000
_ONLY_DIRECTORY = 0x01000000
_MASK = _CREATE | _MOVED_TO | _CLOSE_WRITE | _ONLY_DIRECTORY
_EVENT = struct.Struct("iIII")
_BUFFER = 1 << 16


class Notify:
    """One queue of events. Used in one thread, but for :meth:`wake`."""

    def __init__(self) -> None:
        """Raises OSError when the kernel gives no queue."""
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._queue = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._queue < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1 failed")
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        for descriptor in (self._queue, self._wake):
            self._poll.register(descriptor, select.POLLIN)

    def add(self, directory: int) -> int | None:
        """Watch an open directory; return the number that its events have, None for no more."""
        path = f"/proc/self/fd/{directory}".encode()
        watch = int(self._libc.inotify_add_watch(self._queue, path, _MASK))
        return watch if watch >= 0 else None

    def remove(self, watch: int) -> None:
        """Stop watching; what vanished is no error."""
        self._libc.inotify_rm_watch(self._queue, watch)

    def wake(self) -> None:
        """End a wait; from any thread."""
        os.eventfd_write(self._wake, 1)

    def wait(self, seconds: float) -> tuple[set[int], bool]:
        """Return the watches with events, and whether events were lost."""
        ready = {descriptor for descriptor, _ in self._poll.poll(seconds * 1000)}
        if self._wake in ready:
            os.eventfd_read(self._wake)
        changed: set[int] = set()
        lost = False
        if self._queue in ready:
            try:
                content = os.read(self._queue, _BUFFER)
            except BlockingIOError:
                content = b""
            for watch, mask in _events(content):
                lost |= bool(mask & _OVERFLOW)
                if not mask & _IGNORED:
                    changed.add(watch)
        return changed, lost

    def close(self) -> None:
        """Close the queue, with all watches."""
        os.close(self._queue)
        os.close(self._wake)


def _events(content: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at + _EVENT.size <= len(content):
        watch, mask, _, length = _EVENT.unpack_from(content, at)
        at += _EVENT.size + length
        yield watch, mask
