"""Defines the errors of optical switches, in terms that an operator can act on."""

from __future__ import annotations

import os
import socket


class OcsError(Exception):
    """Base class: ``code`` for programs, the object ``obj``, and a ``hint`` for operators."""

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
    """A command got no response: its outcome is unknown until the map is read again."""


class OcsDenied(OcsError):  # noqa: N818 - named for what happened
    """The switch refused a command; ``code`` is the switch's own error code."""


class OcsBadReply(OcsError):  # noqa: N818 - named for what happened
    """A reply lacks what it must hold: it proves nothing about the switch, not even "none"."""

    def __init__(self, obj: str, hint: str) -> None:
        super().__init__("bad_reply", obj, hint)


class OcsConflict(OcsError):  # noqa: N818 - named for what happened
    """The request conflicts with circuits on the switch; nothing was sent."""


class OcsLogin(OcsError):  # noqa: N818 - named for what happened
    """The switch refused the user, or no credentials were given."""


def wrong_dialect(switch: str, error: OcsError) -> OcsError:
    """Return the error for a switch that does not identify itself in the URL's dialect."""
    return OcsError(
        "wrong_dialect",
        switch,
        f"the switch does not speak the protocol of its URL ({error.hint}); check vendor and port",
    )


def unreachable(switch: str, error: OSError, timeout_s: float) -> OcsUnreachable:
    """Return the error for a connection that fails or takes longer than ``timeout_s``."""
    if isinstance(error, TimeoutError):
        why = f"no response within {timeout_s:g} s"
    elif error.errno and not isinstance(error, socket.gaierror):
        why = os.strerror(error.errno)
    else:
        why = error.strerror or str(error)
    return OcsUnreachable("unreachable", switch, why)
