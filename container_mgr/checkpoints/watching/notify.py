"""Watches directories by inotify(7): which ones changed. A lost event is never the last word.

No library of the requirements offers it, so three functions of libc are called.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import suppress

_CREATE, _MOVED_TO, _CLOSE_WRITE = 0x100, 0x80, 0x8
_IGNORED, _OVERFLOW = 0x8000, 0x4000
_ONLY_DIRECTORY = 0x01000000
_MASK = _CREATE | _MOVED_TO | _CLOSE_WRITE | _ONLY_DIRECTORY
_EVENT = struct.Struct("iIII")
_BUFFER = 1 << 16


class Notify:
    """One queue of events, of one event loop; watches are added and removed in any thread."""

    def __init__(self) -> None:
        """Raises OSError when the kernel gives no queue."""
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._queue = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._queue < 0:
            raise OSError(ctypes.get_errno(), "inotify_init1 failed")

    def add(self, directory: int) -> int | None:
        """Watch an open directory; return the number that its events have, None for no more."""
        path = f"/proc/self/fd/{directory}".encode()
        watch = int(self._libc.inotify_add_watch(self._queue, path, _MASK))
        return watch if watch >= 0 else None

    def remove(self, watch: int) -> None:
        """Stop watching; directories that vanished are ignored."""
        self._libc.inotify_rm_watch(self._queue, watch)

    def wake(self) -> None:
        """End a wait; from any thread."""
        with suppress(RuntimeError):  # the loop is closed
            self._loop.call_soon_threadsafe(self._woken.set)

    async def wait(self, seconds: float) -> tuple[set[int], bool]:
        """Return the watches with events, and whether events were lost."""
        # Only while it waits: events that come faster than they are read wait in the kernel.
        self._loop.add_reader(self._queue, self._woken.set)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(seconds):
                    await self._woken.wait()
        finally:
            self._loop.remove_reader(self._queue)
        self._woken.clear()
        changed: set[int] = set()
        lost = False
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


def _events(content: bytes) -> Iterator[tuple[int, int]]:
    at = 0
    while at + _EVENT.size <= len(content):
        watch, mask, _, length = _EVENT.unpack_from(content, at)
        at += _EVENT.size + length
        yield watch, mask
