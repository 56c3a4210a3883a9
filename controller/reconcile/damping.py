"""Flap damping: suppresses objects that flap, until they are stable. Pure.

Route-flap damping (RFC 2439) with one penalty per loss: it halves every HALF_LIFE_S, the object is
held down at SUPPRESS and released below REUSE, and however long a storm lasts, the object is held
down for at most MAX_HOLD_S after its end.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HALF_LIFE_S = 10.0
SUPPRESS = 4.0
REUSE = 1.0
MAX_HOLD_S = 60.0
CEILING = REUSE * 2 ** (MAX_HOLD_S / HALF_LIFE_S)


@dataclass(slots=True, frozen=True)
class _Penalty:
    value: float
    at: float
    held: bool

    def now(self, now: float) -> float:
        return self.value * math.exp2(-max(0.0, now - self.at) / HALF_LIFE_S)


class Damper:
    """Penalties of many objects; stable objects are dropped."""

    def __init__(self) -> None:
        self._penalties: dict[str, _Penalty] = {}

    def lost(self, name: str, now: float) -> bool:
        """Count one loss of ``name``; True when this loss begins its suppression."""
        before = self._penalties.get(name)
        held = before is not None and before.held
        value = min(CEILING, (before.now(now) if before else 0.0) + 1.0)
        self._penalties[name] = _Penalty(value, now, held or value >= SUPPRESS)
        return not held and value >= SUPPRESS

    def held(self, name: str) -> bool:
        """Whether ``name`` is held down; ``calmed`` releases it."""
        penalty = self._penalties.get(name)
        return penalty is not None and penalty.held

    def calmed(self, now: float) -> list[str]:
        """Release all objects that have been stable long enough, and return their names."""
        calm = {name: p for name, p in self._penalties.items() if p.now(now) < REUSE}
        for name in calm:
            del self._penalties[name]
        return sorted(name for name, penalty in calm.items() if penalty.held)
