"""Limits the number and the idle time of a switch's sessions."""

from __future__ import annotations

from testbed.ocs_emulator.faults import Faults
from testbed.ocs_emulator.personality import Behaviour


class SessionRules:
    """Session rules of one front end: the personality's, unless a fault overrides them."""

    def __init__(self, behaviour: Behaviour, faults: Faults) -> None:
        self._behaviour = behaviour
        self._faults = faults
        self._open = 0

    def enter(self) -> bool:
        """Count one more session; return False at the limit."""
        limit = self._faults.max_sessions
        limit = self._behaviour.max_sessions if limit is None else limit
        if limit and self._open >= limit:
            return False
        self._open += 1
        return True

    def leave(self) -> None:
        """Count one session fewer."""
        self._open -= 1

    @property
    def idle_logout_s(self) -> float | None:
        """Longest idle time of a session; None means unlimited."""
        given = self._faults.idle_logout_s
        return (self._behaviour.idle_logout_s if given is None else given) or None

    @property
    def login_race_s(self) -> float:
        """Time after a login in which commands are refused as if not logged in."""
        given = self._faults.login_race_s
        return self._behaviour.login_race_s if given is None else given
