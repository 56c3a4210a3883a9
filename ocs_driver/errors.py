"""What can go wrong with an optical switch, in terms an operator can act on."""

from __future__ import annotations

import os
import socket


class OcsError(Exception):
    """Root of all: ``code`` for programs, the ``obj`` it concerns, a ``hint`` for people."""

    def __init__(self, code: str, obj: str, hint: str) -> None:
        super().__init__(code, obj, hint)
        self.code = code
        self.obj = obj
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.obj}: {self.hint} [{self.code}]"


class OcsUnreachable(OcsError):  # noqa: N818 - named for what happened
    """No session with the switch; nothing was sent, so nothing changed."""


class OcsTimeout(OcsError):  # noqa: N818 - named for what happened
    """A command was sent and not answered: outcome unknown until the map is read again."""


class OcsDenied(OcsError):  # noqa: N818 - named for what happened
    """The switch refused a command; ``code`` is the switch's own error code."""


class OcsConflict(OcsError):  # noqa: N818 - named for what happened
    """The request clashes with circuits on the switch; nothing was sent."""


class OcsLogin(OcsError):  # noqa: N818 - named for what happened
    """The switch refused the user, or no credentials were given."""


def wrong_dialect(switch: str, error: OcsError) -> OcsError:
    """Return the error for a switch that refuses to say what it is in the URL's dialect."""
    return OcsError(
        "wrong_dialect",
        switch,
        f"the switch does not answer as the scheme of its URL says ({error.hint}); "
        "check vendor and port",
    )


def unreachable(switch: str, error: OSError, timeout_s: float) -> OcsUnreachable:
    """Return the error for a connection that could not be made within ``timeout_s``."""
    if isinstance(error, TimeoutError):
        why = f"no answer within {timeout_s:g} s"
    elif error.errno and not isinstance(error, socket.gaierror):
        why = os.strerror(error.errno)
    else:
        why = error.strerror or str(error)
    return OcsUnreachable("unreachable", switch, why)
