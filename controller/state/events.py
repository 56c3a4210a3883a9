"""The event log for users: bounded, shared by the projects, written with the next durable write."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterable

import structlog

from controller.schema.base import Severity
from controller.state.records import Event

log = structlog.get_logger(__name__)

KEPT = 10_000
"""Beyond it the oldest of the project that has most goes: none displaces another one's. The events
of the site itself count as those of one project."""

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


class _Shares:
    """The ids of the kept events by owner; each step takes the same time however many there are."""

    def __init__(self) -> None:
        self._of: dict[str, deque[int]] = {}
        """Per owner, oldest first."""
        self._with: defaultdict[int, dict[str, None]] = defaultdict(dict)
        """Per number of events: the owners that have as many, the longest so first."""
        self._most = 0

    def add(self, owner: str, ident: int) -> None:
        """Count an event."""
        ids = self._of.setdefault(owner, deque())
        ids.append(ident)
        self._count(owner, len(ids) - 1, len(ids))
        self._most = max(self._most, len(ids))

    def pop_oldest(self) -> int:
        """Remove the oldest of an owner that has most; return its id."""
        owner = next(iter(self._with[self._most]))
        ids = self._of[owner]
        ident = ids.popleft()
        self._count(owner, len(ids) + 1, len(ids))
        if not ids:
            del self._of[owner]
        if not self._with[self._most]:
            del self._with[self._most]
            self._most -= 1
        return ident

    def _count(self, owner: str, before: int, after: int) -> None:
        self._with[before].pop(owner, None)
        if after:
            self._with[after][owner] = None


class EventLog:
    """Events with increasing ids; the store takes those it does not have yet."""

    def __init__(
        self,
        clock: Callable[[], float],
        epoch: Callable[[], int],
        owner: Callable[[str], str] = lambda _: "",
    ) -> None:
        """``owner`` returns the project of an event's object, "" for the site itself."""
        self._clock = clock
        self._epoch = epoch
        self._owner = owner
        self._kept: dict[int, Event] = {}
        """By id, which increases."""
        self._shares = _Shares()
        self._unwritten: dict[int, Event] = {}
        self._gone: list[int] = []
        """Events that the store has, or may get, and that are no longer kept."""
        self._last = 0

    def restore(self, events: Iterable[Event]) -> None:
        """Take over the stored events; ids continue from there."""
        for event in events:
            self._keep(event)
            self._last = event.id

    def add(self, severity: Severity, obj: str, reason: str, message: str) -> Event:
        """Record one event, and write it to the program's log too."""
        self._last += 1
        event = Event(self._last, self._clock(), severity, obj, reason, message, self._epoch())
        self._unwritten[event.id] = event
        self._keep(event)
        getattr(log, severity)(reason, object=obj, message=message, epoch=event.epoch)
        return event

    def _keep(self, event: Event) -> None:
        self._kept[event.id] = event
        self._shares.add(self._owner(event.object), event.id)
        while len(self._kept) > KEPT:
            ident = self._shares.pop_oldest()
            del self._kept[ident]
            if self._unwritten.pop(ident, None) is None:
                self._gone.append(ident)

    @property
    def last_id(self) -> int:
        """Id of the newest event, 0 before the first."""
        return self._last

    def newer(self, ident: int) -> list[Event]:
        """Return the kept events above ``ident``, oldest first; cheap when there are few."""
        found: list[Event] = []
        for event in reversed(self._kept.values()):
            if event.id <= ident:
                break
            found.append(event)
        return found[::-1]

    def since(self, ident: int, limit: int) -> list[Event]:
        """Return at most ``limit`` events above ``ident``, oldest first; for 0 the latest ones.

        A reader that is too slow gets a ``Resync`` where events that it missed are no longer kept.
        """
        if ident <= 0:
            return list(self._kept.values())[-limit:]
        newer, before = self.newer(ident)[:limit], ident
        for at, event in enumerate(newer):
            if (gone := event.id - before - 1) > 0:
                text = f"{gone} events are no longer kept: read the lists again"
                first = event.id - 1, event.time
                resync = Event(*first, "warning", "controller", "Resync", text, event.epoch)
                newer.insert(at, resync)
                break
            before = event.id
        return newer[:limit]

    def markers(self, after: float) -> list[Event]:
        """Return the events since ``after`` (epoch seconds) that plots show as markers."""
        return [e for e in self._kept.values() if e.time >= after and e.reason in MARKERS]

    def take_unwritten(self) -> tuple[list[Event], list[int]]:
        """Take the events that are not durable yet, and the ids that the store is to forget."""
        taken, gone = list(self._unwritten.values()), self._gone
        self._unwritten, self._gone = {}, []
        return taken, gone

    def give_back(self, events: Iterable[Event], gone: Iterable[int]) -> None:
        """Keep what was taken for the next write, because this one failed."""
        again = {event.id: event for event in events if event.id in self._kept}
        self._unwritten = again | self._unwritten
        self._gone = [*gone, *self._gone]
