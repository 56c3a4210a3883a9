"""Notices when live folders change, and has them scanned by workers."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import structlog

from base import clock
from container_mgr.checkpoints.disk.files import AgentEndingError
from container_mgr.checkpoints.watching.live import LiveFolder
from container_mgr.checkpoints.watching.notify import Notify

FULL_S = 5.0
"""Between two scans of a folder without events: what inotify lost is found then."""
BLIND_S = 0.5
"""The same for a folder that cannot be watched, as the kernel has no more watches."""
PAUSE_S = 0.02
"""Events of this time are handled together."""
AGAIN_S = 0.1
"""Before the next scan of a step that changed while it was being held."""
MAX_SCANS = 4
"""Folders that are scanned at a time, sums of their files included."""
SHARE = 4.0
"""A scan that took t is not repeated before ``SHARE`` x t: a fifth of a core at most."""

_log = structlog.get_logger("container_mgr.checkpoints.watching.watch")


@dataclass(slots=True)
class _Watched:
    live: LiveFolder
    dirty: bool = True
    busy: bool = False
    not_before: float = 0.0
    full_at: float = 0.0


class FolderWatch:
    """Scans live folders. :meth:`add` and :meth:`end` may be called in any thread.

    It belongs to the event loop in which it is made.
    """

    def __init__(
        self,
        submit: Callable[[Callable[[], None]], object],
        monotonic: Callable[[], float] = clock.monotonic,
    ) -> None:
        """``submit`` begins work in a worker. Raises OSError when the kernel gives no queue."""
        self._submit = submit
        self._monotonic = monotonic
        self._notify = Notify()
        self._lock = threading.Lock()
        self._lives: dict[LiveFolder, _Watched] = {}
        self._serving = asyncio.create_task(self._serve())

    def add(self, live: LiveFolder) -> bool:
        """Watch a folder until it is ended, with a scan at once; return whether that is new."""
        with self._lock:
            new = live not in self._lives
            self._lives.setdefault(live, _Watched(live))
        self._notify.wake()
        return new

    def end(self, live: LiveFolder) -> None:
        """Stop watching."""
        with self._lock:
            self._lives.pop(live, None)
        with live.lock:
            for watch in live.watches.values():
                self._notify.remove(watch)
            live.watches.clear()

    async def stop(self) -> None:
        """Begin no further scan."""
        self._serving.cancel()
        await asyncio.wait([self._serving])

    def close(self) -> None:
        """End the watch; no scan may run."""
        self._notify.close()

    async def _serve(self) -> None:
        while True:
            changed, lost = await self._notify.wait(self._until())
            now = self._monotonic()
            with self._lock:
                for one in self._lives.values():
                    if lost or not changed.isdisjoint(list(one.live.watches.values())):
                        one.dirty = True
                free = MAX_SCANS - sum(one.busy for one in self._lives.values())
                due = [one for one in self._lives.values() if self._is_due(one, now)][:free]
                for one in due:
                    one.busy, one.dirty = True, False
            for one in due:
                try:
                    self._submit(partial(self._scan, one))
                except RuntimeError:  # the agent ends
                    return
            # Events may come faster than they are read; the queue's overflow is a scan of all.
            await asyncio.sleep(PAUSE_S)

    def _until(self) -> float:
        """Return for how long, without events, nothing is due."""
        now = self._monotonic()
        with self._lock:
            if sum(one.busy for one in self._lives.values()) >= MAX_SCANS:
                return FULL_S  # the end of a scan wakes
            times = [
                max(one.not_before, now if one.dirty else one.full_at)
                for one in self._lives.values()
                if not one.busy
            ]
        return max(0.0, min(times, default=now + FULL_S) - now)

    def _is_due(self, one: _Watched, now: float) -> bool:
        return not one.busy and now >= one.not_before and (one.dirty or now >= one.full_at)

    def _scan(self, one: _Watched) -> None:
        began = self._monotonic()
        again = False
        try:
            again = one.live.scan(self._notify)
        except AgentEndingError:
            return
        except OSError as error:
            _log.warning("not scanned", folder=str(one.live.rank_folder.path), reason=str(error))
        except Exception:
            _log.exception("not scanned", folder=str(one.live.rank_folder.path))
        now = self._monotonic()
        with self._lock:
            one.busy = False
            one.dirty |= again
            one.not_before = now + max(AGAIN_S if again else 0.0, SHARE * (now - began))
            one.full_at = now + (FULL_S if "" in one.live.watches else BLIND_S)
            gone = one.live not in self._lives
        if gone:
            self.end(one.live)
        self._notify.wake()
