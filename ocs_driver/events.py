"""Fan-out of a switch's unasked messages to whoever subscribed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from ocs_driver.base import EventKind, OcsEvent

_BACKLOG = 1000
"""Events kept for a subscriber that does not keep up; the oldest go first."""


class EventFeed:
    """Each subscriber sees every event published after it subscribed."""

    def __init__(self) -> None:
        self._queues: set[asyncio.Queue[OcsEvent | None]] = set()
        self._closed = False

    def publish(self, event: OcsEvent) -> None:
        """Hand ``event`` to all subscribers; never blocks."""
        self._put(event)

    def link(self, switch: str, *, up: bool) -> None:
        """Publish that the session with a switch was lost or is back."""
        kind = EventKind.SESSION_RESTORED if up else EventKind.SESSION_LOST
        severity = "none" if up else "major"
        self._put(OcsEvent(kind, switch, severity, kind.value.replace("_", " ")))

    @property
    def wanted(self) -> bool:
        """Whether anybody listens."""
        return bool(self._queues)

    def close(self) -> None:
        """End all subscriptions."""
        self._closed = True
        self._put(None)

    def subscribe(self) -> AsyncIterator[OcsEvent]:
        """Return an iterator over the events from this moment on, until closed."""
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
