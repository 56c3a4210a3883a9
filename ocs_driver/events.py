"""Distributes the events of a switch to all subscribers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from ocs_driver.base import EventKind, OcsEvent

_BACKLOG = 1000
"""Events buffered for a slow subscriber; the oldest are dropped first."""


class EventFeed:
    """Delivers each event to all current subscribers."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[OcsEvent | None]] = set()
        self._closed = False

    def publish(self, event: OcsEvent) -> None:
        """Send ``event`` to all subscribers; never blocks."""
        self._put(event)

    def link(self, switch: str, *, up: bool) -> None:
        """Publish that the session with a switch was lost or restored."""
        kind = EventKind.SESSION_RESTORED if up else EventKind.SESSION_LOST
        severity = "none" if up else "major"
        self._put(OcsEvent(kind, switch, severity, kind.value.replace("_", " ")))

    @property
    def has_subscribers(self) -> bool:
        """Whether there are subscribers."""
        return bool(self._queues)

    def close(self) -> None:
        """End all subscriptions."""
        self._closed = True
        self._put(None)

    def subscribe(self) -> AsyncIterator[OcsEvent]:
        """Return an iterator over the events from now until closed."""
        queue: asyncio.Queue[OcsEvent | None] = asyncio.Queue(_BACKLOG)
        if self._closed:
            queue.put_nowait(None)
        self._queues.add(queue)
        return self._drain(queue)

    def _put(self, item: OcsEvent | None) -> None:
        for queue in self._queues:
            if queue.full():
                queue.get_nowait()
            queue.put_nowait(item)

    async def _drain(self, queue: asyncio.Queue[OcsEvent | None]) -> AsyncIterator[OcsEvent]:
        try:
            while (event := await queue.get()) is not None:
                yield event
        finally:
            self._queues.discard(queue)
