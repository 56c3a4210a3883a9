"""The machine's locks: a process that has to wait for one gets its holder at once."""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

from base import clock
from testbed.rack import procfs
from testbed.rack.errors import RackError

POLL_S = 0.5
SAY_EVERY_S = 30.0
BUILD_S = 900.0
"""Longest wait for images that another command builds, for minutes."""
_WAITERS = 128
"""Commands that may ask for one holder."""
_LONGEST = 120
"""Characters of a command that are shown."""
_CREDENTIALS = struct.Struct("3i")
"""``struct ucred`` of unix(7): pid, uid and gid."""


@dataclass(slots=True, frozen=True)
class HolderLock:
    """A lock that ends with its holder.

    ``address`` is an abstract socket (unix(7)), at which the holder listens: the kernel names the
    holder. ``what`` is what it protects.
    """

    address: str
    what: str

    @contextmanager
    def held(
        self, *, wait_s: float = 0.0, progress: Callable[[str], None] = lambda _: None
    ) -> Iterator[None]:
        """Hold it. Raises RackError(conflict) while another command holds it.

        ``wait_s`` is how long to wait for the other command first; ``progress`` gets a line with
        its name at the start of the wait and every SAY_EVERY_S.
        """
        with closing(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)) as lock:
            end = clock.monotonic() + wait_s
            say_at = clock.monotonic()
            while not self._bound(lock):
                now = clock.monotonic()
                if now >= end:
                    waited = f" (waited {wait_s:g} s)" if wait_s else ""
                    raise RackError(
                        "conflict",
                        f"{self._holder()} uses {self.what}{waited}",
                        object="rack",
                        hint="wait until it is done",
                    )
                if now >= say_at:
                    progress(
                        f"waiting for {self._holder()}, which uses {self.what}"
                        f" (at most {end - now:.0f} s)"
                    )
                    say_at = now + SAY_EVERY_S
                clock.sleep(min(POLL_S, end - now))
            yield

    def _bound(self, lock: socket.socket) -> bool:
        try:
            lock.bind(self.address)
        except OSError:
            return False
        lock.listen(_WAITERS)
        return True

    def _holder(self) -> str:
        """Name the holder: its command, process and start."""
        with contextlib.suppress(OSError), closing(socket.socket(socket.AF_UNIX)) as asking:
            asking.settimeout(1.0)
            asking.connect(self.address)
            told = asking.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
            pid = _CREDENTIALS.unpack(told)[0]
            since = time.strftime("%H:%M:%S", time.localtime(procfs.started_at(pid)))
            return f"`{_command(pid)}` (process {pid}, since {since})"
        return "another command"


RACK = HolderLock("\0lightloom-testbed", "the rack")
"""Held while a rack goes up or down, or an object of it is lost or repaired."""
STORE = HolderLock("\0lightloom-images", "the images of the private engine")
"""Held while an engine on its data root starts, ends, or is there only to build images."""


def _command(pid: int) -> str:
    """Return the command line of a process, without the interpreter of a script."""
    read = (procfs.PROC / str(pid) / "cmdline").read_bytes()[: 4 * _LONGEST]
    words = [os.fsdecode(word) for word in read.split(b"\0") if word]
    if len(words) > 1 and Path(words[0]).name.startswith("python") and words[1][:1] != "-":
        words = words[1:]
    text = " ".join([Path(words[0]).name, *words[1:]]) if words else "?"
    return "".join(c if c.isprintable() else "?" for c in text)[:_LONGEST]
