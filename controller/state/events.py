"""The event log for users: bounded in memory, written with the next durable write."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

import structlog

from controller.schema.base import Severity
from controller.state.records import Event

log = structlog.get_logger(__name__)

KEPT = 10_000

MARKERS = frozenset(
    {
        "JobStarted",
        "JobCompleted",
        "JobFailed",
        "JobCancelled",
        "RegroupStarted",
        "RegroupCommitted",
        "RegroupRolledBack",
    }
)
"""Reasons that plots over time show as markers."""


class EventLog:
    """Events with increasing ids; the store takes those it does not have yet."""

    def __init__(self, clock: Callable[[], float], epoch: Callable[[], int]) -> None:
        self._clock = clock
        self._epoch = epoch
        self._kept: deque[Event] = deque(maxlen=KEPT)
        self._unwritten: deque[Event] = deque(maxlen=KEPT)
        self._last = 0

    def restore(self, events: Iterable[Event]) -> None:
        """Take over the stored events; ids continue from there."""
        self._kept.extend(events)
        self._last = self._kept[-1].id if self._kept else 0

    def add(self, severity: Severity, obj: str, reason: str, message: str) -> Event:
        """Record one event, and write it to the program's log too."""
        self._last += 1
        event = Event(self._last, self._clock(), severity, obj, reason, message, self._epoch())
        self._kept.append(event)
        self._unwritten.append(event)
        getattr(log, severity)(reason, object=obj, message=message, epoch=event.epoch)
        return event

    @property
    def last_id(self) -> int:
        """Id of the newest event, 0 before the first."""
        return self._last

    def newer(self, ident: int) -> list[Event]:
        """Return the kept events above ``ident``, oldest first; cheap when there are few."""
        found: list[Event] = []
        for event in reversed(self._kept):
            if event.id <= ident:
                break
            found.append(event)
        return found[::-1]

    def since(self, ident: int, limit: int) -> list[Event]:
        """Return at most ``limit`` events above ``ident``, oldest first; for 0 the latest ones.

        A reader that is too slow gets a ``Resync`` first: the events it missed are no longer kept.
        """
        if ident <= 0:
            return list(self._kept)[-limit:]
        newer = [event for event in self._kept if event.id > ident]
        if newer and (gone := newer[0].id - ident - 1) > 0:
            text = f"{gone} events are no longer kept: read the lists again"
            at = newer[0]
            newer.insert(
                0, Event(at.id - 1, at.time, "warning", "controller", "Resync", text, at.epoch)
            )
        return newer[:limit]

    def markers(self, after: float) -> list[Event]:
        """Return the events since ``after`` (epoch seconds) that plots show as markers."""
        return [e for e in self._kept if e.time >= after and e.reason in MARKERS]

    def take_unwritten(self) -> list[Event]:
        """Remove and return the events that are not durable yet."""
        taken = list(self._unwritten)
        self._unwritten.clear()
        return taken

    def give_back(self, events: Iterable[Event]) -> None:
        """Keep events for the next write, because this one failed."""
        self._unwritten.extendleft(reversed(list(events)))
