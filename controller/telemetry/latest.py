"""The latest readings of servers, switches, aggregators and ports, whatever measures them."""

from __future__ import annotations

from collections.abc import Callable

from readings.catalogue import of
from readings.reading import Object, Value, Values


class LatestReadings:
    """Keeps of each object the latest value of each reading that the catalogue has for it."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._known: dict[tuple[Object, str], dict[str, tuple[Value, float]]] = {}
        """By object and reading: the value, and until when it stands."""

    def report(self, kind: Object, name: str, values: Values) -> None:
        """Keep readings of one object: ``srv0``, ``ocs0``, ``as0``, or a port ``as0/3``.

        Others than the catalogue's are ignored, and so are values beyond their bounds.
        """
        now = self._clock()
        known = self._known.setdefault((kind, name), {})
        for reading in of(kind):
            raw = values.get(reading.name)
            if raw is not None and (value := reading.accept(raw)) is not None:
                known[reading.name] = value, now + reading.lasts_s

    def of(self, kind: Object, name: str) -> Values | None:
        """Return the readings of an object that still stand; None without any."""
        now = self._clock()
        known = self._known.get((kind, name), {})
        return {name: value for name, (value, until) in known.items() if until > now} or None
