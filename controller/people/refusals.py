"""Joins similar refusals, so that a stranger cannot fill the audit trail.

The first refusal of a kind is recorded at once. Further ones within a minute are counted, and one
record at the end of the minute has their number. The number of kinds is limited too: the rest of a
sender's refusals share one kind.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

from controller.base.addresses import network_of
from controller.people.audit_record import AuditRecord

WINDOW_S = 60.0
KINDS = 20
"""Kinds per minute of one token, and of all strangers together: they are free to invent."""
SEVERAL = "(several)"

Kind = tuple[str, str, str, str, int]


@dataclass(slots=True)
class _Joined:
    until: float
    last: AuditRecord
    count: int = 0


class JoinedRefusals:
    """The refusals of the last minute. Times are seconds of a monotonic clock."""

    def __init__(self, window_s: float = WINDOW_S) -> None:
        self._window_s = window_s
        self._joined: dict[Kind, _Joined] = {}
        self._kinds: Counter[str] = Counter()

    def add(self, record: AuditRecord, now: float) -> AuditRecord | None:
        """Add a refusal; return the record to write now, None if it is only counted."""
        kind = self._kind(record)
        joined = self._joined.get(kind)
        if joined is None and self._kinds[record.token] >= KINDS:
            record = replace(record, remote="", object=SEVERAL, action=SEVERAL, detail="")
            kind = self._kind(record)
            joined = self._joined.get(kind)
        if joined is not None:
            joined.last, joined.count = record, joined.count + 1
            return None
        self._joined[kind] = _Joined(now + self._window_s, record)
        self._kinds[record.token] += 1
        return record

    def due(self, now: float) -> list[AuditRecord]:
        """Return the records of the kinds whose minute is over, and remove these kinds."""
        over = [kind for kind, joined in self._joined.items() if joined.until <= now]
        ended = [self._joined.pop(kind) for kind in over]
        self._kinds -= Counter(joined.last.token for joined in ended)
        return [replace(joined.last, count=joined.count) for joined in ended if joined.count]

    @staticmethod
    def _kind(record: AuditRecord) -> Kind:
        sender = record.token or network_of(record.remote)
        return (record.token, sender, record.action, record.object, record.outcome)
