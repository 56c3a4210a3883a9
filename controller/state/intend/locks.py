"""Who changes which row: one change at a time, the others in the order in which they asked."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Collection
from dataclasses import dataclass, field

from controller.state.kinds.kind import Key


@dataclass(slots=True, eq=False)
class RowLock:
    """The rows that one change has, or waits for."""

    keys: list[Key] = field(default_factory=list)
    over: asyncio.Event = field(default_factory=asyncio.Event)


class RowLocks:
    """The changes under way, by row."""

    def __init__(self) -> None:
        self._queues: dict[Key, deque[RowLock]] = {}
        """Of each row that is being changed: the change under way, then those that wait."""

    def __contains__(self, key: Key) -> bool:
        return key in self._queues

    async def acquire(self, lock: RowLock, keys: Collection[Key]) -> None:
        """Wait until no other change has ``keys``; free ones are taken at once.

        In a fixed order, so that no two changes wait for each other. A caller that gives up lets
        go.
        """
        for key in sorted(keys):
            lock.keys.append(key)
            queue = self._queues.setdefault(key, deque())
            queue.append(lock)
            while queue[0] is not lock:
                await queue[0].over.wait()

    def release(self, lock: RowLock) -> None:
        """End a change, or its wait."""
        for key in lock.keys:
            queue = self._queues[key]
            queue.remove(lock)
            if not queue:
                del self._queues[key]
        lock.keys.clear()
        lock.over.set()

    async def free(self, key: Key) -> None:
        """Wait until the change of a row that is under way, if there is one, is over."""
        if key in self._queues:
            await self._queues[key][0].over.wait()
