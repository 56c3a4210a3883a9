"""How many users a switch lets in, and how long they may be idle."""

from __future__ import annotations

from testbed.ocs_emulator.faults import Faults
from testbed.ocs_emulator.personality import Behaviour


class Sessions:
    """Session rules of one front end: the personality's, unless a fault overrides them."""

    def __init__(self, behaviour: Behaviour, faults: Faults) -> None:
        self._behaviour = behaviour
        self._faults = faults
        self._open = 0

    def enter(self) -> bool:
        """Count one more session; False when there are too many already."""
        limit = self._faults.max_sessions
        limit = self._behaviour.max_sessions if limit is None else limit
        if limit and self._open >= limit:
            return False
        self._open += 1
        return True

    def leave(self) -> None:
        """Count one session less."""
        self._open -= 1

    @property
    def idle_logout_s(self) -> float | None:
        """How long a session may be silent; None means for ever."""
        given = self._faults.idle_logout_s
        return (self._behaviour.idle_logout_s if given is None else given) or None

    @property
    def login_race_s(self) -> float:
        """How long after a login commands are refused as if nobody had logged in."""
        given = self._faults.login_race_s
        return self._behaviour.login_race_s if given is None else given
